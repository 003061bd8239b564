"""Actor `fleet/coordinator`: the coordinator of live servers, and how servers and it reach each other."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError

from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Links, Loan, Way
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import Offer
from ekya.fleet.policy.rooms import Room
from ekya.fleet.policy.tiers import TIERS
from ekya.fleet.run.coordinator import Answer, Coordinator, Peer
from ekya.fleet.run.elsewhere import Interrupted
from ekya.fleet.run.lending import GIVEN_UP, Lent
from ekya.fleet.run.loan_file import UNDER_WAY, LoanFile, learnt, read_loans
from ekya.runtime.actor_errors import in_words
from ekya.system.memory import freeze_loaded

_LOG = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

COORDINATOR = "fleet/coordinator"
"""Name of the actor."""

ROOMS_WITHIN_S = 2.0
"""Time limit of asking all servers for their spare capacity; those that have not replied then have none."""

ANSWERS_WITHIN_S = 10.0
"""Timeout of another request to a server."""

DECIDES_WITHIN_S = 5.0
"""Timeout of a request to the coordinator, during which a server's control loop waits."""


class CoordinatorActor:
    """Coordinator of all servers. Handles one request at a time, so that no capacity is lent twice.

    Ray starts it again when it dies; it then takes up the loans that servers still have. Meanwhile these go
    on, and servers plan by themselves.

    Args:
        tier: name of the policy that decides.
        links: between the servers.
        seed: of all random draws.
        loans: file in which loans are recorded.
        sites: of all servers, whose actors have the names ``server_name`` gives.
    """

    def __init__(self, tier: str, links: Links, seed: int, loans: Path, sites: Sequence[SiteName]) -> None:
        file = LoanFile(loans)  # first, since it removes a line that a crash has cut off
        before = read_loans(loans)
        # The real length of a training is unknown: it keeps its share until it is over, or its window is.
        self._coordinator = Coordinator(
            TIERS[tier],
            links,
            seed,
            file,
            held_until=lambda loan: loan.offer.until_us,
            rooms=_rooms_at_once,
            promises=learnt(before),
        )
        # At the first start no server is there yet.
        peers = {site: peer for site in sites if (peer := _found(site)) is not None}
        go_on = self._coordinator.take_up(len(before), peers)
        for number, loan in enumerate(before):
            if loan.outcome == UNDER_WAY and number not in go_on:
                file.lost(number)
        freeze_loaded()

    def ready(self) -> None:
        """Returns when the actor can receive requests."""

    def join(self, site: SiteName, server: Any) -> None:
        """Registers a server."""
        self._coordinator.join(site, _RemotePeer(site, server))

    def leave(self, site: SiteName) -> None:
        """Removes a server whose run has ended."""
        self._coordinator.leave(site)

    def died(self, site: SiteName, at_us: int) -> None:
        """Handles the death of a server."""
        self._coordinator.died(site, at_us)

    def ask(self, site: SiteName, now_us: int, offers: Sequence[Offer]) -> Answer:
        """Forwards to ``Coordinator``, as do the methods below."""
        return self._coordinator.ask(site, now_us, offers)

    def withdraw(self, site: SiteName, streams: Collection[StreamId]) -> None:
        """Closes offers of retrainings that begin at home."""
        self._coordinator.withdraw(site, streams)

    def over(
        self, site: SiteName, stream: StreamId, now_us: int, outcome: str, moved_mb: Mapping[Way, float]
    ) -> None:
        """Ends a loan."""
        self._coordinator.over(site, stream, now_us, outcome, moved_mb)

    def moved_since(self, site: SiteName, stream: StreamId, moved_mb: Mapping[Way, float]) -> None:
        """Adds later traffic to a loan that is over."""
        self._coordinator.moved_since(site, stream, moved_mb)

    def came(self, loan: Loan, came: float, serves_after_us: int | None) -> None:
        """Learns what a loan has brought."""
        self._coordinator.came(loan, came, serves_after_us)

    def more_room(self, now_us: int) -> None:
        """Decides again, because a server could lend more than before."""
        self._coordinator.more_room(now_us)

    def tick(self, now_us: int) -> None:
        """Decides again if the policy wants that after so long."""
        self._coordinator.tick(now_us)


class RemoteCoordinator:
    """Client of the coordinator for a server: an ``AboveServers``. Without it a server works alone."""

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self._unanswered: Any | None = None

    def ask(self, site: SiteName, now_us: int, offers: Sequence[Offer]) -> Answer:
        """Requests a loan; none where the coordinator is dead or does not reply in time."""
        if self._unanswered is not None and not ray.wait([self._unanswered], timeout=0)[0]:
            return Answer()  # After a timeout no new request until that one has been handled.
        asked, self._unanswered = self._coordinator.ask.remote(site, now_us, offers), None
        try:
            answer: Answer = ray.get(asked, timeout=DECIDES_WITHIN_S)
            return answer
        except GetTimeoutError:
            _LOG.warning("the coordinator has not answered within %g s", DECIDES_WITHIN_S)
            self._unanswered = asked
            # It may still make a loan that will not begin. These calls reach it after the request.
            for offer in offers:
                self.over(offer.site, offer.stream, now_us, GIVEN_UP, {})
        except RayError as error:
            _LOG.warning("the coordinator is gone: %s", in_words(error))
        return Answer()

    def withdraw(self, site: SiteName, streams: Collection[StreamId]) -> None:
        """Closes offers; this method and those below do not wait for the reply."""
        self._coordinator.withdraw.remote(site, streams)

    def over(
        self, site: SiteName, stream: StreamId, now_us: int, outcome: str, moved_mb: Mapping[Way, float]
    ) -> None:
        """Ends a loan."""
        self._coordinator.over.remote(site, stream, now_us, outcome, moved_mb)

    def moved_since(self, site: SiteName, stream: StreamId, moved_mb: Mapping[Way, float]) -> None:
        """Reports later traffic."""
        self._coordinator.moved_since.remote(site, stream, moved_mb)

    def came(self, loan: Loan, came: float, serves_after_us: int | None) -> None:
        """Reports what a loan has brought."""
        self._coordinator.came.remote(loan, came, serves_after_us)

    def more_room(self, now_us: int) -> None:
        """Reports new spare capacity."""
        self._coordinator.more_room.remote(now_us)

    def wait_heard(self) -> None:
        """Returns when the coordinator has handled all earlier calls, or is dead."""
        _or(None, lambda: ray.get(self._coordinator.ready.remote(), timeout=ANSWERS_WITHIN_S))


class _RemotePeer:
    """Client of a server for the coordinator; a dead server has no capacity and ignores calls."""

    def __init__(self, site: SiteName, server: Any) -> None:
        self.site, self.server = site, server

    def room(self, now_us: int, until_us: int) -> Room | None:
        return self._or(None, self.server.room, now_us, until_us)

    def lend(self, number: int, lent: Lent) -> None:
        self._or(None, self.server.lend, number, lent)

    def take_back(self, number: int, at_us: int) -> None:
        self._or(None, self.server.take_back, number, at_us)

    def grant(self, loan: Loan) -> None:
        self.server.grant.remote(loan)

    def interrupted(self, stream: StreamId, now_us: int) -> Interrupted:
        return self._or(Interrupted(1, {}), self.server.interrupted, stream, now_us)

    def go_on(self, stream: StreamId, loan: Loan) -> None:
        self._or(None, self.server.go_on, stream, loan)

    def fail(self, stream: StreamId, reason: str, now_us: int) -> None:
        self._or(None, self.server.fail, stream, reason, now_us)

    def borrowed(self) -> Sequence[Loan]:
        return self._or((), self.server.borrowed)

    def lends(self) -> Collection[int]:
        return self._or((), self.server.lends)

    def _or(self, otherwise: _Answer, method: Any, *arguments: object) -> _Answer:
        return _or(otherwise, lambda: ray.get(method.remote(*arguments), timeout=ANSWERS_WITHIN_S))


def server_name(site: SiteName) -> str:
    """Returns the name of a server's actor."""
    return f"{site}/server"


def _found(site: SiteName) -> _RemotePeer | None:
    try:
        return _RemotePeer(site, ray.get_actor(server_name(site)))
    except ValueError:
        return None  # it has ended


def _rooms_at_once(peers: Mapping[SiteName, Peer], now_us: int, until_us: int) -> Sequence[Room]:
    """Asks all servers at the same time; one that does not answer holds up no other."""
    remote = [peer for _, peer in sorted(peers.items()) if isinstance(peer, _RemotePeer)]
    if not remote:
        return ()
    asked = {peer.server.room.remote(now_us, until_us): peer.site for peer in remote}
    answered, late = ray.wait(list(asked), num_returns=len(asked), timeout=ROOMS_WITHIN_S)
    if late:
        _LOG.warning("no answer within %g s: %s", ROOMS_WITHIN_S, ", ".join(asked[one] for one in late))
    return sorted((room for one in answered if (room := _room(one)) is not None), key=lambda room: room.site)


def _room(asked: Any) -> Room | None:
    room: Room | None = _or(None, lambda: ray.get(asked))
    return room


def _or(otherwise: _Answer, ask: Callable[[], _Answer]) -> _Answer:
    try:
        return ask()
    except RayError as error:
        _LOG.warning("no answer: %s", in_words(error))
        return otherwise
