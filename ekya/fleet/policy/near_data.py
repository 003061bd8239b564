"""Retraining near its data: maps an offer to a job of Okita's, and Okita's decision to a loan.

A site is a server, a worker a unit of its share, and a chunk the crops of one step of γ. A slot is as long
as a worker needs to take a chunk through all epochs. Chunks that a former loan left at a server lie there,
all others at home. A megabyte and a slot cost what the stream loses by waiting for them. Okita ignores the
cost of workers, so its capacity is limited to the shares that are worth lending at the price that
``splitting`` finds.

Crops that may not leave their site could be trained there only: Okita lets such a job wait while its site
has no capacity for a worker. Here such a retraining is not offered, and waits for its own server.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from ekya.core.units import US_PER_S
from ekya.fleet.policy.assignment import Assignment, whole
from ekya.fleet.policy.brokering import alone, worth
from ekya.fleet.policy.job import Left, TrainJob
from ekya.fleet.policy.loans import Links, Loan
from ekya.fleet.policy.names import JobName, NodeName, SiteName
from ekya.fleet.policy.offers import Offer
from ekya.fleet.policy.places import Node, Places
from ekya.fleet.policy.protocol import FleetPolicy
from ekya.fleet.policy.rooms import Room
from ekya.fleet.policy.splitting import dealt_in_words, promising
from ekya.fleet.policy.spreading import Spread
from ekya.fleet.policy.view import FleetView, JobState
from ekya.fleet.policy.waiting import Linear

_UNITS, _SERVERS = "units", "servers"
_JOB = JobName("offer")


@dataclass(frozen=True, slots=True)
class NearData:
    """Finds the loan for an offer with one of Okita's policies.

    Attributes:
        policy: factory from the length of a slot in microseconds.
    """

    policy: Callable[[int], FleetPolicy]

    def __call__(self, now_us: int, offer: Offer, rooms: Sequence[Room], links: Links) -> Loan | None:
        """Returns the loan with the highest worth over the promising spreads; None where there is none."""
        found = (self._placed(now_us, spread) for spread in promising(now_us, offer, rooms, links))
        return max((loan for loan in found if loan), key=lambda loan: worth(loan, rooms), default=None)

    def _placed(self, now_us: int, spread: Spread) -> Loan | None:
        job, slot_us = job_of(now_us, spread)
        view = FleetView(now_us, (JobState(job, Left.all_of(job)),), _places(spread))
        assignment = self.policy(slot_us).decide(view).of(_JOB)
        return None if assignment is None else _loan(now_us, spread, assignment)


def job_of(now_us: int, spread: Spread) -> tuple[TrainJob, int]:
    """Returns an offer as a job of Okita's, and the length of a slot in microseconds."""
    offer = spread.offer
    chunks = ceil(offer.crops / offer.config.batch_size)
    # A slot has to be long enough for the slowest unit.
    slot_s = max(offer.gpu_s / chunks / room.speed.speed(room.step_milli) for room in spread.rooms.values())
    job = TrainJob(
        name=_JOB,
        arrives_us=now_us,
        epochs=offer.epochs,
        waiting=Linear(offer.gain, 0.0),
        chunks=_lying(offer, chunks, spread.rooms),
        chunk_mb=offer.crops_mb / chunks,
        model_mb=2 * offer.epochs * offer.trained_mb,
        worker={_UNITS: 1.0},
        parameter_server={_SERVERS: 1.0},
        chunks_per_slot=1.0,
    )
    return job, round(slot_s * US_PER_S)


def _lying(offer: Offer, chunks: int, hosts: Mapping[SiteName, Room]) -> dict[SiteName, int]:
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


def _places(spread: Spread) -> Places:
    """Returns the lending servers as nodes, with link costs between them and the home site."""
    nodes = [
        Node(NodeName(site), site, str(site), capacity={_UNITS: float(units), _SERVERS: 1.0})
        for site, units in spread.units.items()
    ]
    sites = (spread.offer.site, *spread.units)
    costs = {
        (origin, target): spread.offer.gain * spread.links.takes_us(origin, target, 1.0) / US_PER_S
        for origin in sites
        for target in sites
        if origin != target
    }
    return Places({node.name: node for node in nodes}, link_cost=costs)


def _loan(now_us: int, spread: Spread, assignment: Assignment) -> Loan | None:
    """Converts the first slot's assignment to a loan; workers keep their parts of the crops to the end."""
    parts = {SiteName(part.node): part for part in assignment.parts if part.chunks}
    chunks = sum(part.chunks for part in parts.values())
    dealt = whole(
        {part.node: part.chunks / chunks * spread.offer.crops for part in parts.values()}, spread.offer.crops
    )
    crops = {site: dealt[part.node] for site, part in parts.items() if dealt[part.node]}
    units = {site: parts[site].workers for site in crops}
    if len(crops) == 1:
        ((site, count),) = units.items()
        reason = "there the data and what steps exchange are nearest"
        return alone(now_us, spread.offer, spread.rooms[site], count, spread.links, reason)
    server = None if assignment.parameter_server is None else SiteName(assignment.parameter_server)
    if server not in crops:
        return None
    placed = replace(spread, units=units, server=server)
    reason = f"{dealt_in_words(crops)}, so that data and steps have the shortest ways to {placed.server}"
    return placed.loan(now_us, crops, reason)
