"""A server of a fleet: offers jobs to other servers and quotes the capacity that it can lend."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ekya.config.fleet_sections import SamplesMayLeave
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
from ekya.core.errors import UserError
from ekya.core.plan import Phase, Plan
from ekya.core.state import FleetState, RetrainJob, StreamState
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.core.view import WindowView
from ekya.core.weights import Elsewhere
from ekya.fleet.policy.loans import Loan, Way
from ekya.fleet.policy.offers import CropCounts, LinkSizes, offers
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.rooms import Room, room
from ekya.fleet.run.coordinator import LoanCoordinator
from ekya.fleet.run.elsewhere import Awaited
from ekya.fleet.run.lending import GIVEN_UP, Answer, LendingExecutor
from ekya.planning.schedulers.scheduler import Scheduler

_LOG = logging.getLogger(__name__)

Came = Callable[[Loan, float, int | None], None]
"""Callback for a loan's gain, in accuracy times seconds, and the microseconds from the end of its training
until its best weights served; None where they never did, or did before."""


@dataclass(slots=True, eq=False)
class _Borrowed:
    """A retraining whose gain is not known yet, and the model that serves with its newest known accuracy."""

    loan: Loan
    job: JobId
    version: ModelVersion
    accuracy: float
    came: float = 0.0
    ended_us: int | None = None


class Gains:
    """Measures what each borrowed retraining brings by the end of its window, snapshots included."""

    def __init__(self, came: Came) -> None:
        self._came = came
        self._borrowed: dict[StreamId, _Borrowed] = {}

    def follow_state(self, fleet: FleetState, loans: Iterable[Loan], now_us: int) -> None:
        """Takes over the state after a step of the loop, and the loans under which retrainings then run."""
        streams = {stream.stream: stream for stream in fleet.streams}
        for stream in sorted(self._borrowed):
            self._measure(self._borrowed[stream], streams.get(stream), now_us)
        for loan in loans:
            state, known = streams.get(loan.offer.stream), self._borrowed.get(loan.offer.stream)
            if known is not None:
                known.loan = loan  # it may have moved
            elif state is not None and state.job is not None:
                begun = _Borrowed(loan, state.job.job, state.version, state.accuracy or 0.0)
                self._borrowed[state.stream] = begun

    def _measure(self, one: _Borrowed, state: StreamState | None, now_us: int) -> None:
        job = None if state is None else state.job or state.finished
        if state is None or job is None or job.job != one.job:
            self._report(one, None)
            return
        served, accuracy = state.version != one.version, state.accuracy or 0.0
        if state.job is None and one.ended_us is None:
            one.ended_us = now_us
        if served:
            one.came += one.loan.offer.measured_gain(accuracy - one.accuracy, now_us)
        if served or one.ended_us is None:  # afterwards the loop counts on weights that do not serve yet
            one.version, one.accuracy = state.version, accuracy
        if one.ended_us is not None and one.accuracy >= job.best_accuracy:
            self._report(one, now_us - one.ended_us if served else None)
        elif now_us >= one.loan.offer.until_us:
            self._report(one, None)

    def _report(self, one: _Borrowed, serves_after_us: int | None) -> None:
        del self._borrowed[one.loan.offer.stream]
        self._came(one.loan, round(one.came, 6), serves_after_us)


class Remembered:
    """Counts exemplars: a stream remembers crops of the windows in which it was retrained.

    The loop does not receive the chosen crops. A rare class may have fewer crops than its part of the budget,
    so the true number can be lower.

    Args:
        most: exemplars that a stream remembers.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._crops: dict[StreamId, int] = {}
        self._newest: dict[StreamId, int] = {}

    def follow_state(self, before: FleetState, after: FleetState) -> None:
        """Records a step of the control loop."""
        for stream in before.streams:
            job = stream.job
            if job is not None and _is_over(job, after.stream(stream.stream)):
                self._add(stream, job.window)

    def most_exemplars(self, stream: StreamId) -> int:
        """Returns the upper bound for a stream."""
        return min(self._most, self._crops.get(stream, 0))

    def _add(self, stream: StreamState, window: int) -> None:
        """Counts the labelled crops of a window once, also where several retrainings use them."""
        if self._newest.get(stream.stream) != window:
            self._newest[stream.stream] = window
            self._crops[stream.stream] = self._crops.get(stream.stream, 0) + stream.labels.training_crops


def _is_over(job: RetrainJob, now: StreamState) -> bool:
    """Returns whether a job has ended after at least one epoch: its best weights choose the exemplars."""
    if now.job is not None and now.job.job == job.job:
        return False
    ended = now.finished if now.finished is not None and now.finished.job == job.job else job
    return bool(ended.accuracies)


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
        samples_may_leave: what may be sent to other servers.
        takes_guests: others' jobs may run there.
    """

    site: SiteName
    samples_may_leave: SamplesMayLeave
    takes_guests: bool = True


class LendingServer:
    """A server's connection to the coordinator. Other threads may call ``spare_room``.

    Args:
        terms: conditions of its participation.
        scheduler: of the server.
        options: constants of its control loop.
        sizes: of data sent over links.
        above: the coordinator; None: the server works alone.
        inner: executor of its world.
        awaited: its remote retrainings.
        listens_every_us: as in ``LendingExecutor``.

    Attributes:
        executor: around ``inner``; what the coordinator calls.
    """

    def __init__(
        self,
        terms: ServerTerms,
        scheduler: Scheduler,
        options: LoopOptions,
        sizes: LinkSizes,
        above: LoanCoordinator | None,
        inner: Executor,
        awaited: Awaited,
        listens_every_us: int | None = None,
    ) -> None:
        self.site = terms.site
        self._terms, self._scheduler, self._options, self._sizes = terms, scheduler, options, sizes
        self._above, self._remembered = above, Remembered(sizes.exemplars)
        self._gains = None if above is None else Gains(above.record_gain)
        self._state: LoopState | None = None
        self._priced: tuple[int, int, Room | None] | None = None
        self.executor = LendingExecutor(inner, awaited, self._over, self.spare_room, listens_every_us)

    def plan_window(self, view: WindowView, planner: Planner) -> Plan:
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
        plan = _saying(plan_beside(view, planner, away), why_not)
        if self._above is not None and why_not:
            begun = {one.stream for one in plan.phases[0].assignments if one.retrain is not None}
            self._above.withdraw_offers(self.site, begun)
        return plan

    def follow_state(self, state: LoopState) -> None:
        """Takes over the state after a step of the control loop."""
        before, self._state = self._state, state
        if before is not None:
            self._remembered.follow_state(before.fleet, state.fleet)
        if self._gains is not None:
            self._gains.follow_state(state.fleet, self.executor.borrowed_loans(), self.executor.now_us)
        has_more = before is None or _has_more_room(before.fleet, state.fleet)
        if self._above is not None and has_more:
            self._above.more_room(self.site, self.executor.now_us)

    def spare_room(self, now_us: int, until_us: int) -> Room | None:
        """Returns what it could lend between the two times, as if it lent nothing; None while it labels."""
        state = self._state
        if not self._terms.takes_guests or state is None or state.fleet.window < 0 or state.fleet.preparing:
            return None
        if self._priced is None or self._priced[:2] != (state.epoch, until_us):  # its own plan has changed
            self._priced = state.epoch, until_us, self._price(state, now_us, until_us)
        return self._priced[2]

    def _price(self, state: LoopState, now_us: int, until_us: int) -> Room | None:
        state = replace(state, fleet=replace(state.fleet, lent_milli=0))
        view = self._view(state, now_us)
        lendable = lendable_milli(state.fleet, self._options, until_us)
        shares = [share for share in SHARES_MILLI if share <= lendable]
        if not shares or not view.streams:
            return None
        return room(self.site, view, self._scheduler.plan, shares, STEP_MILLI)

    def _borrow(self, view: WindowView) -> tuple[Sequence[Loan], Mapping[StreamId, str]]:
        """Returns loans for retrainings that are worth more elsewhere, and by stream why others got none.

        Loans are made one by one, since each changes the value of the others.
        """
        if self._above is None or self._terms.samples_may_leave == "no" or self._state is None:
            return (), {}
        loans = self._taken(view)
        for loan in loans:
            view = without_retraining(view, loan.offer.stream)
        crops = {
            stream.stream: CropCounts(
                stream.labels.learnt_crops,
                stream.labels.validation_crops,
                self._remembered.most_exemplars(stream.stream),
            )
            for stream in self._state.fleet.streams
        }
        while True:
            offered = list(offers(self.site, view, self._scheduler.plan, crops, self._sizes))
            try:
                answer = self._above.answer_offers(self.site, view.now_us, offered)
            except UserError as error:  # The disk is full; without a record no loan is made.
                _LOG.warning("nothing is borrowed: %s", error)
                answer = Answer()
            if answer.loan is None:
                return loans, answer.why_not
            self.executor.expect_start(answer.loan)
            loans.append(answer.loan)
            view = without_retraining(view, answer.loan.offer.stream)

    def _taken(self, view: WindowView) -> list[Loan]:
        """Returns the granted loans whose retraining can still begin, and gives up the others."""
        streams = {stream.stream: stream for stream in view.streams}
        taken = []
        for loan in self.executor.take_granted():
            stream = loan.offer.stream
            options = streams[stream].retrain_options if stream in streams else ()
            if any(option.config == loan.offer.config for option in options):
                self.executor.expect_start(loan)
                taken.append(loan)
            else:
                self._over(stream, view.now_us, GIVEN_UP, {})
        return taken

    def _view(self, state: LoopState, now_us: int) -> WindowView:
        """Returns the present view of the server's own streams."""
        fleet = state.fleet
        now_us = min(max(now_us, self.executor.now_us), fleet.window_end_us)
        view = window_view(fleet, now_us, self._options, self._scheduler.needs, state.histories, state.phases)
        return own_part(view)

    def _over(self, stream: StreamId, now_us: int, outcome: str, moved_mb: Mapping[Way, float]) -> None:
        if self._above is not None:
            self._above.end_loan(self.site, stream, now_us, outcome, moved_mb)


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
