"""Moves of inference between servers: open offers, those that last, and their ends."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ekya.fleet.policy.loans import Links, Way
from ekya.fleet.policy.moves import Move, MoveOffer, best_moves
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.lending import WINDOW_OVER, Lent
from ekya.fleet.run.peers import Made, Peer

_FORGOTTEN_US = 10_000_000
"""Time after its window after which a move is over, whether or not its server has said so."""


class Moves:
    """The coordinator's part that decides about inference, before trainings get what is left.

    Args:
        links: between the servers.
        peers: servers that are there; changes as they come and go.
        make: numbers and records a move; called with it, the number of offers, and its cost.
        record: called with every move that has ended.
    """

    def __init__(
        self,
        links: Links,
        peers: Mapping[SiteName, Peer],
        make: Callable[[Move, int, float], Made[Move]],
        record: Callable[[Made[Move]], None],
    ) -> None:
        self._links, self._peers, self._make, self._record = links, peers, make, record
        self._offers: dict[SiteName, tuple[MoveOffer, ...]] = {}
        self._open: dict[int, Made[Move]] = {}

    @property
    def numbers(self) -> frozenset[int]:
        """Numbers of the moves that last."""
        return frozenset(self._open)

    def offer(self, site: SiteName, offers: Sequence[MoveOffer]) -> None:
        """Replaces a server's open offers."""
        self._offers[site] = tuple(offers)

    def waiting(self, now_us: int) -> list[MoveOffer]:
        """Returns the open offers whose window is not over."""
        return [
            offer for _, offers in sorted(self._offers.items()) for offer in offers if offer.until_us > now_us
        ]

    def beside(self, rooms: Iterable[Room]) -> tuple[Room, ...]:
        """Returns the spare capacity that is left beside all moves."""
        taken: dict[SiteName, int] = {}
        for made in self._open.values():
            taken[made.loan.host] = taken.get(made.loan.host, 0) + made.loan.share_milli
        left = (room.beside(taken[room.site]) if room.site in taken else room for room in rooms)
        return tuple(room for room in left if room.loss)

    def decide(self, now_us: int, rooms: Iterable[Room]) -> None:
        """Makes the moves that are worth most, and grants them.

        Args:
            now_us: time of the decision.
            rooms: spare capacity beside all trainings.
        """
        for made in list(self._open.values()):
            if made.loan.until_us + _FORGOTTEN_US < now_us:
                self._end(made, now_us, WINDOW_OVER, made.loan.moved_mb(now_us))
        offers = [offer for offer in self.waiting(now_us) if offer.site in self._peers]
        running = [made.loan for made in self._open.values()]
        for move in best_moves(now_us, offers, self.beside(rooms), self._links, running):
            made = self._make(move, len(offers), move.lost * move.lasts_s)
            self._open[made.number] = made
            self._offers.pop(move.site, None)
            lent = Lent(move.share_milli, move.begins_us, move.until_us)
            self._peers[move.host].lend(made.number, lent)
            self._peers[move.site].grant(made.loan)

    def over(self, move: Move, now_us: int, outcome: str, moved_mb: Mapping[Way, float]) -> None:
        """Ends a move whose server classifies the frames itself again."""
        made = self._open.get(move.number)
        if made is not None:
            self._end(made, now_us, outcome, moved_mb)

    def leave(self, site: SiteName) -> None:
        """Drops the offers of a server whose run has ended, and sends home what others had there."""
        self._offers.pop(site, None)
        for made in list(self._open.values()):
            if made.loan.host == site:
                at_us = made.loan.until_us
                self._end(made, at_us, f"{site} has ended", made.loan.moved_mb(at_us))
                self._tell(made)

    def died(self, site: SiteName, at_us: int, reason: str) -> None:
        """Ends the moves of a dead server, and those to it."""
        for made in list(self._open.values()):
            if site in (made.loan.site, made.loan.host):
                self._end(made, at_us, reason, made.loan.moved_mb(at_us))
                self._tell(made)

    def _tell(self, made: Made[Move]) -> None:
        if made.loan.site in self._peers:
            self._peers[made.loan.site].keep_moves(self.numbers, made.outcome)

    def _end(self, made: Made[Move], at_us: int, outcome: str, moved_mb: Mapping[Way, float]) -> None:
        made.outcome, made.over_us, made.moved_mb = outcome, at_us, moved_mb
        del self._open[made.number]
        self._record(made)
        if made.loan.host in self._peers:
            self._peers[made.loan.host].take_back(made.number, at_us)
