"""The coordinator of live servers, and how servers and it reach each other."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYetError
from pathlib import Path
from typing import Any, TypeVar

from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Links, Loan, Way
from ekya.fleet.policy.moves import Move, MoveOffer
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import Offer
from ekya.fleet.policy.rooms import Room
from ekya.fleet.policy.tiers import Tier
from ekya.fleet.run.calls import CallError, Handle
from ekya.fleet.run.coordinator import Coordinator
from ekya.fleet.run.elsewhere import Interrupted
from ekya.fleet.run.lending import GIVEN_UP, Lent
from ekya.fleet.run.loan_file import UNDER_WAY, LoanFile, learnt, read_loans
from ekya.fleet.run.peers import Answer, Peer

_LOG = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

ROOMS_WITHIN_S = 2.0
"""Time limit of asking all servers for their spare capacity; those that have not replied then have none."""

ANSWERS_WITHIN_S = 10.0
"""Timeout of another request to a server."""

HEARD_WITHIN_S = 30.0
"""Timeout of a call to the coordinator, which has others to answer; afterwards it is not reached."""

DECIDES_WITHIN_S = 5.0
"""Timeout of a request to the coordinator, during which a server's control loop waits."""

REPEATS_S = 60.0
"""Time for which a server repeats what the coordinator must know; it asks for nothing meanwhile."""

REPEATS_EVERY_S = 1.0


class LiveCoordinator:
    """Coordinator of all servers. One call at a time, so that no capacity is lent twice.

    One that is started again after a death takes up the loans that servers still have. Meanwhile these go
    on, and servers plan by themselves.

    Args:
        tier: decides.
        links: between the servers.
        seed: of all random draws.
        loans: file in which loans are recorded.
        servers: those that run already, where it is started again.
    """

    def __init__(
        self, tier: Tier, links: Links, seed: int, loans: Path, servers: Mapping[SiteName, Handle]
    ) -> None:
        file = LoanFile(loans)  # first, since it removes a line that a crash has cut off
        before = read_loans(loans)
        # The real length of a training is unknown: it keeps its share until it is over, or its window is.
        self._coordinator = Coordinator(
            tier,
            links,
            seed,
            file,
            held_until=lambda loan: loan.offer.until_us,
            rooms=_rooms_at_once,
            promises=learnt(before),
        )
        peers = {site: _RemotePeer(site, server) for site, server in servers.items()}
        go_on = self._coordinator.take_up(len(before), peers)
        for number, loan in enumerate(before):
            if loan.outcome == UNDER_WAY and number not in go_on:
                file.lost(number)

    def ready(self) -> None:
        """Returns when all earlier calls have been handled."""

    def join(self, site: SiteName, server: Handle) -> None:
        """Registers a server, also one that was cut off and is reached again."""
        self._coordinator.join(site, _RemotePeer(site, server))

    def leave(self, site: SiteName) -> None:
        """Removes a server whose run has ended."""
        self._coordinator.leave(site)

    def died(self, site: SiteName, at_us: int) -> None:
        """Handles a server that died or is not reached."""
        self._coordinator.died(site, at_us)

    def ask(
        self, site: SiteName, now_us: int, offers: Sequence[Offer], moves: Sequence[MoveOffer] | None = None
    ) -> Answer:
        """Forwards to ``Coordinator``, as do the methods below."""
        return self._coordinator.ask(site, now_us, offers, moves)

    def would_get(self, now_us: int, offer: Offer) -> Answer:
        """Returns the answer that an offer would get now."""
        return self._coordinator.would_get(now_us, offer)

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

    def move_over(self, move: Move, now_us: int, outcome: str, moved_mb: Mapping[Way, float]) -> None:
        """Ends a move of inference."""
        self._coordinator.move_over(move, now_us, outcome, moved_mb)

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
    """Client of the coordinator for a server: an ``AboveServers``. Without it a server works alone.

    Its calls reach the coordinator one after the other, in their order.

    Args:
        coordinator: where it is.
    """

    def __init__(self, coordinator: Handle) -> None:
        self._coordinator = coordinator
        self._calls = ThreadPoolExecutor(1, thread_name_prefix="coordinator")
        self._unanswered: Future[Any] | None = None
        self._repeats = False
        self._room: Future[Any] | None = None
        self._ends = threading.Event()

    def reach_at(self, coordinator: Handle) -> None:
        """Sets where the coordinator is from now on."""
        self._coordinator = coordinator

    def ask(
        self, site: SiteName, now_us: int, offers: Sequence[Offer], moves: Sequence[MoveOffer] | None = None
    ) -> Answer:
        """Requests a loan; none where the coordinator is not reached or does not reply in time."""
        if self._repeats or (self._unanswered is not None and not self._unanswered.done()):
            return Answer()  # After a timeout no new request until that one has been handled.
        asked, self._unanswered = self._call(0.0, "ask", site, now_us, tuple(offers), moves), None
        try:
            answer: Answer = asked.result(DECIDES_WITHIN_S)
            return answer
        except NotYetError:
            _LOG.warning("the coordinator has not answered within %g s", DECIDES_WITHIN_S)
            self._unanswered = asked
        except CallError as error:
            _LOG.warning("the coordinator is not reached: %s", error)
        # It may still make a loan that will not begin. These calls reach it after the request.
        for offer in offers:
            self.over(offer.site, offer.stream, now_us, GIVEN_UP, {})
        return Answer()

    def withdraw(self, site: SiteName, streams: Collection[StreamId]) -> None:
        """Closes offers; this method and those below do not wait for the reply."""
        self._call(REPEATS_S, "withdraw", site, frozenset(streams))

    def over(
        self, site: SiteName, stream: StreamId, now_us: int, outcome: str, moved_mb: Mapping[Way, float]
    ) -> None:
        """Ends a loan."""
        self._call(REPEATS_S, "over", site, stream, now_us, outcome, dict(moved_mb))

    def moved_since(self, site: SiteName, stream: StreamId, moved_mb: Mapping[Way, float]) -> None:
        """Reports later traffic."""
        self._call(REPEATS_S, "moved_since", site, stream, dict(moved_mb))

    def move_over(self, move: Move, now_us: int, outcome: str, moved_mb: Mapping[Way, float]) -> None:
        """Ends a move of inference."""
        self._call(REPEATS_S, "move_over", move, now_us, outcome, dict(moved_mb))

    def came(self, loan: Loan, came: float, serves_after_us: int | None) -> None:
        """Reports what a loan has brought."""
        self._call(REPEATS_S, "came", loan, came, serves_after_us)

    def more_room(self, now_us: int) -> None:
        """Reports new spare capacity, unless an earlier report still waits."""
        if self._room is None or self._room.done():
            self._room = self._call(0.0, "more_room", now_us)

    def wait_heard(self) -> None:
        """Returns when the coordinator has handled all earlier calls, or is not reached; repeats no more."""
        wait([self._call(0.0, "ready")], ANSWERS_WITHIN_S)
        self._ends.set()

    def _call(self, repeats_s: float, method: str, *arguments: object) -> "Future[Any]":
        return self._calls.submit(self._called, repeats_s, method, arguments)

    def _called(self, repeats_s: float, method: str, arguments: tuple[object, ...]) -> Any:
        until_s = time.monotonic() + repeats_s
        while True:
            try:
                told = self._coordinator.call(method, *arguments).result(HEARD_WITHIN_S)
                self._repeats = False
                return told
            except (CallError, UserError, NotYetError) as error:
                if time.monotonic() >= until_s or self._ends.wait(REPEATS_EVERY_S):
                    self._repeats = False
                    raise CallError(str(error) or f"no answer within {HEARD_WITHIN_S:g} s") from error
                self._repeats = True


class _RemotePeer:
    """Client of a server for the coordinator; a server that is not reached has no capacity."""

    def __init__(self, site: SiteName, server: Handle) -> None:
        self.site, self.server = site, server

    def room(self, now_us: int, until_us: int) -> Room | None:
        return self._or(None, "room", now_us, until_us)

    def lend(self, number: int, lent: Lent) -> None:
        self._or(None, "lend", number, lent)

    def take_back(self, number: int, at_us: int) -> None:
        self._or(None, "take_back", number, at_us)

    def grant(self, loan: Loan | Move) -> None:
        self.server.call("grant", loan)

    def interrupted(self, stream: StreamId, now_us: int) -> Interrupted:
        return self._or(None, "interrupted", stream, now_us) or Interrupted(1, {})

    def go_on(self, stream: StreamId, loan: Loan) -> None:
        self._or(None, "go_on", stream, loan)

    def fail(self, stream: StreamId, reason: str, now_us: int) -> None:
        self._or(None, "fail", stream, reason, now_us)

    def borrowed(self) -> Sequence[Loan]:
        return self._or((), "borrowed")

    def lends(self) -> Collection[int]:
        return self._or((), "lends")

    def keep_moves(self, numbers: Collection[int], reason: str) -> None:
        self._or(None, "keep_moves", frozenset(numbers), reason)

    def _or(self, otherwise: _Answer, method: str, *arguments: object) -> _Answer:
        return _or(otherwise, lambda: self.server.call(method, *arguments).result(ANSWERS_WITHIN_S))


def _rooms_at_once(peers: Mapping[SiteName, Peer], now_us: int, until_us: int) -> Sequence[Room]:
    """Asks all servers at the same time; one that does not answer holds up no other."""
    remote = [peer for _, peer in sorted(peers.items()) if isinstance(peer, _RemotePeer)]
    asked = {peer.server.call("room", now_us, until_us): peer.site for peer in remote}
    answered, late = wait(asked, ROOMS_WITHIN_S)
    if late:
        sites = sorted(asked[one] for one in late)
        _LOG.warning("no answer within %g s: %s", ROOMS_WITHIN_S, ", ".join(sites))
    rooms = (_or(None, one.result) for one in answered)
    return sorted((room for room in rooms if room is not None), key=lambda room: room.site)


def _or(otherwise: _Answer, ask: Callable[[], _Answer]) -> _Answer:
    try:
        return ask()
    except (CallError, UserError, NotYetError) as error:
        _LOG.warning("no answer: %s", str(error) or "in time")
        return otherwise
