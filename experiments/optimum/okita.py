"""Offline optimum of Okita's problem (2) on small cases, by mixed-integer programming.

All jobs are known beforehand. y·s of the bandwidth cost (1) is linear in z^{rr'}(t), the workers at r whose
parameter server is at r' (Σ_{r'} z = y, z ≤ y_max s^{r'}); the completion time t_i is a binary for each slot
in which the job can end, exactly one of which is 1. A constraint says that a job that has ended by t has
trained all its data by t: it is implied for integers, and makes the relaxation much tighter.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from optimum.programme import Ints, Programme, UnsolvedError

from ekya.core.units import US_PER_S
from ekya.fleet.papers.okita.workload import OkitaWorkload
from ekya.fleet.policy.assignment import JobAssignment, NodePart
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.places import JobName, SiteName


@dataclass(frozen=True, slots=True)
class Optimum:
    """An offline optimum.

    Attributes:
        cost: of the best schedule found.
        bound: lower bound of every schedule's cost; equal to ``cost`` up to the solver's gap.
        schedule: assignments by slot.
    """

    cost: float
    bound: float
    schedule: Mapping[int, tuple[JobAssignment, ...]]


def optimum(world: OkitaWorkload, known_cost: float, limit_s: float = 60.0, gap: float = 1e-4) -> Optimum:
    """Solves problem (2); four jobs on three sites take seconds.

    Args:
        known_cost: of any schedule; an upper bound that limits how late a job can end, and so the slots.
        gap: relative gap between cost and bound at which the solver may stop.

    Raises:
        UnsolvedError: no schedule was found within the time limit.
    """
    model = _Model(world, known_cost)
    solved = model.programme.solved(limit_s, gap)
    if solved.x is None:
        raise UnsolvedError(f"no schedule of {len(world.jobs)} jobs in {limit_s:g} s: {solved.message}")
    return Optimum(float(solved.fun), float(solved.mip_dual_bound), model.schedule(solved.x))


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """Indices of a job's variables in a slot: y, s, z^{rr'}, g^{rr'} and whether it ends in the slot."""

    job: int
    at: int
    workers: Ints
    parameter_server: Ints
    exchange: Ints
    moves: Ints
    ends: int


class _Model:
    """The programme, and the meaning of its variables."""

    def __init__(self, world: OkitaWorkload, known_cost: float) -> None:
        self._world = world
        places = world.places
        self._nodes = sorted(places.nodes.values(), key=lambda node: node.site)
        self._sites: list[SiteName] = [node.site for node in self._nodes]
        links = np.array([[places.mb_cost(one, other) for other in self._sites] for one in self._sites])
        self._most = np.array(
            [[_most_workers(job, node.capacity) for node in self._nodes] for job in world.jobs]
        )
        self.programme = Programme()
        self._slots = list[_Slot]()
        for place, at, ending in self._open_slots(known_cost):
            job, nothing = world.jobs[place], np.zeros(len(self._sites))
            variables = self.programme.variables
            slot = _Slot(
                place,
                at,
                workers=variables(nothing, np.minimum(self._most[place], _enough(job)), whole=True),
                parameter_server=variables(nothing, 1.0, whole=True),
                exchange=variables(links * job.model_mb),
                moves=variables(links * job.chunk_mb),
                ends=int(variables(ending, 1.0, whole=True)),
            )
            self._slots.append(slot)
        for place, job in enumerate(world.jobs):
            self._constrain(job, [slot for slot in self._slots if slot.job == place])
        self._constrain_resources()

    def _open_slots(self, known_cost: float) -> Iterator[tuple[int, int, float]]:
        """Yields job, slot, and waiting cost if the job ends in it, for all slots that an optimum can use."""
        slot_s, slot_us = self._world.setting.slot_s, self._world.setting.slot_us
        at_once = [job.waiting.cost_after(float(slot_s)) for job in self._world.jobs]
        for place, job in enumerate(self._world.jobs):
            most = known_cost - sum(at_once) + at_once[place]
            came = -(-job.arrives_us // slot_us)
            late = (came * slot_us - job.arrives_us) / US_PER_S
            for slots in range(1, self._world.setting.slots + 1):
                ending = job.waiting.cost_after(late + slots * slot_s)
                if slots > 1 and ending > most:
                    break
                yield place, came + slots - 1, ending

    def _constrain(self, job: TrainJob, slots: list[_Slot]) -> None:
        """Adds the constraints (2a) to (2c) and (2e) of a job."""
        require, sites = self.programme.require, range(len(self._sites))
        most, total = self._most[slots[0].job], sum(job.chunks.values())
        for row, site in enumerate(self._sites):
            there = job.chunks.get(site, 0)
            require(_sum(np.array([slot.moves[row] for slot in slots])), there, there)
        require({slot.ends: 1.0 for slot in slots}, 1, 1)
        for number, slot in enumerate(slots):
            for place in sites:
                workers = slot.workers[place]
                require({**_sum(slot.moves[:, place]), workers: -job.chunks_per_slot}, most=0)
                require({**_sum(slot.exchange[place]), workers: -1.0}, 0, 0)
                for ps in sites:
                    linked = {slot.exchange[place, ps]: 1.0, slot.parameter_server[ps]: -float(most[place])}
                    require(linked, most=0)
            # At most one parameter server, and only until the job ends.
            require({**_sum(slot.parameter_server), **{later.ends: -1.0 for later in slots[number:]}}, most=0)
            by_now = np.array([each.moves for each in slots[: number + 1]])
            require({**_sum(by_now), **{each.ends: -float(total) for each in slots[: number + 1]}}, least=0)

    def _constrain_resources(self) -> None:
        """Adds the constraints (2d)."""
        jobs = self._world.jobs
        for at in sorted({slot.at for slot in self._slots}):
            there = [(slot, jobs[slot.job]) for slot in self._slots if slot.at == at]
            for site, node in enumerate(self._nodes):
                for resource, capacity in node.capacity.items():
                    workers = {slot.workers[site]: job.worker.get(resource, 0.0) for slot, job in there}
                    parameter_servers = {
                        slot.parameter_server[site]: job.parameter_server.get(resource, 0.0)
                        for slot, job in there
                    }
                    self.programme.require({**workers, **parameter_servers}, most=capacity)

    def schedule(self, solution: Any) -> dict[int, tuple[JobAssignment, ...]]:
        """Converts a solution to assignments by slot."""
        schedule: dict[int, tuple[JobAssignment, ...]] = {}
        rounded = np.rint(solution).astype(np.int64)
        for slot in self._slots:
            moves = rounded[slot.moves]
            if not moves.any():
                continue
            job: JobName = self._world.jobs[slot.job].name
            trained = moves.sum(axis=0)
            parts = tuple(
                NodePart(node.name, 0, int(rounded[slot.workers[site]]), int(trained[site]))
                for site, node in enumerate(self._nodes)
                if trained[site]
            )
            sent = {
                (self._sites[one], self._sites[other]): int(moves[one, other])
                for one, other in np.argwhere(moves)
            }
            parameter_server = self._nodes[int(np.argmax(rounded[slot.parameter_server]))].name
            assignment = JobAssignment(job, parts, "the optimum has it so", parameter_server, sent)
            schedule[slot.at] = (*schedule.get(slot.at, ()), assignment)
        return schedule


def _sum(variables: Ints) -> dict[int, float]:
    return dict.fromkeys(variables.ravel().tolist(), 1.0)


def _most_workers(job: TrainJob, capacity: Mapping[str, float]) -> int:
    asked = [capacity.get(name, 0.0) // needs for name, needs in job.worker.items() if needs > 0]
    return int(min([*asked, _enough(job)]))


def _enough(job: TrainJob) -> int:
    return int(np.ceil(sum(job.chunks.values()) / job.chunks_per_slot))
