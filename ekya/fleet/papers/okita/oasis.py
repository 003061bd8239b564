"""Baseline OASiS (Bao et al., "Online Job Scheduling in Distributed Machine Learning Clusters"), as in §V.A.

An arriving job gets the schedule over future slots with the least total cost of deployment and latency; unit
costs of resources grow exponentially with their utilisation in a slot: L (U/L)^x for the utilisation x, as in
that paper. Bandwidth is ignored. Its jobs have utilities that fall with time, Okita's have costs that grow: a
job's stake v is its cost if it ends within one slot.

Our reading of what is left open: prices are by job. L makes all of the job's worker-slots cost v/4 in total
on free resources, U makes one of them cost v on fully used ones. Schedules are computed again in every slot,
in the order of arrival, for the remaining work of each job. Earlier jobs are planned first and see the same
prices, so they get the rest of their schedules again; nothing has to be stored. Ties between sites are
broken by Okita's Q, as for the other baselines, and the parameter server is placed where it is cheapest in
each slot.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from ekya.fleet.policy.assignment import Decision, JobAssignment
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
from ekya.fleet.policy.view import FleetView

_LONGEST = 400
"""Upper bound of the planned slots; a schedule ends long before."""


@dataclass(frozen=True, slots=True)
class Oasis:
    """Cheapest schedules by unit resource costs, in slots of ``every_us``."""

    every_us: int
    name: str = "oasis"
    on_events: bool = False

    def decide(self, view: FleetView) -> Decision:
        """Plans the schedules of all jobs in the order of arrival, and assigns the present slot of each."""
        ground, tasks = slot_of(view, self.every_us)
        free: list[Floats] = []
        assignments, waiting = list[JobAssignment](), {}
        for task in sorted(tasks, key=lambda task: (task.job.arrives_us, task.job.name)):
            plan = _cheapest(ground, task, free)
            if plan is None:
                waiting[task.job.name] = "no site can hold its parameter server and a worker"
                continue
            plan.take_resources(task, free)
            workers, site = plan.workers[0], int(plan.parameter_servers[0])
            if not workers.any():
                begins = int(np.flatnonzero(plan.workers.any(axis=1))[0])
                waiting[task.job.name] = f"its schedule begins in {begins} slots, when resources cost less"
                continue
            reason = (
                f"{int(workers.sum())} of {int(plan.workers.sum())} workers of its cheapest schedule of "
                f"{len(plan.workers)} slots"
            )
            moves = moves_of(ground, task, workers, plan.order)
            assignments.append(as_assignment(ground, task, workers, site, moves, reason))
        return Decision(tuple(assignments), waiting)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """A schedule of H slots from now on.

    Attributes:
        workers: H x R.
        parameter_servers: site of the parameter server; H.
        order: of sites, best first; R.
    """

    workers: Ints
    parameter_servers: Ints
    order: Ints

    def take_resources(self, task: OkitaTask, free: list[Floats]) -> None:
        """Takes its resources from the slots, which are at least as many."""
        for slot, (workers, site) in enumerate(zip(self.workers, self.parameter_servers, strict=True)):
            if workers.any():
                free[slot] = free[slot] - task.resources_taken(workers, int(site))


def _cheapest(ground: Ground, task: OkitaTask, free: list[Floats]) -> _Plan | None:
    """Returns the cheapest plan over all lengths; extends ``free`` by the slots that it examines."""
    if not most_workers(task, ground.capacity):
        return None
    order = np.argsort(-quality(ground, task, ground.capacity, OkitaWeights()), kind="stable")
    wanted = task.workers_at_most()
    # Lower bound: all workers and one parameter server on free resources.
    nothing = np.zeros_like(ground.capacity)
    cheapest = wanted * _prices(task, task.worker, nothing).min()
    least = (cheapest + _prices(task, task.parameter_server, nothing).min()) * (1 - 1e-9)
    slots = []
    best, best_cost, untouched = None, inf, 0
    for length in range(1, _LONGEST + 1):
        waiting = task.waiting_cost(length)
        if waiting + least >= best_cost:
            break
        if len(free) < length:
            free.append(ground.capacity)
        slots.append(_slot(ground, task, free[length - 1], order))
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
    return _Plan(workers, sites, order)


def _prices(task: OkitaTask, needs: Floats, taken: Floats) -> Floats:
    """Returns what a container costs at each site, R: with these needs, K, at a utilisation, R x K."""
    needed, wanted = needs > 0, task.workers_at_most()
    prices = task.waiting_cost(1) / (4 * wanted) * (4.0 * wanted) ** taken
    return np.asarray(prices[:, needed].mean(axis=1)) if needed.any() else np.zeros(len(prices))


def _slot(ground: Ground, task: OkitaTask, free: Floats, order: Ints) -> tuple[Ints, Floats, int, float]:
    """Returns workers that fit and their unit cost, by ``order``; the parameter server's site and cost."""
    taken = 1 - np.divide(free, ground.capacity, out=np.ones_like(free), where=ground.capacity > 0)
    wanted = task.workers_at_most()
    unit = _prices(task, task.worker, taken)[order]
    alone, beside = np.maximum(room(free, task), 0), room_beside(free, task)
    costs = np.where(beside >= 0, _prices(task, task.parameter_server, taken), inf)[order]
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
