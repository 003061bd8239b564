"""Maps a market to a fleet as Okita sees one, and its decision for a slot back to loans.

A site is a server, a worker a unit of its share, and a chunk the part of the crops that a unit takes through
all epochs in a slot, which is a twentieth of the longest window. Crops that hosts of a running loan hold lie
there, all others at home. A slot costs what a stream loses by waiting for it, and a megabyte what streams
lose on average while it is on its way. Okita ignores the cost of workers, so its capacity is limited to the
shares that are worth lending at the price that ``prices`` finds. Trainings are deployed anew in each slot;
until then a worker keeps its part of the crops.

Crops that may not leave their site could be trained there only: Okita lets such a job wait while its site
has no capacity for a worker. Here such a retraining is not offered, and waits for its own server.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean

import numpy as np

from ekya.core.units import US_PER_S
from ekya.fleet.policy.assignment import JobAssignment, NodePart, whole
from ekya.fleet.policy.job import Left, Linear, TrainJob
from ekya.fleet.policy.loans import Links, Loan, alone
from ekya.fleet.policy.market import Deal, Market, carried_out, job_of, jobs_of, key_of
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import Node, NodeName, Places, SiteName
from ekya.fleet.policy.prices import Hosts, Prices
from ekya.fleet.policy.rooms import Room
from ekya.fleet.policy.splitting import dealt_in_words
from ekya.fleet.policy.spreading import Spread
from ekya.fleet.policy.view import FleetPolicy, FleetView, JobState

_SLOTS = 20
"""Slots of a window: as many as a job of the paper takes. The paper's slots are longer than a window here."""

_UNITS, _PARAMETER_SERVERS = "units", "parameter servers"


@dataclass(frozen=True, slots=True)
class NearData:
    """A ``Decider`` in which one of Okita's policies places workers, parameter servers and data.

    Attributes:
        policy: factory from the length of a slot in microseconds.
    """

    policy: Callable[[int], FleetPolicy]

    def __call__(self, market: Market) -> Deal:
        """Asks the policy once about all offers and all that runs."""
        sites = {room.site for room in market.rooms}
        fixed = tuple(one for one in market.running if not sites.issuperset(one.hosts))
        rooms = {room.site: room for room in replace(market, running=fixed).free}
        jobs, refused = jobs_of(market, fixed, rooms)
        if not jobs:
            return Deal(refused=refused)
        offers = [offer for offer, _ in jobs.values()]
        slot_us = max(offer.until_us - offer.arrived_us for offer in offers) // _SLOTS
        slowest = sorted(rooms.values(), key=lambda room: -room.takes_s(1.0, room.step_milli))
        states = tuple(_state(*one, rooms, slowest, slot_us) for one in jobs.values())
        places = _places(offers, rooms, market.links)
        decision = self.policy(slot_us).decide(FleetView(market.now_us, states, places, market.seed))

        def loan_of(
            offer: TrainingOffer, running: Loan | None, assignment: JobAssignment
        ) -> Loan | str | None:
            if not _units(assignment):
                return f"it trains in a later slot: {assignment.reason}"
            if running is not None and _same(running, assignment, rooms):
                return None
            return _loan(market.now_us, Spread(offer, market.links, rooms, {}, offer.site), assignment)

        return carried_out(market, fixed, jobs, refused, decision, loan_of)


def _state(
    offer: TrainingOffer,
    running: Loan | None,
    rooms: Mapping[SiteName, Room],
    slowest: Sequence[Room],
    slot_us: int,
) -> JobState:
    # The slowest unit must be able to take a chunk through all epochs in a slot.
    host = next((room for room in slowest if room.site != offer.site), slowest[0])
    work = host.takes_s(offer.gpu_s, host.step_milli) * US_PER_S / slot_us
    chunks = min(max(1, ceil(work)), offer.crops)
    steps = offer.epochs * offer.crops / chunks / offer.config.batch_size
    job = TrainJob(
        name=job_of(offer),
        arrives_us=offer.arrived_us,
        epochs=offer.epochs,
        waiting=Linear(offer.gain, 0.0),
        chunks=_lying(offer, chunks, rooms),
        chunk_mb=offer.crops_mb / chunks,
        model_mb=2 * steps * offer.trained_mb,
        worker={_UNITS: 1.0, _guest_of(offer.site): 1.0},
        parameter_server={_PARAMETER_SERVERS: 1.0},
        chunks_per_slot=max(chunks / work, 1e-9),
    )
    assignment = None
    if running is not None:
        parts = tuple(
            NodePart(NodeName(part.host), workers=part.share_milli // rooms[part.host].step_milli)
            for part in running.parts
        )
        assignment = JobAssignment(job.name, parts, "it runs", NodeName(running.parameter_server))
    return JobState(job, Left.all_of(job), assignment)


def _guest_of(site: SiteName) -> str:
    """Returns the resource that a worker of a server's job needs, and which only other servers have."""
    return f"guests of {site}"


def _lying(offer: TrainingOffer, chunks: int, hosts: Mapping[SiteName, Room]) -> dict[SiteName, int]:
    """Returns the number of chunks by site; a chunk with a copy at a host counts there only."""
    lying, left = {}, chunks
    for host in sorted(hosts):
        there_mb = offer.crops_there_mb.get(host, 0.0)
        there = min(left, int(there_mb / offer.crops_mb * chunks)) if there_mb else 0
        if there:
            lying[host] = there
            left -= there
    if left:
        lying[offer.site] = left
    return lying


def _places(offers: Sequence[TrainingOffer], rooms: Mapping[SiteName, Room], links: Links) -> Places:
    """Returns the lending servers as nodes, and link costs between all sites."""
    units = _worth_lending(offers, rooms, links)
    homes = {offer.site for offer in offers}
    nodes = [
        Node(
            NodeName(site),
            site,
            str(site),
            # Any number of parameter servers: each is a part of a worker's share.
            capacity={_UNITS: float(count), _PARAMETER_SERVERS: float(len(offers))}
            | {_guest_of(home): float(count) for home in homes if home != site},
        )
        for site, count in sorted(units.items())
    ]
    sites = sorted({*(offer.site for offer in offers), *rooms})
    loss = fmean(offer.gain for offer in offers)
    costs = {
        (origin, target): loss * links.takes_us(origin, target, 1.0) / US_PER_S
        for origin in sites
        for target in sites
        if origin != target
    }
    return Places({node.name: node for node in nodes}, link_cost=costs)


def _worth_lending(
    offers: Sequence[TrainingOffer], rooms: Mapping[SiteName, Room], links: Links
) -> dict[SiteName, int]:
    """Returns the units of each server that are worth lending to the offer that gains most."""
    most = max(offers, key=lambda offer: (offer.gain, key_of(offer)))
    hosts = Hosts.from_rooms(rooms.values(), links)
    every = np.arange(len(hosts.rooms))
    if not every.size:
        return {}
    units, _ = Prices(most, hosts).lent_units(every, np.ones((len(every), 1), dtype=np.bool_))
    return {room.site: int(count) for room, count in zip(hosts.rooms, units.max(axis=1), strict=True)}


def _units(assignment: JobAssignment) -> dict[SiteName, tuple[int, int]]:
    """Returns the units that a slot's deployment takes of each server, and the chunks trained there."""
    parts = [part for part in assignment.parts if part.chunks] or assignment.parts
    return {
        SiteName(part.node): (part.workers, part.chunks or part.workers) for part in parts if part.workers
    }


def _same(loan: Loan, assignment: JobAssignment, rooms: Mapping[SiteName, Room]) -> bool:
    """Returns whether a slot's deployment is what runs."""
    then = {site: units * rooms[site].step_milli for site, (units, _) in _units(assignment).items()}
    return then == {part.host: part.share_milli for part in loan.parts}


def _loan(now_us: int, spread: Spread, assignment: JobAssignment) -> Loan:
    """Converts a slot's deployment to a loan."""
    offer, taken = spread.offer, _units(assignment)
    chunks = sum(count for _, count in taken.values())
    shares = {NodeName(site): offer.crops * count / chunks for site, (_, count) in taken.items()}
    dealt = whole(shares, offer.crops)
    crops = {site: count for site in taken if (count := dealt[NodeName(site)])}
    units = {site: taken[site][0] for site in crops}
    if len(crops) == 1:
        ((site, count),) = units.items()
        reason = "there the data and what steps exchange are nearest"
        return alone(now_us, offer, spread.rooms[site], count, spread.links, reason)
    # The parameter server takes a part of a worker's share: with no worker there, it is beside the largest.
    placed = None if assignment.parameter_server is None else SiteName(assignment.parameter_server)
    parameter_server = placed if placed in crops else max(crops, key=lambda site: (crops[site], site))
    reason = f"{dealt_in_words(crops)}, so that data and steps have the shortest ways to {parameter_server}"
    loan = replace(spread, units=units, parameter_server=parameter_server).loan(now_us, crops, reason)
    return replace(loan, mode=assignment.mode)
