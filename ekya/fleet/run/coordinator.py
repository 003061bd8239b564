"""Coordinator: holds all open offers and running loans, asks the policy about the whole, and acts on it."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Links, Loan, Way, loan_cost
from ekya.fleet.policy.market import Deal, Key, Market, key_of
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.promises import Promises
from ekya.fleet.policy.registry import Tier
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.lending import ARRIVED, GIVEN_UP, Answer, Borrows, Lends, Lent, Made

REFUSED = "refused by its host"
"""Outcome of a loan whose host had lent to others meanwhile, or was not reached."""

Rooms = Callable[[Mapping[SiteName, Lends], int, int], Sequence[Room]]
"""Asks servers for what they could lend between two times; those that lend nothing are left out."""


def rooms_in_turn(peers: Mapping[SiteName, Lends], now_us: int, until_us: int) -> Sequence[Room]:
    """Asks one server after the other."""
    rooms = (peer.spare_room(now_us, until_us) for _, peer in sorted(peers.items()))
    return [room for room in rooms if room is not None]


class LoanCoordinator:
    """Decides about all servers' offers together. Thread-safe.

    An offer stays open until its server withdraws or replaces it, it gets a loan, or its window ends. A
    server's offers change their value with each loan that it gets, so of several loans for one server only
    the one that is worth most is made; the server offers the others again.

    Args:
        tier: decides.
        links: between the servers.
        seed: passed to the tier.
        record: called with every loan when it is made and when it is over, before any server acts on it.
        held_until: when hosts get their shares back at the latest. The default, the loan's foreseen end, is
            right where a training takes exactly as long as foreseen.
        rooms: asks several servers for their rooms.
        promises: with what was learnt of former loans.
        first: number of the next loan.

    Attributes:
        lock: held by each call, and while it calls servers.
    """

    def __init__(
        self,
        tier: Tier,
        links: Links,
        seed: int = 0,
        record: Callable[[Made], None] = lambda made: None,
        held_until: Callable[[Loan], int] = lambda loan: loan.ends_us,
        rooms: Rooms = rooms_in_turn,
        promises: Promises | None = None,
        first: int = 0,
    ) -> None:
        self._tier, self._links, self._seed = tier, links, seed
        self._record, self._held_until, self._ask_rooms = record, held_until, rooms
        self._promises = promises or Promises()
        self.lock = threading.RLock()
        self._borrowers: dict[SiteName, Borrows] = {}
        self._lenders: dict[SiteName, Lends] = {}
        self._offers: dict[SiteName, tuple[TrainingOffer, ...]] = {}
        self._rooms: tuple[Room, ...] = ()
        self._refused: Mapping[Key, str] = {}
        self._open: dict[Key, Made] = {}
        self._decided_us = 0
        self._next = first
        self.loans: list[Made] = []

    @property
    def moved_mb(self) -> Mapping[Way, float]:
        """Traffic over each link, per direction: crops, models, snapshots and answers, never whole frames."""
        whole: dict[Way, float] = {}
        for made in self.loans:
            for way, size_mb in made.moved_mb.items():
                whole[way] = whole.get(way, 0.0) + size_mb
        return whole

    def add_borrower(self, site: SiteName, borrower: Borrows) -> None:
        """Registers a server that may borrow."""
        self._borrowers[site] = borrower

    def add_lender(self, site: SiteName, lender: Lends) -> None:
        """Registers a server that may lend."""
        self._lenders[site] = lender

    def remove_server(self, site: SiteName) -> None:
        """Removes a server whose run has ended."""
        self._borrowers.pop(site, None)
        self._lenders.pop(site, None)
        self._offers.pop(site, None)

    def answer_offers(self, site: SiteName, now_us: int, offers: Sequence[TrainingOffer]) -> Answer:
        """Replaces a server's open offers, decides about all servers' offers, and answers this one.

        Loans that other servers get by this are granted to them.
        """
        with self.lock:
            before = {(one.stream, one.until_us): one.arrived_us for one in self._offers.get(site, ())}
            self._offers[site] = tuple(
                replace(one, opened_us=before.get((one.stream, one.until_us), one.now_us)) for one in offers
            )
            mine = self._decide(now_us, site) if offers else None
            why_not = {stream: why for (other, stream), why in self._refused.items() if other == site}
            return Answer(mine, why_not if mine is None else {})

    def would_get(self, now_us: int, offer: TrainingOffer) -> Answer:
        """Returns the answer that an offer would get now; nothing is made."""
        key = key_of(offer)
        with self.lock:
            others = [other for other in self._waiting(now_us) if key_of(other) != key]
            offers = [*others, self._promises.with_expected_gain(offer)]
            self._see_rooms(now_us, offers)
            deal = self._deal(now_us, offers)
        loan = next((loan for loan in deal.loans if key_of(loan.offer) == key), None)
        return Answer(loan, {offer.stream: deal.refused[key]} if key in deal.refused else {})

    def withdraw_offers(self, site: SiteName, streams: Collection[StreamId]) -> None:
        """Closes offers of retrainings that their own server has begun."""
        with self.lock:
            kept = (offer for offer in self._offers.get(site, ()) if offer.stream not in streams)
            self._offers[site] = tuple(kept)

    def more_room(self, site: SiteName, now_us: int) -> None:
        """Decides again, because a server could lend more than before; nothing where it is no lender here."""
        if site in self._lenders:
            self.decide_again(now_us)

    def decide_again(self, now_us: int) -> None:
        """Decides about all that is open and runs, because something has changed."""
        with self.lock:
            self._decide(now_us)

    def decide_if_due(self, now_us: int) -> None:
        """Decides again if the policy wants that after so long."""
        every_us = self._tier.every_us
        if (
            every_us is not None
            and now_us - self._decided_us >= every_us
            and (self._open or self._waiting(now_us))
        ):
            self._decide(now_us)

    def end_loan(
        self, site: SiteName, stream: StreamId, now_us: int, outcome: str, moved_mb: Mapping[Way, float]
    ) -> None:
        """Ends a loan: its weights have arrived, are too late, or will never come."""
        with self.lock:
            made = self._open.pop((site, stream), None)
            if made is None:
                return  # Its host had died.
            if outcome == ARRIVED:
                self._promises.late.record_delay(made.loan.host, made.loan.late_by(now_us))
            elif outcome == GIVEN_UP:
                self._promises.late.record_least_delay(made.loan.host, made.loan.late_by(now_us))
            self._end(made, now_us, outcome, moved_mb)

    def record_gain(self, loan: Loan, came: float, serves_after_us: int | None) -> None:
        """Learns what a loan has brought, in accuracy times seconds, and when its weights served."""
        with self.lock:
            self._promises.record_gain(loan.offer.site, loan.promises, came, serves_after_us)
            for made in self.loans:
                if made.number == loan.number:
                    made.came, made.serves_after_us = came, serves_after_us
                    if made.outcome:
                        self._record(made)

    def on_server_death(self, site: SiteName, at_us: int) -> None:
        """Ends the dead server's own loans; moves what it did for others elsewhere, or fails it.

        The traffic of its own loans cannot be measured any more and is recorded as foreseen.
        """
        reason = f"{site} died"
        with self.lock:
            self.remove_server(site)
            for made in [made for key, made in self._open.items() if key[0] == site]:
                self._end(made, at_us, reason, made.loan.moved_mb(at_us))
            for made in [made for made in self._open.values() if site == made.loan.host]:
                self._go_on_without(made, at_us, site)

    def _waiting(self, now_us: int) -> list[TrainingOffer]:
        """Returns the open offers, as of now, with the gain that is expected to come."""
        return [
            self._promises.with_expected_gain(replace(offer, now_us=now_us))
            for _, offers in sorted(self._offers.items())
            for offer in offers
            if key_of(offer) not in self._open and offer.until_us > now_us
        ]

    def _decide(self, now_us: int, asking: SiteName | None = None) -> Loan | None:
        """Asks the policy about everything, and carries out the difference.

        Returns:
            The loan of the server that asks, which needs no grant; None where it gets none.
        """
        self._decided_us = now_us
        offers = self._waiting(now_us)
        self._see_rooms(now_us, offers)
        deal = self._deal(now_us, offers)
        self._refused = deal.refused
        by_number = {made.number: made for made in self._open.values()}
        for number, reason in sorted(deal.stops.items()):
            self._stop(by_number[number], now_us, reason)
        for number, loan in sorted(deal.moves.items()):
            self._move(by_number[number], loan, now_us)
        mine, served = None, set[SiteName]()
        for loan in deal.loans:
            site = loan.offer.site
            if site in served or site not in self._borrowers:
                continue
            served.add(site)
            made = self._make(loan, len(offers))
            if site == asking:
                mine = made
            elif made is not None:
                self._borrowers[site].grant_loan(made)
        return mine

    def _see_rooms(self, now_us: int, offers: Sequence[TrainingOffer]) -> None:
        """Asks all servers for their rooms, if there is anything to decide about."""
        # The window of the rest of a loan is over when its offer's is.
        ends_us = [offer.until_us for offer in (*offers, *(loan.offer for loan in self._running()))]
        if ends_us:
            rooms = self._ask_rooms(self._lenders, now_us, max(ends_us))
            self._rooms = tuple(
                replace(room, late_us=self._promises.late.expected_delay_us(room.site)) for room in rooms
            )

    def _market(self, now_us: int, offers: Sequence[TrainingOffer]) -> Market:
        return Market(now_us, tuple(offers), self._running(), self._rooms, self._links, self._seed)

    def _deal(self, now_us: int, offers: Sequence[TrainingOffer]) -> Deal:
        market = self._market(now_us, offers)
        return self._tier.decide(market) if market.offers or market.running else Deal()

    def _running(self) -> tuple[Loan, ...]:
        return tuple(made.loan for _, made in sorted(self._open.items()))

    def _make(self, loan: Loan, among: int = 1) -> Loan | None:
        """Makes a loan; returns it, or None where its host refuses."""
        costs = loan_cost(loan, self._market(loan.offer.now_us, ()).free)
        made = Made(self._next, replace(loan, number=self._next), among, costs=costs)
        # First, so that the next coordinator gives no number twice, and a full disk lends nothing.
        self._record(made)
        self._next += 1
        self.loans.append(made)
        loan = made.loan
        self._open[key_of(loan.offer)] = made
        to_us = self._held_until(loan)
        lent = Lent(loan.share_milli, loan.begins_us, to_us)
        if self._lenders[loan.host].lend_share(made.number, lent):
            # Not before: what is refused stays open, since the host's own plan had come first.
            self.withdraw_offers(loan.offer.site, {loan.offer.stream})
            return loan
        self._end(made, loan.offer.now_us, REFUSED, {})
        return None

    def _end(self, made: Made, at_us: int, outcome: str, moved_mb: Mapping[Way, float]) -> None:
        made.outcome, made.over_us, made.moved_mb = outcome, at_us, moved_mb
        self._open.pop(key_of(made.loan.offer), None)
        self._record(made)
        if made.loan.host in self._lenders:
            self._lenders[made.loan.host].take_back_share(made.number, at_us)

    def _stop(self, made: Made, at_us: int, reason: str) -> None:
        """Ends a running loan because its hosts are worth more to others."""
        borrower, stream = self._borrowers.get(made.loan.offer.site), made.loan.offer.stream
        self._end(made, at_us, f"stopped: {reason}", self._moved_mb(made, at_us))
        if borrower is not None:
            borrower.fail_training(stream, reason, at_us)

    def _move(self, made: Made, loan: Loan, at_us: int) -> None:
        """Lets a running retraining go on elsewhere, starting at its last snapshot."""
        borrower, stream = self._borrowers.get(made.loan.offer.site), made.loan.offer.stream
        self._end(made, at_us, f"moved to {loan.host}", self._moved_mb(made, at_us))
        if borrower is not None:
            self._go_on(borrower, stream, loan, at_us)

    def _go_on(self, borrower: Borrows, stream: StreamId, loan: Loan, at_us: int) -> None:
        """Lets a retraining go on under another loan, or ends it where that is refused."""
        made = self._make(loan)
        if made is None:
            borrower.fail_training(stream, f"{loan.host} has refused to go on with it", at_us)
        else:
            borrower.continue_training(stream, made)

    def _moved_mb(self, made: Made, at_us: int) -> Mapping[Way, float]:
        """Returns the traffic of a running loan so far; as foreseen, where its borrower's run has ended."""
        borrower = self._borrowers.get(made.loan.offer.site)
        if borrower is None:
            return made.loan.moved_mb(at_us)
        return borrower.training_so_far(made.loan.offer.stream, at_us).moved_mb

    def _go_on_without(self, made: Made, at_us: int, gone: SiteName) -> None:
        """Lets the rest of a training whose host has died go on elsewhere, or ends it."""
        offer, reason = made.loan.offer, f"{gone} died"
        borrower = self._borrowers.get(offer.site)
        if borrower is None:
            # The borrower's run has ended and does not need the weights.
            self._end(made, at_us, reason, made.loan.moved_mb(at_us))
            return
        stood = borrower.training_so_far(offer.stream, at_us)
        self._end(made, at_us, reason, stood.moved_mb)
        rest = offer.for_last_epochs(stood.epochs_left, at_us)
        offers = [*self._waiting(at_us), rest]
        self._see_rooms(at_us, offers)
        deal = self._deal(at_us, offers)
        loan = next((loan for loan in deal.loans if loan.offer is rest or loan.offer == rest), None)
        if loan is None:
            borrower.fail_training(offer.stream, f"{reason}, and no other server has room", at_us)
        else:
            self._go_on(borrower, offer.stream, loan, at_us)
