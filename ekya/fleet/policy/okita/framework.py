"""Okita (§IV.B.1, Algorithm 1) to the letter.

Our reading of what is damaged or left open:

- A tentative schedule of l slots from t on costs f of its last slot, t + l - 1, as in the objective (2);
  lines 9 and 16 of the listing are a slot later.
- T is an input and the end of the last slot: a schedule that ends later is taken only where none ends in
  time, and then the shortest. Otherwise a job whose cost no longer grows would train on one worker for ever.
- cost_i in line 17 contains what the job has paid so far, as cost1 in line 16 does: left out of both.
- ĩ in line 17, "the job that has deployed worker or PS in sites with insufficient resources": of each such
  site the job that ends first; of these the one that ends last, because all of the sites are needed.
- For jobs with a piecewise cost, the text of the first term (§V.C) would put jobs whose c has passed before
  all others, and says the opposite. We take 1 - (c - (t - a)) / max(c - (t - a)) before c, and 0 from c on.
- Jobs that have not waited yet have 0 as the first term.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from ekya.core.units import US_PER_S
from ekya.fleet.policy.assignment import Decision, JobAssignment
from ekya.fleet.policy.okita.ground import (
    ROUNDING,
    Floats,
    Ground,
    Ints,
    OkitaTask,
    as_assignment,
    fits,
    slot_of,
)
from ekya.fleet.policy.okita.placing import (
    OkitaWeights,
    least_transfer_costs,
    most_workers,
    moves_of,
    place,
    transfer_costs,
    workloads,
)
from ekya.fleet.policy.view import FleetView

_AT_ONCE = 8
"""Numbers of workers that are evaluated in one batch."""

_NEVER_ROOM = "no site can hold its parameter server and a worker"
_NO_ROOM = "a worker and its parameter server have no room beside jobs of higher priority"


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """A schedule from now on with a constant deployment.

    Attributes:
        workers: y_i^r; R.
        parameter_server: its site.
        order: of sites, best first; R.
        slots: l_i.
        link_cost: of the bandwidth in all slots.
        waiting_cost: f_i if it ends with the last slot.
    """

    workers: Ints
    parameter_server: int
    order: Ints
    slots: int
    link_cost: float
    waiting_cost: float

    @property
    def count(self) -> int:
        """N_i."""
        return int(self.workers.sum())

    @property
    def cost(self) -> float:
        """The cost that Algorithm 1 compares."""
        return self.link_cost + self.waiting_cost


@dataclass(frozen=True, slots=True)
class Okita:
    """The paper's algorithm.

    Attributes:
        every_us: length of a slot.
        weights: α and β.
        until_us: T, the end of the last slot; None: no limit.
    """

    every_us: int
    weights: OkitaWeights = field(default_factory=OkitaWeights)
    until_us: int | None = None
    name: str = "okita"
    on_events: bool = False

    def decide(self, view: FleetView) -> Decision:
        """Runs lines 3 to 24 of Algorithm 1, for one slot."""
        ground, tasks = slot_of(view, self.every_us)
        ordered = by_priority(tasks, self.weights)
        free = ground.capacity.copy()
        assignments, waiting = list[JobAssignment](), {}
        placed = list[Schedule]()
        for number, task in enumerate(ordered, 1):
            turn = f"its turn is {number} of {len(ordered)}"
            schedule, why = self._schedule(ground, task, free, placed)
            if schedule is None:
                waiting[task.job.name] = f"{why}; {turn}"
                continue
            workers, site = schedule.workers, schedule.parameter_server
            free -= task.resources_taken(workers, site)
            placed.append(schedule)
            moves = moves_of(ground, task, workers, schedule.order)
            reason = f"{told(schedule)}{why}; {turn}"
            assignments.append(as_assignment(ground, task, workers, site, moves, reason))
        return Decision(tuple(assignments), waiting)

    def _schedule(
        self, ground: Ground, task: OkitaTask, free: Floats, placed: Sequence[Schedule]
    ) -> tuple[Schedule | None, str]:
        """Runs lines 4 to 21: returns a job's schedule beside those placed before it, and the reason."""
        most = most_workers(task, free)
        if placed and not most:  # saves nearly all of the time if many jobs wait
            return None, _NO_ROOM if most_workers(task, ground.capacity) else _NEVER_ROOM
        wanted = tentative(ground, task, ground.capacity, self.weights, self.until_us)
        if wanted is None:
            return None, _NEVER_ROOM
        taken = task.resources_taken(wanted.workers, wanted.parameter_server)
        if fits(free, taken):
            return wanted, ""
        # Another placement is not looked for where there is no room for as many workers.
        counts = np.array([wanted.count])
        moved = osf(ground, task, free, counts, self.weights) if wanted.count <= most else None
        if moved is None:
            return None, f"{wanted.count} workers have no room beside jobs of higher priority"
        delay = _until_free(free, taken, placed)
        delayed = wanted.link_cost + task.waiting_cost(wanted.slots + delay)
        if moved.cost > delayed:
            return None, f"waiting {delay} slots costs {delayed:.0f}, another placement {moved.cost:.0f}"
        return moved, f", since its best sites are taken and waiting for them costs {delayed:.0f}"


def by_priority(tasks: Sequence[OkitaTask], weights: OkitaWeights) -> list[OkitaTask]:
    """Sorts jobs in decreasing order of O_i(t) (Eq. 4), ties in the order of arrival."""
    waited = [task.job.waiting.per_s * task.waited for task in tasks if task.job.waiting.due_s is None]
    longest = max(waited, default=0.0)
    until_due = [_until_due(task) for task in tasks if task.job.waiting.due_s is not None]
    farthest = max(until_due, default=0.0)

    def value(task: OkitaTask) -> float:
        if task.job.waiting.due_s is None:
            first = task.job.waiting.per_s * task.waited / longest if longest > 0 else 0.0
        else:
            until = _until_due(task)
            first = 1 - until / farthest if until > 0 else 0.0
        return weights.waited * first - weights.left * task.total / max(1, int(task.chunks.sum()))

    return sorted(tasks, key=lambda task: (-value(task), task.job.arrives_us, task.job.name))


def _until_due(task: OkitaTask) -> float:
    """Returns c - (t - a_i): slots in which the job can still end before its cost jumps."""
    due_s = task.job.waiting.due_s or 0.0
    return due_s * US_PER_S / task.slot_us - 1 - task.waited


def tentative(
    ground: Ground, task: OkitaTask, free: Floats, weights: OkitaWeights, until_us: int | None
) -> Schedule | None:
    """Runs lines 4 to 10: returns the cheapest schedule over all numbers of workers; None where none fits.

    Args:
        free: U_r^k; R x K.
        until_us: T; None: no limit.
    """
    counts = np.arange(1, task.workers_at_most() + 1)
    if until_us is not None:
        slots = task.slots_needed(counts)
        most = min(int(counts[-1]), max(1, most_workers(task, free)))
        longest = max((until_us - task.now_us) // task.slot_us, int(slots[most - 1]))
        counts = counts[slots <= longest]
    return osf(ground, task, free, counts, weights)


def osf(
    ground: Ground, task: OkitaTask, free: Floats, counts: Ints, weights: OkitaWeights
) -> Schedule | None:
    """Runs OSF for several numbers of workers; returns the cheapest schedule, in a tie the fewest workers.

    The data transfers of a number are computed only where a lower bound of its cost can still win; the result
    is the same.

    Args:
        free: U_r^k; R x K.
        counts: N, ascending; B.
    """
    found = place(ground, task, free, counts, weights)
    slots = task.slots_needed(counts)
    lengths, at = np.unique(slots, return_inverse=True)
    waiting = np.array([task.waiting_cost(int(length)) for length in lengths])[at]
    cases = np.flatnonzero(np.isfinite(found.slot_costs))
    workers = found.workers(cases, counts[cases])
    loads = workloads(task.left, task.can_train(workers * slots[cases][:, None]), found.order)
    sure = (slots * found.slot_costs + waiting)[cases]
    least = sure + task.job.chunk_mb * least_transfer_costs(ground, task.left, loads)
    best, best_cost = -1, inf
    by_least = np.argsort(least, kind="stable")
    for begin in range(0, len(by_least), _AT_ONCE):
        some = by_least[begin : begin + _AT_ONCE]
        # The tolerance covers rounding errors of the bound.
        some = some[least[some] <= best_cost * (1 + 1e-12)]
        if not some.size:
            break
        costs = sure[some] + task.job.chunk_mb * transfer_costs(ground, task.left, loads[some])
        for row, cost in zip(some, costs, strict=True):
            if (cost, row) < (best_cost, best):
                best, best_cost = int(row), float(cost)
    if best < 0:
        return None
    case = int(cases[best])
    return Schedule(
        workers[best],
        int(found.parameter_servers[case]),
        found.order,
        int(slots[case]),
        best_cost - float(waiting[case]),
        float(waiting[case]),
    )


def _until_free(free: Floats, taken: Floats, placed: Sequence[Schedule]) -> int:
    """Returns l of the job ĩ in line 17, in slots."""
    waits = [1]
    for site in np.flatnonzero((taken > free + ROUNDING).any(axis=1)):
        there = [one.slots for one in placed if one.workers[site] or one.parameter_server == site]
        waits.append(min(there, default=1))
    return max(waits)


def told(schedule: Schedule) -> str:
    """Describes a schedule in words."""
    sites = np.count_nonzero(schedule.workers)
    return (
        f"{schedule.count} workers on {sites} sites end it in {schedule.slots} slots, "
        f"which costs {schedule.link_cost:.0f} for bandwidth and {schedule.waiting_cost:.0f} for waiting"
    )
