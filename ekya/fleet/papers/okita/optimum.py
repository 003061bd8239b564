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
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from ekya.core.units import US_PER_S
from ekya.fleet.papers.okita.workload import OkitaWorkload
from ekya.fleet.policy.assignment import Assignment, Part
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.names import JobName, SiteName

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class UnsolvedError(Exception):
    """No solution was found within the time limit."""


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
    schedule: Mapping[int, tuple[Assignment, ...]]


def optimum(world: OkitaWorkload, known_cost: float, limit_s: float = 60.0, gap: float = 1e-4) -> Optimum:
    """Solves problem (2).

    Args:
        world: a small one: four jobs on three sites take seconds.
        known_cost: of any schedule; an upper bound that limits how late a job can end, and so the slots.
        limit_s: time limit of the solver.
        gap: relative gap between cost and bound at which the solver may stop.

    Raises:
        UnsolvedError: no schedule was found within the time limit.
    """
    model = _Model(world, known_cost)
    solved = milp(
        model.cost,
        integrality=model.whole,
        bounds=Bounds(np.zeros(model.size), model.upper),
        constraints=model.constraints(),
        options={"time_limit": limit_s, "mip_rel_gap": gap},
    )
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
    """The programme: variables in one vector, rows of constraints in lists."""

    def __init__(self, world: OkitaWorkload, known_cost: float) -> None:
        self._world = world
        places = world.places
        self._nodes = sorted(places.nodes.values(), key=lambda node: node.site)
        self._sites: list[SiteName] = [node.site for node in self._nodes]
        self._links = np.array([[places.mb_cost(one, other) for other in self._sites] for one in self._sites])
        self._most = np.array(
            [[_most_workers(job, node.capacity) for node in self._nodes] for job in world.jobs]
        )
        self.size = 0
        cost, upper, whole = list[Floats](), list[Floats](), list[Floats]()
        self._slots = list[_Slot]()
        for job_place, at, ending in self._open_slots(known_cost):
            job, count = world.jobs[job_place], len(self._sites)
            most = np.minimum(self._most[job_place], _enough(job)).astype(float)
            blocks = (
                (np.zeros(count), most, 1.0),
                (np.zeros(count), np.ones(count), 1.0),
                ((self._links * job.model_mb).ravel(), np.full(count * count, np.inf), 0.0),
                ((self._links * job.chunk_mb).ravel(), np.full(count * count, np.inf), 0.0),
                (np.array([ending]), np.ones(1), 1.0),
            )
            places_of = []
            for block_cost, block_upper, is_whole in blocks:
                places_of.append(np.arange(self.size, self.size + len(block_cost)))
                self.size += len(block_cost)
                cost.append(block_cost)
                upper.append(block_upper)
                whole.append(np.full(len(block_cost), is_whole))
            y, s, z, g, ends = places_of
            square = count, count
            self._slots.append(_Slot(job_place, at, y, s, z.reshape(square), g.reshape(square), int(ends[0])))
        self.cost, self.upper, self.whole = np.concatenate(cost), np.concatenate(upper), np.concatenate(whole)
        self._rows = list[tuple[dict[int, float], float, float]]()

    def _open_slots(self, known_cost: float) -> Iterator[tuple[int, int, float]]:
        """Yields job, slot, and waiting cost if the job ends in it, for all slots that an optimum can use."""
        slot_s, slot_us = self._world.setting.slot_s, self._world.setting.slot_us
        at_once = [job.waiting.of(float(slot_s)) for job in self._world.jobs]
        for place, job in enumerate(self._world.jobs):
            most = known_cost - sum(at_once) + at_once[place]
            came = -(-job.arrives_us // slot_us)
            late = (came * slot_us - job.arrives_us) / US_PER_S
            for slots in range(1, self._world.setting.slots + 1):
                ending = job.waiting.of(late + slots * slot_s)
                if slots > 1 and ending > most:
                    break
                yield place, came + slots - 1, ending

    def constraints(self) -> LinearConstraint:
        """Returns the constraints (2a) to (2e)."""
        for place, job in enumerate(self._world.jobs):
            self._of_job(job, [slot for slot in self._slots if slot.job == place])
        self._of_resources()
        rows, columns, values = list[int](), list[int](), list[float]()
        low, high = list[float](), list[float]()
        for number, (terms, least, most) in enumerate(self._rows):
            rows += [number] * len(terms)
            columns += terms.keys()
            values += terms.values()
            low.append(least)
            high.append(most)
        matrix = csr_array((values, (rows, columns)), shape=(len(self._rows), self.size))
        return LinearConstraint(matrix, low, high)

    def _of_job(self, job: TrainJob, slots: list[_Slot]) -> None:
        most, total = self._most[slots[0].job], sum(job.chunks.values())
        for row, site in enumerate(self._sites):
            all_sent = {int(place): 1.0 for slot in slots for place in slot.moves[row]}
            self._rows.append((all_sent, job.chunks.get(site, 0), job.chunks.get(site, 0)))
        self._rows.append(({slot.ends: 1.0 for slot in slots}, 1, 1))
        for number, slot in enumerate(slots):
            for place in range(len(self._sites)):
                got = {int(one): 1.0 for one in slot.moves[:, place]}
                self._rows.append(({**got, int(slot.workers[place]): -job.chunks_per_slot}, -np.inf, 0))
                split = {int(one): 1.0 for one in slot.exchange[place]}
                self._rows.append(({**split, int(slot.workers[place]): -1.0}, 0, 0))
                for parameter_server in range(len(self._sites)):
                    linked = {
                        int(slot.exchange[place, parameter_server]): 1.0,
                        int(slot.parameter_server[parameter_server]): -float(most[place]),
                    }
                    self._rows.append((linked, -np.inf, 0))
            # At most one parameter server, and only until the job ends.
            one = {int(place): 1.0 for place in slot.parameter_server}
            self._rows.append(({**one, **{later.ends: -1.0 for later in slots[number:]}}, -np.inf, 0))
            by_now = {int(place): 1.0 for each in slots[: number + 1] for place in each.moves.ravel()}
            ended = {each.ends: -float(total) for each in slots[: number + 1]}
            self._rows.append(({**by_now, **ended}, 0, np.inf))

    def _of_resources(self) -> None:
        jobs = self._world.jobs
        for at in sorted({slot.at for slot in self._slots}):
            there = [slot for slot in self._slots if slot.at == at]
            for site, node in enumerate(self._nodes):
                for resource, capacity in node.capacity.items():
                    workers = {
                        int(slot.workers[site]): jobs[slot.job].worker.get(resource, 0.0) for slot in there
                    }
                    parameter_servers = {
                        int(slot.parameter_server[site]): jobs[slot.job].parameter_server.get(resource, 0.0)
                        for slot in there
                    }
                    self._rows.append(({**workers, **parameter_servers}, -np.inf, capacity))

    def schedule(self, solution: Any) -> dict[int, tuple[Assignment, ...]]:
        """Converts a solution to assignments by slot."""
        schedule: dict[int, tuple[Assignment, ...]] = {}
        rounded = np.rint(solution).astype(np.int64)
        for slot in self._slots:
            moves = rounded[slot.moves]
            if not moves.any():
                continue
            job: JobName = self._world.jobs[slot.job].name
            trained = moves.sum(axis=0)
            parts = tuple(
                Part(node.name, 0, int(rounded[slot.workers[site]]), int(trained[site]))
                for site, node in enumerate(self._nodes)
                if trained[site]
            )
            sent = {
                (self._sites[one], self._sites[other]): int(moves[one, other])
                for one, other in np.argwhere(moves)
            }
            parameter_server = self._nodes[int(np.argmax(rounded[slot.parameter_server]))].name
            assignment = Assignment(job, parts, "the optimum has it so", parameter_server, sent)
            schedule[slot.at] = (*schedule.get(slot.at, ()), assignment)
        return schedule


def _most_workers(job: TrainJob, capacity: Mapping[str, float]) -> int:
    asked = [capacity.get(name, 0.0) // needs for name, needs in job.worker.items() if needs > 0]
    return int(min([*asked, _enough(job)]))


def _enough(job: TrainJob) -> int:
    return int(np.ceil(sum(job.chunks.values()) / job.chunks_per_slot))
