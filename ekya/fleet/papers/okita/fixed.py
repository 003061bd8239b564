"""Baselines FIFO and DRF of §V.A, in which a job keeps its initial deployment to its end.

Workers and parameter server are placed by Okita's Q and PA on the resources that are free when the job
starts. The data is dispatched then: each site trains as much as its workers have time for to the end, and
greedily collects the data that it lacks.

Our reading of what is left open:

- FIFO's A_i(a_i) is the number of the job's workers that fit with all sites free: a job that arrives while
  others run would otherwise keep a handful of workers to its end, and costs grow exponentially. No job
  overtakes another.
- FIFO's number of workers "is fixed within [1, 0.5 A_i]": we take the middle, which is far better than a
  random number (a job that draws 1 trains for eighty slots) and than the upper end; see ``part``.
- DRF's number of workers is the job's equal dominant share (progressive filling over all present jobs, and
  the sum of each resource over all sites). The job with the smallest dominant share is next, and starts where
  its workers fit.
- A job takes no more workers than it needs to end in one slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import numpy as np

from ekya.fleet.policy.assignment import Decision, JobAssignment
from ekya.fleet.policy.okita.ground import ROUNDING, Floats, Ground, Ints, OkitaTask, as_assignment, slot_of
from ekya.fleet.policy.okita.placing import OkitaWeights, most_workers, moves_of, place, this_slot
from ekya.fleet.policy.places import JobName
from ekya.fleet.policy.view import FleetView


@dataclass(frozen=True, slots=True)
class OkitaFifo:
    """First in, first out.

    Attributes:
        every_us: length of a slot.
        part: of 0.5 A_i that a job takes, in [0, 1].
    """

    every_us: int
    part: float = 0.5
    name: str = "okita-fifo"
    on_events: bool = False

    def decide(self, view: FleetView) -> Decision:
        """Keeps running jobs; starts others in the order of arrival, up to the first that does not fit."""
        slot = _Slot.from_view(view, self.every_us)
        reasons: dict[JobName, str] = {}
        for task in sorted(slot.waiting, key=lambda task: (task.job.arrives_us, task.job.name)):
            if reasons:
                reasons[task.job.name] = "others came before it and wait"
                continue
            half = most_workers(task, slot.ground.capacity) // 2
            count = max(1, min(task.workers_at_most(), half, 1 + floor(self.part * half)))
            if not slot.starts(task, count):
                reasons[task.job.name] = f"its {count} workers have no room"
        return Decision(tuple(slot.assignments), reasons)


@dataclass(frozen=True, slots=True)
class Drf:
    """Dominant resource fairness, in slots of ``every_us``."""

    every_us: int
    name: str = "drf"
    on_events: bool = False

    def decide(self, view: FleetView) -> Decision:
        """Keeps running jobs; starts others in increasing order of their fair shares, where they fit."""
        slot = _Slot.from_view(view, self.every_us)
        fair = fair_numbers(slot.ground, slot.tasks)
        reasons: dict[JobName, str] = {}
        in_turn = sorted(
            slot.waiting, key=lambda task: (fair[task.job.name][1], task.job.arrives_us, task.job.name)
        )
        for task in in_turn:
            count, share = fair[task.job.name]
            if not slot.starts(task, count):
                reasons[task.job.name] = f"the {count} workers of its fair share {share:.0%} have no room"
        return Decision(tuple(slot.assignments), reasons)


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """State of a slot in which running jobs continue and others may start beside them.

    Attributes:
        waiting: jobs that do not run.
        free: free resources of each site; shrinks as jobs start.
        assignments: of running jobs; grows as jobs start.
    """

    ground: Ground
    tasks: list[OkitaTask]
    waiting: list[OkitaTask]
    free: Floats
    assignments: list[JobAssignment]

    @classmethod
    def from_view(cls, view: FleetView, slot_us: int) -> "_Slot":
        """Returns the slot with the running jobs in their places."""
        ground, tasks = slot_of(view, slot_us)
        slot = cls(ground, tasks, [], ground.capacity.copy(), [])
        place_of = {node: place for place, node in enumerate(ground.nodes)}
        for task in tasks:
            assignment = task.state.assignment
            if assignment is None or assignment.parameter_server is None:
                slot.waiting.append(task)
                continue
            workers = np.zeros(len(ground.sites), dtype=np.int64)
            for part in assignment.parts:
                workers[place_of[part.node]] += part.workers
            reason = f"it keeps its {int(workers.sum())} workers to its end"
            slot._assign(task, workers, place_of[assignment.parameter_server], reason)
        return slot

    def starts(self, task: OkitaTask, count: int) -> bool:
        """Starts a job with a number of workers, placed by Q and PA; returns whether they fit."""
        counts = np.array([count])
        found = place(self.ground, task, self.free, counts, OkitaWeights())
        if found.parameter_servers[0] < 0:
            return False
        workers = found.workers(np.array([0]), counts)[0]
        reason = f"it starts with {int(workers.sum())} workers on {np.count_nonzero(workers)} sites"
        self._assign(task, workers, int(found.parameter_servers[0]), reason)
        return True

    def _assign(self, task: OkitaTask, workers: Ints, parameter_server: int, reason: str) -> None:
        """Dispatches all data to where it is trained, a site's own first; this slot moves a part of it."""
        np.subtract(self.free, task.resources_taken(workers, parameter_server), out=self.free)
        slots = int(task.slots_needed(np.array([workers.sum()]))[0])
        everything = moves_of(self.ground, task, workers * slots, np.argsort(-workers, kind="stable"))
        moves = this_slot(everything, task.can_train(workers))
        self.assignments.append(as_assignment(self.ground, task, workers, parameter_server, moves, reason))


def fair_numbers(ground: Ground, tasks: Sequence[OkitaTask]) -> dict[JobName, tuple[int, float]]:
    """Returns the number of workers and the dominant share of each present job at max-min fairness.

    Progressive filling: the job with the smallest dominant share that can use another worker gets one, as
    long as all resources last. Parameter servers count. Present assignments do not: a job that arrives while
    all resources are taken would otherwise keep one or two workers to its end.
    """
    capacity = ground.capacity.sum(axis=0)
    there = np.maximum(capacity, ROUNDING)
    most = [max(1, min(task.workers_at_most(), most_workers(task, ground.capacity))) for task in tasks]
    counts = [0] * len(tasks)
    left = capacity - sum((task.parameter_server for task in tasks), np.zeros(len(capacity)))
    a_worker = [float((task.worker / there).max()) for task in tasks]
    shares = [float((task.parameter_server / there).max()) for task in tasks]
    hungry = sorted(range(len(tasks)), key=lambda at: (tasks[at].job.arrives_us, tasks[at].job.name))
    while hungry:
        next_one = min(hungry, key=lambda at: shares[at])
        if counts[next_one] >= most[next_one] or (tasks[next_one].worker > left + ROUNDING).any():
            hungry.remove(next_one)
            continue
        counts[next_one] += 1
        left = left - tasks[next_one].worker
        shares[next_one] += a_worker[next_one]
    return {
        task.job.name: (max(1, count), share)
        for task, count, share in zip(tasks, counts, shares, strict=True)
    }
