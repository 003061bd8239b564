"""The coordinator of live servers, and how servers and it reach each other."""

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYetError
from functools import partial
from pathlib import Path
from typing import Any

from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Links, Loan
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.registry import Tier
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.calls import CallError, Handle, PartHandle
from ekya.fleet.run.coordinator import LoanCoordinator
from ekya.fleet.run.elsewhere import Interrupted
from ekya.fleet.run.lending import GIVEN_UP, Answer, Peer
from ekya.fleet.run.loan_file import UNDER_WAY, LoanFile, learnt, read_loans

_LOG = logging.getLogger(__name__)

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


def live_coordinator(
    tier: Tier, links: Links, seed: int, loans: Path, peers: Mapping[SiteName, Peer]
) -> LoanCoordinator:
    """Makes the coordinator of live servers.

    One that is started again after a death takes up the loans that servers still have. Meanwhile these go
    on, and servers plan by themselves.

    Args:
        tier: decides.
        links: between the servers.
        seed: of all random draws.
        loans: file in which loans are recorded.
        peers: servers that run already, where it is started again.
    """
    file = LoanFile(loans)  # first, since it removes a line that a crash has cut off
    before = read_loans(loans)
    # The real length of a training is unknown: it keeps its share until it is over, or its window is.
    coordinator = LoanCoordinator(
        tier,
        links,
        seed,
        file,
        held_until=lambda loan: loan.offer.until_us,
        rooms=_rooms_at_once,
        promises=learnt(before),
    )
    go_on = coordinator.take_up(len(before), peers)
    for number, loan in enumerate(before):
        if loan.outcome == UNDER_WAY and number not in go_on:
            file.record_lost(number)
    return coordinator


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
        # These are repeated and do not wait for the reply.
        self.withdraw_offers, self.end_loan, self.add_later_traffic, self.record_gain = (
            partial(self._tell, method)
            for method in ("withdraw_offers", "end_loan", "add_later_traffic", "record_gain")
        )

    def reach_at(self, coordinator: Handle) -> None:
        """Sets where the coordinator is from now on."""
        self._coordinator = coordinator

    def answer_offers(self, site: SiteName, now_us: int, offers: Sequence[TrainingOffer]) -> Answer:
        """Requests a loan; none where the coordinator is not reached or does not reply in time."""
        if self._repeats or (self._unanswered is not None and not self._unanswered.done()):
            return Answer()  # After a timeout no new request until that one has been handled.
        asked, self._unanswered = self._call(0.0, "answer_offers", site, now_us, tuple(offers)), None
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
            self.end_loan(offer.site, offer.stream, now_us, GIVEN_UP, {})
        return Answer()

    def more_room(self, now_us: int) -> None:
        """Reports new spare capacity, unless an earlier report still waits."""
        if self._room is None or self._room.done():
            self._room = self._call(0.0, "more_room", now_us)

    def wait_heard(self) -> None:
        """Returns when the coordinator has handled all earlier calls, or is not reached; repeats no more."""
        wait([self._call(0.0, "wait_for_earlier_calls")], ANSWERS_WITHIN_S)
        self._ends.set()

    def _tell(self, method: str, *arguments: object) -> None:
        self._call(REPEATS_S, method, *arguments)

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


class RemotePeer:
    """Client of a server for the coordinator: a ``Peer``. One that is not reached has no capacity.

    Args:
        server: of the object with the methods of a ``Peer``.
    """

    def __init__(self, server: Handle) -> None:
        self.server = server
        self.lend_share, self.take_back_share, self.continue_training, self.fail_training = (
            partial(self._asked, method)
            for method in ("lend_share", "take_back_share", "continue_training", "fail_training")
        )

    def spare_room(self, now_us: int, until_us: int) -> Room | None:
        """Waits for the answer, as do all but ``grant_loan``."""
        room: Room | None = self._asked("spare_room", now_us, until_us)
        return room

    def grant_loan(self, loan: Loan) -> None:
        """Does not wait for the server."""
        self.server.call("grant_loan", loan)

    def training_so_far(self, stream: StreamId, now_us: int) -> Interrupted:
        """Returns one epoch to do where the server is not reached."""
        return self._asked("training_so_far", stream, now_us) or Interrupted(1, {})

    def borrowed_loans(self) -> Sequence[Loan]:
        """Returns none where the server is not reached, as does ``lent_numbers``."""
        return self._asked("borrowed_loans") or ()

    def lent_numbers(self) -> Collection[int]:
        """Returns the numbers of the loans."""
        return self._asked("lent_numbers") or ()

    def _asked(self, method: str, *arguments: object) -> Any:
        return _or_none(self.server.call(method, *arguments), ANSWERS_WITHIN_S)


def peer_at(server: Handle) -> RemotePeer:
    """Returns the client of a ``SiteRun``."""
    return RemotePeer(PartHandle(server, "call_peer"))


def _rooms_at_once(peers: Mapping[SiteName, Peer], now_us: int, until_us: int) -> Sequence[Room]:
    """Asks all servers at the same time; one that does not answer holds up no other."""
    remote = {site: peer for site, peer in sorted(peers.items()) if isinstance(peer, RemotePeer)}
    asked = {peer.server.call("spare_room", now_us, until_us): site for site, peer in remote.items()}
    answered, late = wait(asked, ROOMS_WITHIN_S)
    if late:
        sites = sorted(asked[one] for one in late)
        _LOG.warning("no answer within %g s: %s", ROOMS_WITHIN_S, ", ".join(sites))
    rooms = (_or_none(one, None) for one in answered)
    return sorted((room for room in rooms if room is not None), key=lambda room: room.site)


def _or_none(told: "Future[Any]", within_s: float | None) -> Any:
    try:
        return told.result(within_s)
    except (CallError, UserError, NotYetError) as error:
        _LOG.warning("no answer: %s", str(error) or "in time")
        return None
