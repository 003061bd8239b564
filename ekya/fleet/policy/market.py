"""Input and output of a coordinator's decision: offers, running loans, spare capacity and links."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Links, Loan, beside, loan_cost
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.rooms import Room

Key = tuple[SiteName, StreamId]
"""Server and stream of an offer."""

NO_ROOM = "no other server has room"


@dataclass(frozen=True, slots=True)
class Market:
    """A snapshot; equal snapshots always get the same decision.

    Attributes:
        now_us: time of the snapshot.
        offers: open ones of all servers, one per stream.
        running: loans whose retraining is not over.
        rooms: of each server, what it could lend in total, running loans included.
        links: between the servers.
        seed: for policies that draw at random.
    """

    now_us: int
    offers: tuple[TrainingOffer, ...]
    running: tuple[Loan, ...]
    rooms: tuple[Room, ...]
    links: Links
    seed: int = 0

    @property
    def free(self) -> tuple[Room, ...]:
        """Spare capacity that is left beside the running loans."""
        rooms: tuple[Room, ...] = tuple(sorted(self.rooms, key=lambda room: room.site))
        for loan in self.running:
            rooms = beside(loan, rooms)
        return rooms


@dataclass(frozen=True, slots=True)
class Deal:
    """Decision about a market. A running loan that it does not name stays as it is.

    Attributes:
        loans: for open offers, in decreasing order of worth.
        moves: running loans that go on elsewhere, by number, with the loan of their rest.
        stops: running loans that end, by number, with the reason.
        refused: offers without a loan, with the reason.
    """

    loans: tuple[Loan, ...] = ()
    moves: Mapping[int, Loan] = field(default_factory=dict)
    stops: Mapping[int, str] = field(default_factory=dict)
    refused: Mapping[Key, str] = field(default_factory=dict)


class Decider(Protocol):
    """Decides about a market.

    No server lends to itself or more than its spare capacity, no loan costs more than it brings beside the
    others, and the result depends on the order of neither offers nor rooms.
    """

    def __call__(self, market: Market) -> Deal:
        """Returns the loans, moves and stops, and a reason for each offer without a loan."""


def key_of(offer: TrainingOffer) -> Key:
    """Returns server and stream of an offer."""
    return offer.site, offer.stream


def worth(loan: Loan, rooms: Iterable[Room]) -> float:
    """Returns what a loan brings less what it costs, in accuracy times seconds."""
    return loan.brings - loan_cost(loan, rooms)


def fits(loan: Loan, rooms: Iterable[Room]) -> bool:
    """Returns whether the host still has the share that a loan asks of it."""
    has = (len(room.loss) * room.step_milli for room in rooms if room.site == loan.host)
    return loan.share_milli <= next(has, 0)


def worth_it(
    loans: Iterable[Loan], rooms: Sequence[Room], refused: Mapping[Key, str]
) -> tuple[tuple[Loan, ...], dict[Key, str]]:
    """Keeps the loans that bring more than they cost beside the others, in decreasing order of worth.

    Args:
        loans: candidates, one per offer.
        rooms: of their hosts.
        refused: reasons of refused offers; those of offers with a loan here are replaced or dropped.
    """
    left, made, why = tuple(rooms), list[Loan](), dict(refused)
    ranked = [(worth(loan, rooms) if fits(loan, rooms) else 0.0, loan) for loan in loans]
    for _, loan in sorted(ranked, key=lambda one: (-one[0], key_of(one[1].offer))):
        if not fits(loan, left):
            why[key_of(loan.offer)] = f"{loan.host} has no room for it beside others"
        elif loan.brings > (costs := loan_cost(loan, left)):
            made.append(loan)
            left = beside(loan, left)
            why.pop(key_of(loan.offer), None)
        else:
            why[key_of(loan.offer)] = (
                f"{loan.host} would lose {costs:.3g} for the {loan.brings:.3g} that it brings"
            )
    return tuple(made), why


def settled(
    market: Market, wanted: Mapping[Key, Loan], stays: Collection[int], refused: Mapping[Key, str]
) -> Deal:
    """Turns what a policy wants of the whole market into a deal that pays.

    A policy that takes running jobs into account may want to move or to end some. That is done if everything
    together is then worth more than the same without touching what runs.

    Args:
        market: on which the policy decided.
        wanted: loans of offers, and of running loans that should go on elsewhere, by server and stream.
        stays: numbers of running loans that the policy leaves as they are; it ends those that are neither
            here nor in ``wanted``.
        refused: reasons of offers without a loan and of running loans that should end.
    """
    under_way = {key_of(one.offer): one for one in market.running}
    why = {key: reason for key, reason in refused.items() if key not in under_way}
    new = [loan for key, loan in wanted.items() if key not in under_way]
    loans, left_out = worth_it(new, market.free, why)
    untouched = Deal(loans, refused=left_out)
    if all(one.number in stays for one in market.running):
        return untouched
    kept = [one for one in market.running if one.number in stays]
    rooms = replace(market, running=tuple(kept)).free
    loans, left_out = worth_it(wanted.values(), rooms, why)
    moves = {under_way[key].number: loan for loan in loans if (key := key_of(loan.offer)) in under_way}
    touched = Deal(
        tuple(loan for loan in loans if key_of(loan.offer) not in under_way),
        moves,
        {
            one.number: refused.get(key, left_out.get(key, "its share is worth more to others"))
            for key, one in under_way.items()
            if one.number not in stays and one.number not in moves
        },
        {key: reason for key, reason in left_out.items() if key not in under_way},
    )
    return touched if _value(market, touched) > _value(market, untouched) else untouched


def _value(market: Market, deal: Deal) -> float:
    """Returns what everything that would then run brings less what it costs."""
    gone = deal.moves.keys() | deal.stops.keys()
    runs = [one.going_on(market.now_us) for one in market.running if one.number not in gone]
    total, left = 0.0, tuple(market.rooms)
    for loan in (*runs, *deal.moves.values(), *deal.loans):
        total += worth(loan, left)
        left = beside(loan, left)
    return total
