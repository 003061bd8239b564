"""Baseline OASiS (Bao et al., "Online Job Scheduling in Distributed Machine Learning Clusters"), as in §V.A.

An arriving job gets the schedule over future slots with the least total cost of deployment and latency; unit
costs of resources grow exponentially with their utilisation in a slot: L (U/L)^x for the utilisation x, as in
that paper. Bandwidth is ignored. Its jobs have utilities that fall with time, Okita's have costs that grow: a
job's stake v is its cost if it ends within one slot.

Okita's paper says no more than that, so there are two readings:

- `oasis`: prices by job. L makes all of the job's worker-slots cost v/4 in total on free resources, U makes
  one of them cost v on fully used ones. Schedules are computed again in every slot, in the order of arrival,
  for the remaining work of each job. Earlier jobs are planned first and see the same prices, so they get the
  rest of their schedules again; nothing has to be stored.
- `oasis-fixed`: as in OASiS's paper, bounds of prices over all jobs, also future ones, and a schedule that is
  fixed at arrival. U of a resource is the largest stake per unit of it in a worker or a parameter server; L
  the smallest stake per unit in all of a job's worker-slots, divided by 4. What a schedule leaves, since
  sites train whole chunks, is scheduled when it is over; so is the rest of a job whose site has failed.

In both, ties between sites are broken by Okita's Q, as for the other baselines, and the parameter server is
placed where it is cheapest in each slot.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from ekya.core.units import US_PER_S
from ekya.fleet.policy.assignment import Decision, JobAssignment
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.okita.ground import (
    Floats,
    Ground,
    Ints,
    OkitaTask,
    as_assignment,
    first_of,
    room,
    room_beside,
    slot_of,
)
from ekya.fleet.policy.okita.placing import OkitaWeights, most_workers, moves_of, quality
from ekya.fleet.policy.places import JobName, SiteName
from ekya.fleet.policy.view import FleetView

_LONGEST = 400
"""Upper bound of the planned slots; a schedule ends long before."""


Prices = Callable[[Ground, OkitaTask, Floats, Floats], Floats]
"""Returns what a container costs at each site, R: of a task, with these needs, K, at a utilisation, R x K."""


@dataclass(frozen=True, slots=True)
class Oasis:
    """Cheapest schedules by unit resource costs.

    Attributes:
        every_us: length of a slot.
        bounds: of prices over all jobs, with which a schedule is fixed at arrival; None: prices are of each
            job, and schedules are computed again in every slot.
    """

    every_us: int
    bounds: "Bounds | None" = None
    on_events: bool = False

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "oasis" if self.bounds is None else "oasis-fixed"

    def decide(self, view: FleetView) -> Decision:
        """Plans the schedules of jobs that have none, and assigns the present slot of all."""
        ground, tasks = _in_order(view, self.every_us)
        plans: dict[JobName, _Plan | None] = {}
        memory = dict[JobName, str]()
        free: list[Floats] = []
        for task in tasks:
            kept = task.state.memory
            rest = _Plan.from_text(kept).remaining_slots(ground, task) if kept else None
            if rest is not None:
                free += [ground.capacity] * (len(rest.workers) - len(free))
                rest.take_resources(task, free)
                plans[task.job.name], memory[task.job.name] = rest, kept
        for task in tasks:
            if task.job.name not in plans:
                plan = plans[task.job.name] = _cheapest(ground, task, free, self.bounds or _of_job)
                if plan is not None:
                    plan.take_resources(task, free)
                    if self.bounds is not None:
                        memory[task.job.name] = plan.text
        decision = _decided(ground, [(task, plans[task.job.name]) for task in tasks])
        return replace(decision, memory=memory)


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Bounds of prices over all jobs, by unit of a resource.

    Attributes:
        lowest: L.
        highest: U, by name of the resource.
    """

    lowest: float
    highest: dict[str, float]

    @classmethod
    def over_jobs(cls, jobs: Iterable[TrainJob], slot_us: int) -> "Bounds":
        """Returns the bounds over the jobs that have a stake."""
        lowest, highest = inf, dict[str, float]()
        for job in jobs:
            stake = job.waiting.cost_after(slot_us / US_PER_S)
            if not stake:
                continue
            slots = ceil(sum(job.chunks.values()) / job.chunks_per_slot)
            needs = [*job.worker.items(), *job.parameter_server.items()]
            for name, amount in needs:
                if amount > 0:
                    highest[name] = max(highest.get(name, 0.0), stake / amount)
            units = sum(job.worker.values()) * slots + sum(job.parameter_server.values())
            if units > 0:
                lowest = min(lowest, stake / (4 * units))
        return cls(lowest if highest else 1.0, highest)

    def __call__(self, ground: Ground, task: OkitaTask, needs: Floats, taken: Floats) -> Floats:
        """Returns the prices of a container; see ``Prices``."""
        highest = np.array([self.highest.get(name, self.lowest) for name in ground.resources])
        return np.asarray((needs * self.lowest * (highest / self.lowest) ** taken).sum(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """A schedule of H slots.

    Attributes:
        begins: number of its first slot.
        sites: names; R.
        workers: H x R.
        parameter_servers: site of the parameter server; H.
        order: of sites, best first; R.
    """

    begins: int
    sites: tuple[SiteName, ...]
    workers: Ints
    parameter_servers: Ints
    order: Ints

    @classmethod
    def from_text(cls, text: str) -> "_Plan":
        """Reads ``text``."""
        begins, sites, *arrays = json.loads(text)
        return cls(begins, tuple(sites), *(np.array(one, dtype=np.int64) for one in arrays))

    @property
    def text(self) -> str:
        """The schedule as JSON, for ``Decision.memory``."""
        arrays = (self.workers, self.parameter_servers, self.order)
        return json.dumps([self.begins, self.sites, *(one.tolist() for one in arrays)])

    def take_resources(self, task: OkitaTask, free: list[Floats]) -> None:
        """Takes its resources from the slots, which are at least as many."""
        for slot, (workers, site) in enumerate(zip(self.workers, self.parameter_servers, strict=True)):
            if workers.any():
                free[slot] = free[slot] - task.resources_taken(workers, int(site))

    def remaining_slots(self, ground: Ground, task: OkitaTask) -> "_Plan | None":
        """Returns it from now on; None where it is over, or a site of it cannot be used any more."""
        slot = task.now_us // task.slot_us
        done = slot - self.begins
        if done >= len(self.workers) or ground.sites != self.sites:
            return None
        rest = replace(
            self, begins=slot, workers=self.workers[done:], parameter_servers=self.parameter_servers[done:]
        )
        failed = np.flatnonzero(task.closed)
        parameter_servers = rest.parameter_servers[rest.workers.any(axis=1)]
        return None if rest.workers[:, failed].any() or np.isin(parameter_servers, failed).any() else rest


def _in_order(view: FleetView, slot_us: int) -> tuple[Ground, list[OkitaTask]]:
    """Returns a slot, with its jobs in the order of arrival."""
    ground, tasks = slot_of(view, slot_us)
    return ground, sorted(tasks, key=lambda task: (task.job.arrives_us, task.job.name))


def _decided(ground: Ground, plans: Iterable[tuple[OkitaTask, _Plan | None]]) -> Decision:
    """Assigns the first slot of each plan."""
    assignments, waiting = list[JobAssignment](), {}
    for task, plan in plans:
        if plan is None:
            waiting[task.job.name] = "no site can hold its parameter server and a worker"
        elif not plan.workers[0].any():
            begins = int(np.flatnonzero(plan.workers.any(axis=1))[0])
            waiting[task.job.name] = f"its schedule begins in {begins} slots, when resources cost less"
        else:
            workers, site = plan.workers[0], int(plan.parameter_servers[0])
            reason = (
                f"{int(workers.sum())} of {int(plan.workers.sum())} workers of its cheapest schedule of "
                f"{len(plan.workers)} slots"
            )
            moves = moves_of(ground, task, workers, plan.order)
            assignments.append(as_assignment(ground, task, workers, site, moves, reason))
    return Decision(tuple(assignments), waiting)


def _cheapest(ground: Ground, task: OkitaTask, free: list[Floats], prices: Prices) -> _Plan | None:
    """Returns the cheapest plan over all lengths; extends ``free`` by the slots that it examines."""
    if not most_workers(task, ground.capacity):
        return None
    order = np.argsort(-quality(ground, task, ground.capacity, OkitaWeights()), kind="stable")
    wanted = task.workers_at_most()
    # Lower bound: all workers and one parameter server on free resources.
    nothing = np.zeros_like(ground.capacity)
    cheapest = wanted * prices(ground, task, task.worker, nothing).min()
    least = (cheapest + prices(ground, task, task.parameter_server, nothing).min()) * (1 - 1e-9)
    slots = []
    best, best_cost, untouched = None, inf, 0
    for length in range(1, _LONGEST + 1):
        waiting = task.waiting_cost(length)
        if waiting + least >= best_cost:
            break
        if len(free) < length:
            free.append(ground.capacity)
        slots.append(_slot(ground, task, free[length - 1], order, prices))
        rooms, units, sites, site_costs = (np.array(column) for column in zip(*slots, strict=True))
        found = _fill(rooms, units, site_costs, wanted)
        if found is not None and found[1] + waiting < best_cost:
            best, best_cost = (found[0], sites), found[1] + waiting
        untouched += int(rooms[-1].sum()) if free[length - 1] is ground.capacity else 0
        if untouched >= wanted:
            # Further slots without planned jobs are no cheaper than these.
            break
    if best is None:
        return None
    filled, sites = best
    workers = np.zeros_like(filled)
    workers[:, order] = filled
    return _Plan(task.now_us // task.slot_us, ground.sites, workers, sites, order)


def _of_job(ground: Ground, task: OkitaTask, needs: Floats, taken: Floats) -> Floats:
    """Returns the prices of a container between the bounds of its own job; see ``Prices``."""
    needed, wanted = needs > 0, task.workers_at_most()
    prices = task.waiting_cost(1) / (4 * wanted) * (4.0 * wanted) ** taken
    return np.asarray(prices[:, needed].mean(axis=1)) if needed.any() else np.zeros(len(prices))


def _slot(
    ground: Ground, task: OkitaTask, free: Floats, order: Ints, prices: Prices
) -> tuple[Ints, Floats, int, float]:
    """Returns workers that fit and their unit cost, by ``order``; the parameter server's site and cost."""
    taken = 1 - np.divide(free, ground.capacity, out=np.ones_like(free), where=ground.capacity > 0)
    wanted = task.workers_at_most()
    unit = prices(ground, task, task.worker, taken)[order]
    alone, beside = np.maximum(room(free, task), 0), room_beside(free, task)
    costs = np.where(beside >= 0, prices(ground, task, task.parameter_server, taken), inf)[order]
    site = int(order[np.argmin(costs)])
    if beside[site] < 0:
        return np.zeros_like(alone), unit, site, 0.0
    held = alone.copy()
    held[site] = beside[site]
    return np.minimum(held, wanted)[order], unit, site, float(costs.min())


def _fill(rooms: Ints, units: Floats, site_costs: Floats, wanted: int) -> tuple[Ints, float] | None:
    """Returns the cheapest worker-slots and their cost; None where there are too few."""
    if rooms.sum() < wanted:
        return None
    cheapest = np.argsort(units.ravel(), kind="stable")
    taken = np.empty(rooms.size, dtype=rooms.dtype)
    taken[cheapest] = first_of(rooms.ravel()[cheapest], wanted)
    workers = taken.reshape(rooms.shape)
    return workers, float((workers * units).sum() + site_costs[workers.any(axis=1)].sum())
