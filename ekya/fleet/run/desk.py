"""Where servers agree on loans: who offers, who has room, what came of it, and what is left when one dies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ekya.core.ids import StreamId
from ekya.fleet.policy.already_there import left_behind
from ekya.fleet.policy.brokering import Agreed, Broker
from ekya.fleet.policy.lateness import Lateness
from ekya.fleet.policy.loans import Links, Loan, Way, loan_cost
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import AlreadyThere, Offer
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.elsewhere import Interrupted
from ekya.fleet.run.lending import ARRIVED, GIVEN_UP, Lent


class Peer(Protocol):
    """A server, as the desk reaches it."""

    def room(self, now_us: int, until_us: int) -> Room | None:
        """What it could lend from now on until then at the latest; None: nothing."""

    def lend(self, number: int, lent: Lent) -> None:
        """It lends a share."""

    def take_back(self, number: int, at_us: int) -> None:
        """It has a share back before its time."""

    def ask_again(self) -> None:
        """There is room elsewhere that was not there before."""

    def interrupted(self, stream: StreamId, now_us: int) -> Interrupted:
        """A host of one of its retrainings has died."""

    def go_on(self, stream: StreamId, loan: Loan) -> None:
        """The rest of that retraining runs there."""

    def fail(self, stream: StreamId, reason: str, now_us: int) -> None:
        """Nobody has room for the rest."""


@dataclass(slots=True, eq=False)
class Made:
    """A loan as it went.

    Attributes:
        number: of the loan.
        loan: as it was agreed.
        outcome: empty while it lasts; then what came of it.
        over_us: when that was.
        moved_mb: what it moved over each link.
    """

    number: int
    loan: Loan
    outcome: str = ""
    over_us: int = 0
    moved_mb: Mapping[Way, float] = field(default_factory=dict)


class LoanDesk:
    """Agrees on one loan after the other.

    Args:
        broker: finds loans for offers.
        links: between the servers.
        seed: handed to the broker.
        record: is told of every loan when it is made and when it is over, before anybody acts on it.
        held_until: when hosts have their shares back, if a loan is not over before; where a training
            takes as long as was foreseen, that is when it ends.
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
        """What crossed each link, both ways: crops, models and snapshots, never frames."""
        return _together(*(made.moved_mb for made in self.loans))

    def join(self, site: SiteName, peer: Peer) -> None:
        """A server is there."""
        self._peers[site] = peer

    def leave(self, site: SiteName) -> None:
        """A server has come to its end."""
        self._peers.pop(site, None)

    def agree(self, now_us: int, offered: Sequence[Offer]) -> Agreed:
        """The loan that brings most for what it costs, of those that one server's offers could become.

        Each offer is looked at by itself, since one loan changes what the others are worth: who offers asks
        again.
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
        """Nobody waits for a loan's weights any more: they are here, or too late, or will never come."""
        made = self._open.pop((site, stream), None)
        if made is not None and outcome == ARRIVED:
            self._late.arrived(made.loan, now_us)
        elif made is not None and outcome == GIVEN_UP:
            self._late.missed(made.loan, now_us)
        if made is None:
            # A host had died, and until who borrowed heard that nobody else has room, others went on.
            self.moved_since(site, stream, moved_mb)
        else:
            self._end(made, now_us, outcome, moved_mb)

    def moved_since(self, site: SiteName, stream: StreamId, moved_mb: Mapping[Way, float]) -> None:
        """What the stream's last loan that is over has moved since it was: processes end within a step."""
        made = self._ended.get((site, stream))
        if made is not None and any(moved_mb.values()):
            made.moved_mb = _together(made.moved_mb, moved_mb)
            self._record(made)

    def more_room(self, site: SiteName) -> None:
        """A server could lend what it could not before."""
        for other, peer in sorted(self._peers.items()):
            if other != site:
                peer.ask_again()

    def died(self, site: SiteName, at_us: int) -> None:
        """Its own loans end; what it did for others goes on elsewhere, or never comes.

        What its own loans have moved nobody knows any more: it counts as was foreseen.
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
        """The rest of a training goes to others, from its last snapshot on."""
        offer, reason = made.loan.offer, f"{gone} died"
        peer = self._peers.get(offer.site)
        if peer is None:
            # Its server has come to its end, and nobody waits.
            self._end(made, at_us, reason, made.loan.moved_mb(at_us))
            return
        stood = peer.interrupted(offer.stream, at_us)
        self._end(made, at_us, reason, stood.moved_mb)
        rest = _rest_of(offer, stood.epochs_left, at_us, left_behind(made.loan, gone))
        loan = self.agree(at_us, [rest]).loan
        if loan is None:
            peer.fail(offer.stream, f"{reason}, and nobody else has room", at_us)
        else:
            peer.go_on(offer.stream, loan)

    def _rooms(self, now_us: int, offered: Sequence[Offer]) -> list[Room]:
        """What others can lend to the server whose offers these are, until the last of them is over."""
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


def _rest_of(offer: Offer, epochs: int, at_us: int, already_there: Mapping[SiteName, AlreadyThere]) -> Offer:
    """What is left of a retraining; at home nothing of it is done any more."""
    gpu_s = offer.gpu_s * epochs / offer.epochs
    return replace(offer, epochs=epochs, gpu_s=gpu_s, at_home=0.0, now_us=at_us, already_there=already_there)
