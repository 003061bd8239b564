"""Actor `fleet/desk`: the loan desk of live servers."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError

from ekya.core.units import StreamId
from ekya.fleet.policy.brokering import Agreed
from ekya.fleet.policy.loans import Links, Loan, Way
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import Offer
from ekya.fleet.policy.rooms import Room
from ekya.fleet.policy.tiers import TIERS
from ekya.fleet.run.desk import LoanDesk
from ekya.fleet.run.elsewhere import Interrupted
from ekya.fleet.run.lending import GIVEN_UP, Lent
from ekya.fleet.run.loan_file import LoanFile
from ekya.runtime.actor_errors import in_words
from ekya.system.memory import freeze_loaded

_LOG = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

ANSWERS_WITHIN_S = 10.0
"""Timeout of a request to a server; without a reply it counts as having no spare capacity."""

AGREES_WITHIN_S = 30.0
"""Timeout of a request to the desk, during which the server's control loop waits."""


class DeskActor:
    """Loan desk for all servers. Handles one request at a time, so that no capacity is lent twice.

    Args:
        tier: name of the policy that finds loans.
        links: between the servers.
        seed: of all random draws.
        loans: file in which loans are recorded.
    """

    def __init__(self, tier: str, links: Links, seed: int, loans: Path) -> None:
        # The real length of a training is unknown: it keeps its share until it is over, or its window is.
        self._desk = LoanDesk(
            TIERS[tier], links, seed, LoanFile(loans), held_until=lambda loan: loan.offer.until_us
        )
        freeze_loaded()

    def ready(self) -> None:
        """Returns when the actor can receive requests."""

    def join(self, site: SiteName, server: Any) -> None:
        """Registers a server."""
        self._desk.join(site, _RemotePeer(site, server))

    def leave(self, site: SiteName) -> None:
        """Removes a server whose run has ended."""
        self._desk.leave(site)

    def died(self, site: SiteName, at_us: int) -> None:
        """Handles the death of a server."""
        self._desk.died(site, at_us)

    def agree(self, now_us: int, offered: Sequence[Offer]) -> Agreed:
        """Forwards to ``LoanDesk``."""
        return self._desk.agree(now_us, offered)

    def over(
        self, site: SiteName, stream: StreamId, now_us: int, outcome: str, moved_mb: Mapping[Way, float]
    ) -> None:
        """Forwards to ``LoanDesk``."""
        self._desk.over(site, stream, now_us, outcome, moved_mb)

    def moved_since(self, site: SiteName, stream: StreamId, moved_mb: Mapping[Way, float]) -> None:
        """Forwards to ``LoanDesk``."""
        self._desk.moved_since(site, stream, moved_mb)

    def more_room(self, site: SiteName) -> None:
        """Forwards to ``LoanDesk``."""
        self._desk.more_room(site)


class RemoteTier:
    """Client of the loan desk for a server. A ``Tier``: without the desk a server works alone."""

    def __init__(self, desk: Any) -> None:
        self._desk = desk
        self._unanswered: Any | None = None

    def agree(self, now_us: int, offered: Sequence[Offer]) -> Agreed:
        """Requests a loan; none where the desk is dead or does not reply in time."""
        if self._unanswered is not None and not ray.wait([self._unanswered], timeout=0)[0]:
            return Agreed()  # After a timeout no new request until the desk has handled that one.
        asked, self._unanswered = self._desk.agree.remote(now_us, offered), None
        try:
            agreed: Agreed = ray.get(asked, timeout=AGREES_WITHIN_S)
            return agreed
        except GetTimeoutError:
            _LOG.warning("the desk has not answered within %g s", AGREES_WITHIN_S)
            self._unanswered = asked
            # The desk may still agree on a loan that will not begin. These calls reach it after the request.
            for offer in offered:
                self.over(offer.site, offer.stream, now_us, GIVEN_UP, {})
        except RayError as error:
            _LOG.warning("the desk is gone: %s", in_words(error))
        return Agreed()

    def over(
        self, site: SiteName, stream: StreamId, now_us: int, outcome: str, moved_mb: Mapping[Way, float]
    ) -> None:
        """Ends a loan at the desk; does not wait for the reply."""
        self._desk.over.remote(site, stream, now_us, outcome, moved_mb)

    def moved_since(self, site: SiteName, stream: StreamId, moved_mb: Mapping[Way, float]) -> None:
        """Reports later traffic to the desk; does not wait for the reply."""
        self._desk.moved_since.remote(site, stream, moved_mb)

    def more_room(self, site: SiteName) -> None:
        """Reports new spare capacity to the desk; does not wait for the reply."""
        self._desk.more_room.remote(site)

    def wait_heard(self) -> None:
        """Returns when the desk has handled all earlier calls, or is dead."""
        _or(None, lambda: ray.get(self._desk.ready.remote(), timeout=ANSWERS_WITHIN_S))


class _RemotePeer:
    """Client of a server for the desk; a dead server has no capacity and ignores calls."""

    def __init__(self, site: SiteName, server: Any) -> None:
        self._site, self._server = site, server

    def room(self, now_us: int, until_us: int) -> Room | None:
        return self._or(None, self._server.room, now_us, until_us)

    def lend(self, number: int, lent: Lent) -> None:
        self._or(None, self._server.lend, number, lent)

    def take_back(self, number: int, at_us: int) -> None:
        self._or(None, self._server.take_back, number, at_us)

    def ask_again(self) -> None:
        self._server.ask_again.remote()

    def interrupted(self, stream: StreamId, now_us: int) -> Interrupted:
        return self._or(Interrupted(1, {}), self._server.interrupted, stream, now_us)

    def go_on(self, stream: StreamId, loan: Loan) -> None:
        self._or(None, self._server.go_on, stream, loan)

    def fail(self, stream: StreamId, reason: str, now_us: int) -> None:
        self._or(None, self._server.fail, stream, reason, now_us)

    def _or(self, otherwise: _Answer, method: Any, *arguments: object) -> _Answer:
        return _or(otherwise, lambda: ray.get(method.remote(*arguments), timeout=ANSWERS_WITHIN_S))


def _or(otherwise: _Answer, ask: Callable[[], _Answer]) -> _Answer:
    try:
        return ask()
    except RayError as error:
        _LOG.warning("no answer: %s", in_words(error))
        return otherwise
