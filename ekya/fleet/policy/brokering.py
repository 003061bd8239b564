"""Brokers that turn offers into loans: a policy chooses servers and shares, and each loan must pay off."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ekya.core.units import US_PER_S, StreamId, us_to_seconds
from ekya.fleet.policy.job import Left, TrainJob
from ekya.fleet.policy.loans import Links, Loan, LoanPart, beside, loan_cost
from ekya.fleet.policy.names import JobName, NodeName, SiteName
from ekya.fleet.policy.offers import Offer
from ekya.fleet.policy.places import Node, Places
from ekya.fleet.policy.protocol import FleetPolicy
from ekya.fleet.policy.rooms import Room
from ekya.fleet.policy.view import FleetView, JobState
from ekya.fleet.policy.waiting import Tardiness

Key = tuple[SiteName, StreamId]
"""Server and stream of an offer."""


@dataclass(frozen=True, slots=True)
class Brokered:
    """Result for offers: loans, and for the other offers the reason, by key."""

    loans: tuple[Loan, ...]
    refused: Mapping[Key, str]


@dataclass(frozen=True, slots=True)
class Agreed:
    """Response to one server's offers.

    Attributes:
        loan: for one of the offers; None where no loan pays off.
        why_not: reasons of the refused offers, by stream; empty where no server could be asked.
    """

    loan: Loan | None = None
    why_not: Mapping[StreamId, str] = field(default_factory=dict)


Broker = Callable[[int, Sequence[Offer], Sequence[Room], Links, int], Brokered]
"""Finds loans from the time in microseconds, offers (one per stream), rooms, links and a seed.

No server lends to itself or more than its spare capacity, no loan costs more than it brings beside the
others, and the result depends neither on the order of the offers nor on that of the rooms.
"""


def by_policy(policy: FleetPolicy) -> Broker:
    """Returns a broker in which a fleet policy assigns offers to servers."""

    def ask(now_us: int, offers: Sequence[Offer], rooms: Sequence[Room], links: Links, seed: int) -> Brokered:
        return broker(now_us, offers, rooms, links, policy, seed)

    return ask


def broker(
    now_us: int,
    offers: Sequence[Offer],
    rooms: Sequence[Room],
    links: Links,
    policy: FleetPolicy,
    seed: int = 0,
) -> Brokered:
    """Finds loans for offers, each on one server.

    The policy sees servers as nodes and units of share as their GPUs, priced by the accuracy that the hosts'
    own streams lose; offers are jobs that are due when their window ends. A loan that would bring its stream
    less than it costs the host's streams is not made.
    """
    at = {NodeName(room.site): room for room in rooms}
    named = {JobName(f"{place}"): offer for place, offer in enumerate(sorted(offers, key=key_of))}
    asked = {name: offer for name, offer in named.items() if offer.gain > 0 and at.keys() - {offer.site}}
    states = tuple(
        JobState(job, Left.all_of(job))
        for job in (_job(name, offer, now_us, rooms, links) for name, offer in asked.items())
    )
    decision = policy.decide(FleetView(now_us, states, _places(rooms), seed))
    loans = []
    refused = {
        key_of(offer): "no other server has room" if offer.gain > 0 else "it brings nothing"
        for offer in offers
    }
    for name, offer in asked.items():
        assignment = decision.of(name)
        if assignment is None:
            refused[key_of(offer)] = decision.waiting[name]
            continue
        part = assignment.parts[0]
        loans.append(alone(now_us, offer, at[part.node], part.gpus, links, assignment.reason))
    return worth_it(loans, rooms, refused)


def worth_it(loans: Iterable[Loan], rooms: Sequence[Room], refused: Mapping[Key, str]) -> Brokered:
    """Keeps the loans that bring more than they cost beside the others, in decreasing order of worth.

    Args:
        loans: that fit into the rooms together.
        rooms: of their hosts.
        refused: reasons of refused offers; those of offers with a loan here are replaced or dropped.
    """
    left, made, why = tuple(rooms), list[Loan](), dict(refused)
    for loan in sorted(loans, key=lambda loan: (-worth(loan, rooms), key_of(loan.offer))):
        brings, costs = loan.brings, loan_cost(loan, left)
        if brings > costs:
            made.append(loan)
            left = beside(loan, left)
            why.pop(key_of(loan.offer), None)
        else:
            why[key_of(loan.offer)] = (
                f"{' and '.join(loan.hosts)} would lose {costs:.3g} for the {brings:.3g} that it brings"
            )
    return Brokered(tuple(made), why)


def worth(loan: Loan, rooms: Iterable[Room]) -> float:
    """Returns what a loan brings less what it costs, in accuracy times seconds."""
    return loan.brings - loan_cost(loan, rooms)


def key_of(offer: Offer) -> Key:
    """Returns server and stream of an offer."""
    return offer.site, offer.stream


def alone(now_us: int, offer: Offer, host: Room, units: int, links: Links, reason: str) -> Loan:
    """Returns the loan in which one server does the whole retraining."""
    sent_mb = offer.sent_mb(host.site)
    begins_us = now_us + links.takes_us(offer.site, host.site, sent_mb)
    ends_us = begins_us + _trains_us(offer, host, units)
    return Loan(
        offer=offer,
        parts=(LoanPart(host.site, units * host.step_milli),),
        server=host.site,
        begins_us=begins_us,
        ends_us=ends_us,
        arrives_us=ends_us + links.takes_us(host.site, offer.site, offer.back_mb),
        sent_mb={(offer.site, host.site): sent_mb},
        reason=reason,
        late_us=host.late_us,
    )


def _trains_us(offer: Offer, host: Room, units: int) -> int:
    return host.late_us + round(offer.gpu_s / host.speed.speed(units * host.step_milli) * US_PER_S)


def _job(name: JobName, offer: Offer, now_us: int, rooms: Sequence[Room], links: Links) -> TrainJob:
    on_the_way_us = {
        room.site: links.takes_us(offer.site, room.site, offer.sent_mb(room.site))
        + links.takes_us(room.site, offer.site, offer.back_mb)
        for room in rooms
    }
    return TrainJob(
        name=name,
        arrives_us=now_us,
        epochs=1,
        waiting=Tardiness(us_to_seconds(offer.until_us - now_us), offer.gain),
        model_mb=offer.back_mb,
        epoch_us={
            (str(room.site), units): on_the_way_us[room.site] + _trains_us(offer, room, units)
            for room in rooms
            for units in range(1, len(room.loss) + 1)
        },
        allowed=frozenset(NodeName(room.site) for room in rooms if room.site != offer.site),
    )


def _places(rooms: Sequence[Room]) -> Places:
    nodes = [
        Node(NodeName(room.site), room.site, str(room.site), len(room.loss), (0.0, *room.loss))
        for room in sorted(rooms, key=lambda room: room.site)
        if room.loss
    ]
    # ``power_w`` holds the accuracy that the host's streams lose per second instead of power; this price
    # cancels the conversion from joules to kWh.
    return Places({node.name: node for node in nodes}, kwh_cost=3.6e6)
