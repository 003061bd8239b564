"""The coordinator of one service: it decides about that one's offers over what its lenders can spare."""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S, StreamId
from ekya.fleet.policy.loans import Links, Loan, Way
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.registry import Tier
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.coordinator import LoanCoordinator
from ekya.fleet.run.lending import Answer, Lends, Made, Peer
from ekya.fleet.run.live.lender import Lender
from ekya.fleet.run.loan_file import UNDER_WAY, LoanFile, learnt, read_loans

_LOG = logging.getLogger(__name__)

LOOKS_EVERY_S = 2.0
"""Interval in which lenders are asked what they can spare."""

_USUAL_US = 10 * US_PER_S
"""Time until the end of the window that is asked for before anything is offered."""


class OwnCoordinator:
    """An ``AboveServers``. Thread-safe; no call waits for a link, except for the answer to one loan.

    Of what other services borrow it knows nothing: a host lends to who asks first, at the price that it
    tells.

    Args:
        site: of the service.
        lenders: of which it borrows.
        tier: decides.
        seed: of all random draws.
        loans: file in which loans are recorded, and from which what was learnt of former ones is read.
        now_us: run time.

    Attributes:
        lenders: by name.
    """

    def __init__(
        self,
        site: SiteName,
        lenders: Sequence[Lender],
        tier: Tier,
        seed: int,
        loans: Path,
        now_us: Callable[[], int],
    ) -> None:
        self._site, self._now_us = site, now_us
        self.lenders = {lender.site: lender for lender in lenders}
        self._file = LoanFile(loans)  # first, since it removes a line that a crash has cut off
        before = read_loans(loans)
        for number, loan in enumerate(before):
            if loan.outcome == UNDER_WAY:
                self._file.record_lost(number)
        ways = {way: one.mb_s for one in lenders for way in ((site, one.site), (one.site, site))}
        # The real length of a training is unknown: it keeps its share until it is over, or its window is.
        self._above = LoanCoordinator(
            tier,
            Links(ways),
            seed,
            self._write,
            held_until=lambda loan: loan.offer.until_us,
            rooms=self._known_rooms,
            promises=learnt(before),
            first=len(before),
        )
        for lender in lenders:
            self._above.add_lender(lender.site, lender)
        self._lock = threading.RLock()
        self._rooms: dict[SiteName, Room] = {}
        self._until_us = 0
        self._closed = threading.Event()
        self._asks = ThreadPoolExecutor(max(1, len(lenders)), thread_name_prefix="lenders")
        self._thread = threading.Thread(target=self._look_around, name="lending", daemon=True)

    def open_for(self, peer: Peer) -> None:
        """Begins to look for loans for this server."""
        self._above.add_server(self._site, peer)
        self._thread.start()

    def answer_offers(self, site: SiteName, now_us: int, offers: Sequence[TrainingOffer]) -> Answer:
        with self._lock:
            self._until_us = max((offer.until_us for offer in offers), default=self._until_us)
            try:
                return self._above.answer_offers(site, now_us, offers)
            except UserError as error:
                _LOG.warning("nothing is borrowed: %s", error)
                return Answer()

    def would_get(self, now_us: int, offer: TrainingOffer) -> Answer:
        """Returns the answer that an offer would get now; nothing is made."""
        with self._lock:
            return self._above.would_get(now_us, offer)

    def withdraw_offers(self, site: SiteName, streams: Collection[StreamId]) -> None:
        with self._lock:
            self._above.withdraw_offers(site, streams)

    def end_loan(
        self, site: SiteName, stream: StreamId, now_us: int, outcome: str, moved_mb: Mapping[Way, float]
    ) -> None:
        with self._lock:
            self._above.end_loan(site, stream, now_us, outcome, moved_mb)

    def add_later_traffic(self, site: SiteName, stream: StreamId, moved_mb: Mapping[Way, float]) -> None:
        """Adds traffic that a loan caused after its end."""
        with self._lock:
            self._above.add_later_traffic(site, stream, moved_mb)

    def record_gain(self, loan: Loan, came: float, serves_after_us: int | None) -> None:
        with self._lock:
            self._above.record_gain(loan, came, serves_after_us)

    def more_room(self, now_us: int) -> None:
        """Does nothing: the server lends to others, which ask it."""

    def lose_host(self, site: SiteName) -> None:
        """Moves trainings at a host that is lost elsewhere, or fails them. It may lend again."""
        with self._lock:
            self._rooms.pop(site, None)
            self._above.on_server_death(site, self._now_us())
            self._above.add_lender(site, self.lenders[site])

    def close(self) -> None:
        """Gives back all loans that have ended, and makes no more. May be called twice."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        for lender in self.lenders.values():
            lender.close()
        self._asks.shutdown()
        self._file.close()

    def _look_around(self) -> None:
        while not self._closed.wait(LOOKS_EVERY_S):
            now_us = self._now_us()
            until_us = self._until_us if self._until_us > now_us else now_us + _USUAL_US
            times = (repeat(now_us), repeat(until_us))
            asked = self._asks.map(Lender.spare_room, self.lenders.values(), *times)
            rooms = {room.site: room for room in asked if room is not None}
            try:
                with self._lock:
                    self._rooms = rooms
                    self._above.more_room(now_us)
            except Exception:
                _LOG.exception("a look at what could be borrowed fails, and is repeated")

    def _write(self, made: Made) -> None:
        """Records a loan. Without a record none is made; the end of one is only missed in the file."""
        try:
            self._file(made)
        except UserError as error:
            if not made.outcome:
                raise
            _LOG.warning("the end of a loan is not recorded: %s", error)

    def _known_rooms(self, lenders: Mapping[SiteName, Lends], now_us: int, until_us: int) -> Sequence[Room]:
        return [room for site, room in sorted(self._rooms.items()) if site in lenders]
