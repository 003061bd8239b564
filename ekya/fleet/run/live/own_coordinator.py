"""The coordinator of one service: it decides about that one's offers over what its lenders can spare."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.registry import Tier
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.coordinator import LoanCoordinator
from ekya.fleet.run.lending import Borrows, Lends, Made
from ekya.fleet.run.live.lender import Lender
from ekya.fleet.run.loan_file import UNDER_WAY, LoanFile, learnt, read_loans

_LOG = logging.getLogger(__name__)

LOOKS_EVERY_S = 2.0
"""Interval in which lenders are asked what they can spare."""

_USUAL_US = 10 * US_PER_S
"""Time until the end of the window that is asked for before anything is offered."""


class OwnCoordinator:
    """Finds loans for one service. Thread-safe; no call waits for a link, except for the answer to one loan.

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
        coordinator: to which its offers go.
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
        self.coordinator = LoanCoordinator(
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
            self.coordinator.add_lender(lender.site, lender)
        self._rooms: dict[SiteName, Room] = {}
        self._until_us = 0
        self._closed = threading.Event()
        self._asks = ThreadPoolExecutor(max(1, len(lenders)), thread_name_prefix="lenders")
        self._thread = threading.Thread(target=self._look_around, name="lending", daemon=True)

    def open_for(self, borrower: Borrows) -> None:
        """Begins to look for loans for this server."""
        self.coordinator.add_borrower(self._site, borrower)
        self._thread.start()

    def lose_host(self, site: SiteName) -> None:
        """Moves trainings at a host that is lost elsewhere, or fails them. It may lend again."""
        with self.coordinator.lock:
            self._rooms.pop(site, None)
            self.coordinator.on_server_death(site, self._now_us())
            self.coordinator.add_lender(site, self.lenders[site])

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
                with self.coordinator.lock:
                    self._rooms = rooms
                    self.coordinator.decide_again(now_us)
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
        self._until_us = until_us
        return [room for site, room in sorted(self._rooms.items()) if site in lenders]
