"""A server of a fleet: offers retrainings to other servers and quotes the capacity that it can lend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ekya.control.loop_state import LoopState
from ekya.control.options import LoopOptions
from ekya.control.protocols import Executor, Planner
from ekya.control.remote_plan import (
    RemoteRetraining,
    own_part,
    plan_beside,
    running_remotely,
    without_retraining,
)
from ekya.control.views import lendable_milli, window_view
from ekya.core.plan import Phase, Plan
from ekya.core.state import FleetState
from ekya.core.units import StreamId
from ekya.core.view import WindowView
from ekya.core.weights import Elsewhere
from ekya.fleet.policy.brokering import Agreed
from ekya.fleet.policy.loans import Loan, Way
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import CropCounts, Offer, Sizes, offers
from ekya.fleet.policy.remembered import Remembered
from ekya.fleet.policy.rooms import Room, room
from ekya.fleet.run.elsewhere import Awaited, Interrupted
from ekya.fleet.run.lending import LendingExecutor, Lent
from ekya.planning.schedulers.scheduler import Scheduler

STEP_MILLI = 100
"""Unit in which shares are lent, in thousandths of a GPU."""

SHARES_MILLI = (100, 200, 300, 400, 600, 800, 1000)
"""Shares for which a host's scheduler computes the loss, in thousandths of a GPU.

A share in between costs as much as the next larger one.
"""


@dataclass(frozen=True, slots=True)
class ServerTerms:
    """Conditions under which a server takes part in the fleet.

    Attributes:
        site: the server's name.
        crops_may_leave: labelled crops may be sent to other servers.
        takes_guests: others' jobs may run there.
    """

    site: SiteName
    crops_may_leave: bool
    takes_guests: bool = True


class Tier(Protocol):
    """The loan desk as a server sees it."""

    def agree(self, now_us: int, offered: Sequence[Offer]) -> Agreed:
        """Returns a loan for one of the offers, or the reasons why there is none."""

    def over(
        self, site: SiteName, stream: StreamId, now_us: int, outcome: str, moved_mb: Mapping[Way, float]
    ) -> None:
        """Ends a loan whose weights are not awaited any more."""

    def more_room(self, site: SiteName) -> None:
        """Reports that the server could lend more than before."""


class LendingServer:
    """A server's connection to the loan desk. A ``Peer``: the desk may call it from another thread.

    Args:
        terms: conditions of its participation.
        scheduler: of the server.
        options: constants of its control loop.
        sizes: of data sent over links.
        tier: the loan desk; None: the server works alone.
        inner: executor of its world.
        awaited: its remote retrainings.
        listens_every_us: as in ``LendingExecutor``.
    """

    def __init__(
        self,
        terms: ServerTerms,
        scheduler: Scheduler,
        options: LoopOptions,
        sizes: Sizes,
        tier: Tier | None,
        inner: Executor,
        awaited: Awaited,
        listens_every_us: int | None = None,
    ) -> None:
        self.site = terms.site
        self._terms, self._scheduler, self._options, self._sizes = terms, scheduler, options, sizes
        self._tier, self._remembered = tier, Remembered(sizes.exemplars)
        self._state: LoopState | None = None
        self._wants = False
        self.executor = LendingExecutor(inner, awaited, self._over, listens_every_us)

    def plan(self, view: WindowView, planner: Planner) -> Plan:
        """Plans the server; retrainings that are worth more elsewhere go to servers with spare capacity.

        Args:
            view: of the whole server.
            planner: asks its scheduler for the plan that will be carried out.
        """
        away = running_remotely(view)
        loans, why_not = self._borrow(own_part(view))
        for loan in loans:
            reason = f"retrains on {loan.where}: {loan.reason}"
            away[loan.offer.stream] = RemoteRetraining(loan.offer.config, Elsewhere(loan.arrives_us), reason)
        return _saying(plan_beside(view, planner, away), why_not)

    def follow(self, state: LoopState) -> None:
        """Takes over the state after a step of the control loop."""
        before, self._state = self._state, state
        if before is not None:
            self._remembered.follow(before.fleet, state.fleet)
        if before is not None and self._tier is not None and _has_more_room(before.fleet, state.fleet):
            self._tier.more_room(self.site)

    def room(self, now_us: int, until_us: int) -> Room | None:
        """Returns the capacity that it could lend between the two times; None while it still labels."""
        state, options = self._state, self._options
        if not self._terms.takes_guests or state is None or state.fleet.window < 0 or state.fleet.preparing:
            return None
        view = self._view(state, now_us)
        lendable = lendable_milli(self._with_promised(state.fleet), options, until_us)
        shares = [share for share in SHARES_MILLI if share <= lendable]
        if not shares or not view.streams:
            return None
        return room(self.site, view, self._scheduler.plan, shares, STEP_MILLI)

    def lend(self, number: int, lent: Lent) -> None:
        """Forwards to the executor."""
        self.executor.lend(number, lent)

    def take_back(self, number: int, at_us: int) -> None:
        """Forwards to the executor."""
        self.executor.take_back(number, at_us)

    def ask_again(self) -> None:
        """Plans again if there was an offer for which no server had capacity."""
        if self._wants:
            self._wants = False
            self.executor.ask_again()

    def interrupted(self, stream: StreamId, now_us: int) -> Interrupted:
        """Forwards to the executor."""
        return self.executor.interrupted(stream, now_us)

    def go_on(self, stream: StreamId, loan: Loan) -> None:
        """Continues a retraining under a new loan."""
        self.executor.go_on(stream, loan)

    def fail(self, stream: StreamId, reason: str, now_us: int) -> None:
        """Forwards to the executor."""
        self.executor.fail(stream, reason, now_us)

    def give_up_all(self) -> None:
        """Forwards to the executor."""
        self.executor.give_up_all()

    def _borrow(self, view: WindowView) -> tuple[Sequence[Loan], Mapping[StreamId, str]]:
        """Returns loans for retrainings that are worth more elsewhere, and by stream why others got none.

        Loans are made one by one, since each changes the value of the others.
        """
        loans: list[Loan] = []
        if self._tier is None or self._state is None or not self._terms.crops_may_leave:
            return (), {}
        crops = {
            stream.stream: CropCounts(
                stream.labels.learnt_crops,
                stream.labels.validation_crops,
                self._remembered.exemplars(stream.stream),
            )
            for stream in self._state.fleet.streams
        }
        while offered := list(offers(self.site, view, self._scheduler.plan, crops, self._sizes)):
            # Set before the request: a report of new spare capacity may overtake the reply.
            self._wants = True
            agreed = self._tier.agree(view.now_us, offered)
            loan = agreed.loan
            if loan is None:
                return loans, agreed.why_not
            self.executor.expect(loan)
            loans.append(loan)
            view = without_retraining(view, loan.offer.stream)
        self._wants = False
        return loans, {}

    def _view(self, state: LoopState, now_us: int) -> WindowView:
        """Returns the present view of the server's own streams, without the capacity that is lent."""
        fleet = self._with_promised(state.fleet)
        now_us = min(max(now_us, self.executor.now_us), fleet.window_end_us)
        view = window_view(fleet, now_us, self._options, self._scheduler.needs, state.histories, state.phases)
        return own_part(view)

    def _with_promised(self, fleet: FleetState) -> FleetState:
        return replace(fleet, lent_milli=max(self.executor.lent_milli, fleet.lent_milli))

    def _over(self, stream: StreamId, now_us: int, outcome: str, moved_mb: Mapping[Way, float]) -> None:
        if self._tier is not None:
            self._tier.over(self.site, stream, now_us, outcome, moved_mb)


def _saying(plan: Plan, why_not: Mapping[StreamId, str]) -> Plan:
    """Returns the plan with the reason why no other server retrains a stream that does not retrain here."""
    first, *rest = plan.phases
    assignments = [
        replace(one, reason=f"{one.reason}; not elsewhere either: {why_not[one.stream]}")
        if one.stream in why_not and one.retrain is None
        else one
        for one in first.assignments
    ]
    return replace(plan, phases=(Phase(tuple(assignments)), *rest))


def _has_more_room(before: FleetState, after: FleetState) -> bool:
    """Returns whether it can lend more: preparation is over, a guest has left, or a retraining has ended."""
    if after.preparing:
        return False
    return before.preparing or after.lent_milli < before.lent_milli or _training(after) < _training(before)


def _training(fleet: FleetState) -> int:
    """Returns the number of its own retrainings that run at home."""
    return sum(stream.job is not None and stream.job.elsewhere is None for stream in fleet.streams)
