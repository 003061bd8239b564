"""Baseline OASiS (Bao et al., "Online Job Scheduling in Distributed Machine Learning Clusters"), as in §V.A.

An arriving job gets the schedule over future slots with the least total cost of deployment and latency; unit
costs of resources grow exponentially with their utilisation in a slot. Bandwidth is ignored.

Implementation:

- Schedules are computed again in every slot, in the order of arrival, for the remaining work of each job.
  Earlier jobs are planned first and see the same prices, so they get the rest of their schedules again;
  nothing has to be stored.
- A site's resource with the utilisation x costs L (U/L)^x, as in that paper. A job's stake v is its cost if
  it ends within one slot. L makes all of its worker-slots (W) cost v/4 in total on free resources, U makes
  one of them cost v on fully used ones.
- Ties between sites are broken by Okita's Q, as for the other baselines.
- The parameter server is placed where it is cheapest in each slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from ekya.fleet.policy.assignment import Assignment, Decision
from ekya.fleet.policy.okita.ground import Floats, Ground, Ints, Task, as_assignment, room, server_room
from ekya.fleet.policy.okita.placing import Weights, quality
from ekya.fleet.policy.okita.transfer import transfers, workloads
from ekya.fleet.policy.view import FleetView

_LONGEST = 400
"""Upper bound of the planned slots; a schedule ends long before."""


@dataclass(frozen=True, slots=True)
class Oasis:
    """Cheapest schedules by unit resource costs.

    Attributes:
        every_us: length of a slot.
    """

    every_us: int
    name: str = "oasis"

    def decide(self, view: FleetView) -> Decision:
        """Plans every job's schedule, and assigns its first slot."""
        ground = Ground.of(view)
        tasks = [Task.of(ground, state, view.now_us, self.every_us) for state in view.jobs]
        free: list[Floats] = []
        assignments, waiting = list[Assignment](), {}
        for task in sorted(tasks, key=lambda task: (task.job.arrives_us, task.job.name)):
            plan = _cheapest(ground, task, free)
            if plan is None:
                waiting[task.job.name] = "no site can hold its parameter server and a worker"
                continue
            for slot, (workers, server) in enumerate(zip(plan.workers, plan.servers, strict=True)):
                if workers.any():
                    free[slot] = free[slot] - task.needs(workers, int(server))
            if not plan.workers[0].any():
                begins = int(np.flatnonzero(plan.workers.any(axis=1))[0])
                waiting[task.job.name] = f"its schedule begins in {begins} slots, when resources cost less"
                continue
            assignments.append(_first_slot(ground, task, plan))
        return Decision(tuple(assignments), waiting)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """A schedule of H slots: workers (H x R), the parameter server's site (H), and the order of sites (R)."""

    workers: Ints
    servers: Ints
    order: Ints


def _first_slot(ground: Ground, task: Task, plan: _Plan) -> Assignment:
    workers, server = plan.workers[0], int(plan.servers[0])
    loads = workloads(task.left, task.can_train(workers)[None], plan.order)[0]
    moves = transfers(ground, task.left, loads)
    reason = (
        f"{int(workers.sum())} of {int(plan.workers.sum())} workers of its cheapest schedule of "
        f"{len(plan.workers)} slots"
    )
    return as_assignment(ground, task, workers, server, moves, reason)


def _cheapest(ground: Ground, task: Task, free: list[Floats]) -> _Plan | None:
    """Returns the cheapest plan over all lengths; extends ``free`` by the slots that it examines."""
    order = np.argsort(-quality(ground, task, ground.capacity, Weights()), kind="stable")
    wanted = task.workers_at_most()
    # Lower bound: all workers and one parameter server on free resources.
    least = task.waiting_cost(1) / (4 * wanted) * (wanted + 1) * (1 - 1e-9)
    rooms, units, servers, server_costs = [], [], [], []
    best, best_cost, untouched = None, inf, 0
    for length in range(1, _LONGEST + 1):
        waiting = task.waiting_cost(length)
        if waiting + least >= best_cost:
            break
        if len(free) < length:
            free.append(ground.capacity)
        held, unit, server, server_cost = _slot(ground, task, free[length - 1], order)
        rooms.append(held)
        units.append(unit)
        servers.append(server)
        server_costs.append(server_cost)
        found = _fill(np.array(rooms), np.array(units), np.array(server_costs), wanted)
        if found is not None and found[1] + waiting < best_cost:
            best, best_cost = found[0], found[1] + waiting
        untouched += int(held.sum()) if free[length - 1] is ground.capacity else 0
        if untouched >= wanted:
            # Further slots without planned jobs are no cheaper than these.
            break
    if best is None:
        return None
    workers = np.zeros_like(best)
    workers[:, order] = best
    return _Plan(workers, np.array(servers[: len(best)]), order)


def _slot(ground: Ground, task: Task, free: Floats, order: Ints) -> tuple[Ints, Floats, int, float]:
    """Returns workers that fit and their unit cost, by ``order``; the parameter server's site and cost."""
    taken = 1 - np.divide(free, ground.capacity, out=np.ones_like(free), where=ground.capacity > 0)
    at_stake = task.waiting_cost(1)
    wanted = task.workers_at_most()
    prices = at_stake / (4 * wanted) * (4.0 * wanted) ** taken

    def unit(needs: Floats) -> Floats:
        return np.asarray(prices[:, needs > 0].mean(axis=1)) if (needs > 0).any() else np.zeros(len(prices))

    alone, beside = np.maximum(room(free, task.worker), 0), server_room(free, task)
    at_server = np.where(beside >= 0, unit(task.server), inf)[order]
    server = int(order[np.argmin(at_server)])
    if beside[server] < 0:
        return np.zeros_like(alone), unit(task.worker)[order], server, 0.0
    held = alone.copy()
    held[server] = beside[server]
    return np.minimum(held, wanted)[order], unit(task.worker)[order], server, float(at_server.min())


def _fill(
    rooms: Ints, units: Floats, server_costs: Sequence[float] | Floats, wanted: int
) -> tuple[Ints, float] | None:
    """Returns the cheapest worker-slots and their cost; None where there are too few."""
    if rooms.sum() < wanted:
        return None
    cheapest = np.argsort(units.ravel(), kind="stable")
    held = rooms.ravel()[cheapest]
    before = np.cumsum(held) - held
    taken = np.empty_like(held)
    taken[cheapest] = np.minimum(np.maximum(wanted - before, 0), held)
    workers = taken.reshape(rooms.shape)
    used = workers.any(axis=1)
    return workers, float((workers * units).sum() + np.asarray(server_costs)[used].sum())
