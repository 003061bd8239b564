"""Which offer goes to which server, at which share: a policy decides, and each loan must be worth it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ekya.core.ids import StreamId
from ekya.core.units import US_PER_S, us_to_seconds
from ekya.fleet.policy.job import Left, TrainJob
from ekya.fleet.policy.loans import Links, Loan, LoanPart, loan_cost
from ekya.fleet.policy.names import JobName, NodeName, SiteName
from ekya.fleet.policy.offers import Offer
from ekya.fleet.policy.places import Node, Places
from ekya.fleet.policy.protocol import FleetPolicy
from ekya.fleet.policy.rooms import Room
from ekya.fleet.policy.view import FleetView, JobState
from ekya.fleet.policy.waiting import Tardiness


@dataclass(frozen=True, slots=True)
class Brokered:
    """What came of offers: loans, and why the others found none."""

    loans: tuple[Loan, ...]
    refused: Mapping[tuple[SiteName, StreamId], str]


Broker = Callable[[int, Sequence[Offer], Sequence[Room], Links, int], Brokered]
"""Finds loans: for offers at a time, among rooms and over links, with a seed for who draws."""


def by_policy(policy: FleetPolicy) -> Broker:
    """A broker that asks a fleet policy."""

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
    """Loans for offers.

    The policy sees servers as nodes whose GPUs are units of share, at the price that their own streams pay in
    accuracy, and offers as jobs that are due when their window ends. A loan that would bring its stream less
    than it costs the host's is not made.
    """
    named = {JobName(f"{place}"): offer for place, offer in enumerate(offers)}
    places = _places(rooms)
    states = tuple(
        JobState(job, Left.all_of(job))
        for job in (_job(name, offer, now_us, rooms, links) for name, offer in named.items())
    )
    decision = policy.decide(FleetView(now_us, states, places, seed))
    loans, refused = [], {}
    for name, offer in named.items():
        assignment = decision.of(name)
        if assignment is None:
            refused[offer.site, offer.stream] = decision.waiting[name]
            continue
        part = assignment.parts[0]
        host = next(room for room in rooms if NodeName(room.site) == part.node)
        loan = _loan(now_us, offer, host, part.gpus, links, assignment.reason)
        brings, costs = loan.brings, loan_cost(loan, rooms)
        if brings > costs:
            loans.append(loan)
        else:
            refused[offer.site, offer.stream] = (
                f"{host.site} would lose {costs:.3g} for the {brings:.3g} that it brings"
            )
    return Brokered(tuple(loans), refused)


def _loan(now_us: int, offer: Offer, host: Room, units: int, links: Links, reason: str) -> Loan:
    share_milli = units * host.step_milli
    begins_us = now_us + links.takes_us(offer.site, host.site, offer.moved_mb)
    ends_us = begins_us + _trains_us(offer, host, units)
    arrives_us = ends_us + links.takes_us(host.site, offer.site, offer.back_mb)
    return Loan(
        offer=offer,
        parts=(LoanPart(host.site, share_milli),),
        server=host.site,
        begins_us=begins_us,
        ends_us=ends_us,
        arrives_us=arrives_us,
        sent_mb={(offer.site, host.site): offer.moved_mb},
        reason=reason,
    )


def _trains_us(offer: Offer, host: Room, units: int) -> int:
    return round(offer.gpu_s / host.speed.speed(units * host.step_milli) * US_PER_S)


def _job(name: JobName, offer: Offer, now_us: int, rooms: Sequence[Room], links: Links) -> TrainJob:
    on_the_way_us = {
        room.site: links.takes_us(offer.site, room.site, offer.moved_mb)
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
        for room in rooms
        if room.loss
    ]
    # The price of a second is what the host's streams lose in it, instead of money for energy.
    return Places({node.name: node for node in nodes}, kwh_cost=3.6e6)
