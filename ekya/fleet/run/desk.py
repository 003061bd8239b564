"""Loan desk: servers offer retrainings, lend spare capacity, and end or re-plan loans when a server dies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ekya.core.units import StreamId
from ekya.fleet.policy.brokering import Agreed, Broker
from ekya.fleet.policy.lateness import Lateness
from ekya.fleet.policy.loans import Links, Loan, Way, left_behind, loan_cost
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import Offer
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.elsewhere import Interrupted
from ekya.fleet.run.lending import ARRIVED, GIVEN_UP, Lent


class Peer(Protocol):
    """A server as the loan desk sees it."""

    def room(self, now_us: int, until_us: int) -> Room | None:
        """Returns the capacity that it could lend between the two times; None: none."""

    def lend(self, number: int, lent: Lent) -> None:
        """Records that the server lends a share under this loan number."""

    def take_back(self, number: int, at_us: int) -> None:
        """Returns a lent share to the server before the loan's end."""

    def ask_again(self) -> None:
        """Makes the server plan again, because other servers have new spare capacity."""

    def interrupted(self, stream: StreamId, now_us: int) -> Interrupted:
        """Returns the progress of one of its retrainings when a host of it has died."""

    def go_on(self, stream: StreamId, loan: Loan) -> None:
        """Continues the rest of that retraining under the new loan."""

    def fail(self, stream: StreamId, reason: str, now_us: int) -> None:
        """Ends that retraining: no other server has capacity for the rest."""


@dataclass(slots=True, eq=False)
class Made:
    """A loan and its outcome.

    Attributes:
        number: of the loan.
        loan: as it was agreed.
        outcome: empty while the loan lasts; then how it ended.
        over_us: when it ended.
        moved_mb: traffic over each link.
    """

    number: int
    loan: Loan
    outcome: str = ""
    over_us: int = 0
    moved_mb: Mapping[Way, float] = field(default_factory=dict)


class LoanDesk:
    """Agrees on loans, one after the other.

    Args:
        broker: finds loans for offers.
        links: between the servers.
        seed: passed to the broker.
        record: called with every loan when it is made and when it is over, before any server acts on it.
        held_until: when hosts get their shares back at the latest. The default, the loan's foreseen end, is
            right where a training takes exactly as long as foreseen.
    """

    def __init__(
        self,
        broker: Broker,
        links: Links,
        seed: int = 0,
        record: Callable[["Made"], None] = lambda made: None,
        held_until: Callable[[Loan], int] = lambda loan: loan.ends_us,
    ) -> None:
        self._broker, self._links, self._seed = broker, links, seed
        self._record, self._held_until = record, held_until
        self._late = Lateness()
        self._peers: dict[SiteName, Peer] = {}
        self._open: dict[tuple[SiteName, StreamId], Made] = {}
        self._ended: dict[tuple[SiteName, StreamId], Made] = {}
        self.loans: list[Made] = []

    @property
    def moved_mb(self) -> Mapping[Way, float]:
        """Traffic over each link, per direction: crops, models and snapshots, never frames."""
        return _together(*(made.moved_mb for made in self.loans))

    def join(self, site: SiteName, peer: Peer) -> None:
        """Registers a server."""
        self._peers[site] = peer

    def leave(self, site: SiteName) -> None:
        """Removes a server whose run has ended."""
        self._peers.pop(site, None)

    def agree(self, now_us: int, offered: Sequence[Offer]) -> Agreed:
        """Makes the loan with the greatest benefit minus cost for one of a server's offers.

        Each offer is evaluated alone, since one loan changes the value of the others; the borrower calls
        again for the rest.
        """
        if not offered:
            return Agreed()
        rooms = self._rooms(now_us, offered)
        found = [self._broker(now_us, [offer], rooms, self._links, self._seed) for offer in offered]
        loans = [loan for one in found for loan in one.loans]
        best = max(loans, key=lambda loan: loan.brings - loan_cost(loan, rooms), default=None)
        if best is not None:
            self._make(best)
        return Agreed(best, {stream: why for one in found for (_, stream), why in one.refused.items()})

    def over(
        self, site: SiteName, stream: StreamId, now_us: int, outcome: str, moved_mb: Mapping[Way, float]
    ) -> None:
        """Ends a loan: its weights have arrived, are too late, or will never come."""
        made = self._open.pop((site, stream), None)
        if made is not None and outcome == ARRIVED:
            self._late.arrived(made.loan, now_us)
        elif made is not None and outcome == GIVEN_UP:
            self._late.missed(made.loan, now_us)
        if made is None:
            # A host had died, and the others worked on until the borrower stopped the training.
            self.moved_since(site, stream, moved_mb)
        else:
            self._end(made, now_us, outcome, moved_mb)

    def moved_since(self, site: SiteName, stream: StreamId, moved_mb: Mapping[Way, float]) -> None:
        """Adds traffic that the stream's last ended loan caused after its end, until processes stop."""
        made = self._ended.get((site, stream))
        if made is not None and any(moved_mb.values()):
            made.moved_mb = _together(made.moved_mb, moved_mb)
            self._record(made)

    def more_room(self, site: SiteName) -> None:
        """Makes all other servers plan again, because this one could lend more than before."""
        for other, peer in sorted(self._peers.items()):
            if other != site:
                peer.ask_again()

    def died(self, site: SiteName, at_us: int) -> None:
        """Ends the dead server's own loans; moves what it did for others elsewhere, or fails it.

        The traffic of its own loans cannot be measured any more and is recorded as foreseen.
        """
        self._peers.pop(site, None)
        reason = f"{site} died"
        for borrower, stream in [key for key in self._open if key[0] == site]:
            made = self._open.pop((borrower, stream))
            self._end(made, at_us, reason, made.loan.moved_mb(at_us))
        for key, made in [(key, made) for key, made in self._open.items() if site in made.loan.hosts]:
            del self._open[key]
            self._go_on(made, at_us, site)

    def _make(self, loan: Loan) -> None:
        made = Made(len(self.loans), loan)
        self._record(made)
        self.loans.append(made)
        self._open[loan.offer.site, loan.offer.stream] = made
        to_us = self._held_until(loan)
        for part in loan.parts:
            self._peers[part.host].lend(made.number, Lent(part.share_milli, loan.begins_us, to_us))

    def _end(self, made: Made, at_us: int, outcome: str, moved_mb: Mapping[Way, float]) -> None:
        made.outcome, made.over_us, made.moved_mb = outcome, at_us, moved_mb
        self._ended[made.loan.offer.site, made.loan.offer.stream] = made
        self._record(made)
        for host in made.loan.hosts:
            if host in self._peers:
                self._peers[host].take_back(made.number, at_us)

    def _go_on(self, made: Made, at_us: int, gone: SiteName) -> None:
        """Moves the rest of a training to other servers, starting at its last snapshot."""
        offer, reason = made.loan.offer, f"{gone} died"
        peer = self._peers.get(offer.site)
        if peer is None:
            # The borrower's run has ended and does not need the weights.
            self._end(made, at_us, reason, made.loan.moved_mb(at_us))
            return
        stood = peer.interrupted(offer.stream, at_us)
        self._end(made, at_us, reason, stood.moved_mb)
        rest = _rest_of(offer, stood.epochs_left, at_us, left_behind(made.loan, gone))
        loan = self.agree(at_us, [rest]).loan
        if loan is None:
            peer.fail(offer.stream, f"{reason}, and no other server has room", at_us)
        else:
            peer.go_on(offer.stream, loan)

    def _rooms(self, now_us: int, offered: Sequence[Offer]) -> list[Room]:
        """Returns the spare capacity of the other servers until the borrower's last offer expires."""
        borrower, until_us = offered[0].site, max(offer.until_us for offer in offered)
        others = [peer for site, peer in sorted(self._peers.items()) if site != borrower]
        rooms = [room for peer in others if (room := peer.room(now_us, until_us)) is not None]
        return [replace(room, late_us=self._late.of(room.site)) for room in rooms]


def _together(*moved_mb: Mapping[Way, float]) -> dict[Way, float]:
    whole: dict[Way, float] = {}
    for moved in moved_mb:
        for way, size_mb in moved.items():
            whole[way] = whole.get(way, 0.0) + size_mb
    return whole


def _rest_of(offer: Offer, epochs: int, at_us: int, there_mb: Mapping[SiteName, float]) -> Offer:
    """Returns an offer for the rest of a retraining; its own server does no part of it any more."""
    gpu_s = offer.gpu_s * epochs / offer.epochs
    return replace(offer, epochs=epochs, gpu_s=gpu_s, at_home=0.0, now_us=at_us, crops_there_mb=there_mb)
