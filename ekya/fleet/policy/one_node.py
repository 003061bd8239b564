"""Maps a market to a fleet as ANDREAS sees one, and its decision back to loans on one server each.

Servers are nodes and units of share their GPUs, priced by the accuracy that the hosts' own streams lose.
Open offers and running loans are jobs, due when their window ends, with the gain a second as their weight; a
running one holds its units and may be preempted or moved.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ekya.core.units import US_PER_S, us_to_seconds
from ekya.fleet.policy.assignment import JobAssignment, NodePart
from ekya.fleet.policy.job import Left, Tardiness, TrainJob
from ekya.fleet.policy.loans import Loan, alone
from ekya.fleet.policy.market import Deal, Market, carried_out, fits, job_of, jobs_of
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import Node, NodeName, Places
from ekya.fleet.policy.prices import Hosts, in_us
from ekya.fleet.policy.rooms import Room
from ekya.fleet.policy.view import FleetPolicy, FleetView, JobState


@dataclass(frozen=True, slots=True)
class OneNode:
    """A ``Decider`` in which a fleet policy gives each retraining to one server.

    Attributes:
        policy: decides about all jobs.
    """

    policy: FleetPolicy

    def __call__(self, market: Market) -> Deal:
        """Asks the policy once about all offers and all that runs."""
        fixed = tuple(one for one in market.running if not _movable(one, market.rooms))
        rooms = replace(market, running=fixed).free
        jobs, refused = jobs_of(market, fixed, [room.site for room in rooms])
        at = {NodeName(room.site): room for room in rooms}
        times = _Times(Hosts.from_rooms(rooms, market.links))
        states = tuple(_state(market, rooms, times, *one) for one in jobs.values())
        decision = self.policy.decide(FleetView(market.now_us, states, _places(rooms), market.seed))

        def loan_of(offer: TrainingOffer, running: Loan | None, assignment: JobAssignment) -> Loan | None:
            (part,) = assignment.parts
            if running is not None and part == _part(running, rooms):
                return None
            reason, host = assignment.reason, at[part.node]
            return alone(market.now_us, offer, host, part.gpus, market.links, reason)

        return carried_out(market, fixed, jobs, refused, decision, loan_of)


def _movable(running: Loan, rooms: Sequence[Room]) -> bool:
    """Returns whether a loan is on one server, which could lend its share again."""
    return len(running.parts) == 1 and fits(running, rooms)


def _part(running: Loan, rooms: Sequence[Room]) -> NodePart:
    (part,) = running.parts
    step_milli = next(room.step_milli for room in rooms if room.site == part.host)
    return NodePart(NodeName(part.host), gpus=part.share_milli // step_milli)


class _Times:
    """Times of retrainings on 1, 2, ... units of each server, transfers included."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._host, units = np.nonzero(np.isfinite(hosts.loss.T))
        self._configs = [
            (str(hosts.rooms[row].site), int(more) + 1) for row, more in zip(self._host, units, strict=True)
        ]
        self._us_per_gpu_s = US_PER_S / hosts.speed[units, self._host]

    def takes_us(self, offer: TrainingOffer) -> dict[tuple[str, int], int]:
        """Returns microseconds by server and units, as a job's ``epoch_us``."""
        ways = self._hosts.ways
        away_us = in_us(ways.there_s(offer)) + self._hosts.late_us + in_us(ways.back_s(offer))
        takes_us = away_us[self._host] + np.rint(offer.gpu_s * self._us_per_gpu_s).astype(np.int64)
        return dict(zip(self._configs, takes_us.tolist(), strict=True))


def _state(
    market: Market, rooms: Sequence[Room], times: _Times, offer: TrainingOffer, running: Loan | None
) -> JobState:
    name, takes_us = job_of(offer), times.takes_us(offer)
    assignment = None
    if running is not None:
        part = _part(running, rooms)
        takes_us[str(part.node), part.gpus] = max(running.arrives_us - market.now_us, 1)
        assignment = JobAssignment(name, (part,), "it runs")
    job = TrainJob(
        name=name,
        arrives_us=offer.arrived_us,
        epochs=1,
        waiting=Tardiness(us_to_seconds(offer.until_us - offer.arrived_us), offer.gain),
        model_mb=offer.back_mb,
        epoch_us=takes_us,
        allowed=frozenset(NodeName(room.site) for room in rooms if room.site != offer.site),
    )
    return JobState(job, Left.all_of(job), assignment)


def _places(rooms: Sequence[Room]) -> Places:
    nodes = [
        Node(NodeName(room.site), room.site, str(room.site), len(room.loss), (0.0, *room.loss))
        for room in sorted(rooms, key=lambda room: room.site)
        if room.loss
    ]
    # ``power_w`` holds the accuracy that the host's streams lose per second instead of power; this price
    # cancels the conversion from joules to kWh.
    return Places({node.name: node for node in nodes}, kwh_cost=3.6e6)
