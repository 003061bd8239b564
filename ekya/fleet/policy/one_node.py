"""Maps a market to a fleet as ANDREAS sees one, and its decision back to loans.

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
from ekya.fleet.policy.lenders import Lenders, in_us
from ekya.fleet.policy.loans import Loan, loan_at
from ekya.fleet.policy.market import NO_ROOM, Deal, Key, Market, fits, key_of, settled
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import JobName, Node, NodeName, Places
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
        fixed = tuple(one for one in market.running if not fits(one, market.rooms))
        rooms = replace(market, running=fixed).free
        sites = {room.site for room in rooms}
        refused = {key_of(offer): "it brings nothing" for offer in market.offers if offer.gain <= 0}
        refused |= {key_of(offer): NO_ROOM for offer in market.offers if not sites - {offer.site}}
        asked = [(offer, None) for offer in market.offers if key_of(offer) not in refused]
        rests = [(one.offer_of_rest(market.now_us), one) for one in market.running if one not in fixed]
        jobs = sorted([*asked, *rests], key=lambda one: key_of(one[0]))
        times = _Times(Lenders.from_rooms(rooms, market.links))
        states = tuple(_state(market, rooms, times, *job) for job in jobs)
        decision = self.policy.decide(FleetView(market.now_us, states, _places(rooms), market.seed))
        stays, wanted = {one.number for one in fixed}, dict[Key, Loan]()
        at = {NodeName(room.site): room for room in rooms}
        for (offer, running), state in zip(jobs, states, strict=True):
            assignment, key = decision.assignment_of(state.job.name), key_of(offer)
            if assignment is None:
                refused[key] = decision.waiting[state.job.name]
                continue
            (part,) = assignment.parts
            if running is not None and part == _part(running, rooms):
                stays.add(running.number)
            else:
                host, why = at[part.node], assignment.reason
                wanted[key] = loan_at(market.now_us, offer, host, part.gpus, market.links, why)
        return settled(market, wanted, stays, refused)


def _part(running: Loan, rooms: Sequence[Room]) -> NodePart:
    step_milli = next(room.step_milli for room in rooms if room.site == running.host)
    return NodePart(NodeName(running.host), gpus=running.share_milli // step_milli)


class _Times:
    """Times of retrainings on 1, 2, ... units of each server, transfers included."""

    def __init__(self, hosts: Lenders) -> None:
        self._hosts = hosts
        self._host, units = np.nonzero(np.isfinite(hosts.loss.T))
        self._configs = [
            (str(hosts.rooms[row].site), int(more) + 1) for row, more in zip(self._host, units, strict=True)
        ]
        self._us_per_gpu_s = US_PER_S / hosts.speed[units, self._host]

    def takes_us(self, offer: TrainingOffer) -> dict[tuple[str, int], int]:
        """Returns microseconds by server, other than its own, and units, as a job's ``epoch_us``."""
        ways = self._hosts.ways
        away_us = in_us(ways.there_s(offer)) + self._hosts.late_us + in_us(ways.back_s(offer))
        takes_us = away_us[self._host] + np.rint(offer.gpu_s * self._us_per_gpu_s).astype(np.int64)
        times = zip(self._configs, takes_us.tolist(), strict=True)
        return {config: us for config, us in times if config[0] != offer.site}


def _state(
    market: Market, rooms: Sequence[Room], times: _Times, offer: TrainingOffer, running: Loan | None
) -> JobState:
    name, takes_us = JobName(f"{offer.site}/{offer.stream}"), times.takes_us(offer)
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
