"""Our variant of Okita: chooses parameter server, workers and data together, on the free resources.

In Okita's order of jobs (docs/fleet/okita.md has the reasons, and what was tried and left out):

- A chunk from r trained at r' with the parameter server at p costs δ q^{rr'} + (π E / ρ) q^{r'p}: for each p
  these are the unit costs of a transport problem. Only the few p that are cheapest without limits are kept.
- For each of these, and several numbers of slots l, data is distributed greedily: data that is cheapest where
  it lies stays there, and the rest is placed in decreasing order of regret. A site can take l times what its
  workers train in a slot, on the resources left by jobs of higher priority.
- Whole worker-slots are paid for, so the last few chunks of a site go to idle workers elsewhere where that is
  cheaper.
- A worker-slot costs the same at any time: as many workers as fit work in the first slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ekya.fleet.policy.assignment import Decision, JobAssignment
from ekya.fleet.policy.okita.framework import by_priority
from ekya.fleet.policy.okita.ground import (
    ROUNDING,
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
from ekya.fleet.policy.okita.placing import OkitaWeights, most_workers, this_slot
from ekya.fleet.policy.view import FleetView

_MORE_SLOTS = (0, 1, 2, 3, 5, 8)
"""Numbers of slots that are tried, beyond the fewest in which a job can end."""
_PROMISING = 2
"""Number of the cheapest candidates that ``filled_up`` refines."""


@dataclass(frozen=True, slots=True, eq=False)
class OkitaCourse:
    """A schedule from now on, if the free resources do not change.

    Attributes:
        parameter_server: its site.
        slots: l.
        moves: chunks from site to site in all slots; R x R.
        link_cost, waiting_cost: of the whole schedule.
    """

    parameter_server: int
    slots: int
    moves: Ints
    link_cost: float
    waiting_cost: float


@dataclass(frozen=True, slots=True)
class OkitaJoint:
    """Okita's framework and order, with the placement above.

    Attributes:
        every_us: length of a slot.
        weights: α of the order.
        parameter_servers: number of sites of the parameter server that are tried.
    """

    every_us: int
    weights: OkitaWeights = field(default_factory=OkitaWeights)
    parameter_servers: int = 6
    until_us: int | None = None
    name: str = "okita-joint"
    on_events: bool = False

    def decide(self, view: FleetView) -> Decision:
        """Decides for one slot."""
        ground, tasks = slot_of(view, self.every_us)
        ordered = by_priority(tasks, self.weights)
        free = ground.capacity.copy()
        assignments, waiting = list[JobAssignment](), {}
        for turn, task in enumerate(ordered, 1):
            course = self.cheapest_course(ground, task, free)
            told = f"its turn is {turn} of {len(ordered)}"
            if course is None:
                waiting[task.job.name] = f"no site has room for its parameter server and a worker; {told}"
                continue
            workers, moves = first_slot(task, course, free)
            free -= task.resources_taken(workers, course.parameter_server)
            reason = (
                f"{int(workers.sum())} workers on {np.count_nonzero(workers)} sites; {course.slots} slots "
                f"cost {course.link_cost:.0f} for bandwidth and {course.waiting_cost:.0f} for waiting; {told}"
            )
            assignments.append(as_assignment(ground, task, workers, course.parameter_server, moves, reason))
        return Decision(tuple(assignments), waiting)

    def cheapest_course(self, ground: Ground, task: OkitaTask, free: Floats) -> OkitaCourse | None:
        """Returns the cheapest course on free resources; None where no parameter server and worker fit."""
        if not most_workers(task, free):
            return None
        rooms = _rooms(task, free)
        possible = np.flatnonzero(rooms.any(axis=1))
        # The cost of all data if sites that can hold a worker had no limit.
        open_to, sources = rooms[possible] > 0, np.flatnonzero(task.left)
        unit, least = _unit_costs(ground, task, possible, sources), np.zeros(open_to.shape)
        least[:, sources] = np.where(open_to[:, None, :], unit, np.inf).min(axis=2)
        wish = (least * task.left).sum(axis=1)
        cheapest = possible[np.argsort(wish, kind="stable")[: self.parameter_servers]]
        fewest = -(-task.total // np.maximum(task.can_train(rooms[cheapest].sum(axis=1)), 1))
        cases = [
            (int(site), int(least) + more)
            for site, least in zip(cheapest, fewest, strict=True)
            for more in _MORE_SLOTS
        ]
        cases = self._in_time(task, cases)
        sites, slots = (np.array(column) for column in zip(*cases, strict=True))
        waiting = np.array([task.waiting_cost(int(length)) for length in slots])
        unit = _unit_costs(ground, task, sites, slice(None))
        moves = give_out(task.left, unit, slots[:, None] * task.can_train(rooms[sites]))
        links = link_costs(ground, task, moves, sites)
        promising = np.argsort(links + waiting, kind="stable")[:_PROMISING]
        for case in promising:
            time_for = slots[case] * int(task.can_train(rooms[sites[case], sites[case]]))
            moves[case] = filled_up(ground, task, moves[case], int(sites[case]), time_for)
        links[promising] = link_costs(ground, task, moves[promising], sites[promising])
        best = int(promising[np.argmin((links + waiting)[promising])])
        return OkitaCourse(
            int(sites[best]), int(slots[best]), moves[best], float(links[best]), float(waiting[best])
        )

    def _in_time(self, task: OkitaTask, cases: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Returns the cases that end by T; where none does, the shortest."""
        if self.until_us is None:
            return list(cases)
        longest = (self.until_us - task.now_us) // task.slot_us
        longest = max(longest, min(slots for _, slots in cases))
        return [case for case in cases if case[1] <= longest]


def _rooms(task: OkitaTask, free: Floats) -> Ints:
    """Returns workers that fit, by the parameter server's site; P x R, zeros where that does not fit."""
    most = task.workers_at_most()
    alone, beside = np.clip(room(free, task), 0, most), room_beside(free, task)
    rooms = np.tile(alone, (len(alone), 1))
    np.fill_diagonal(rooms, np.minimum(beside, most))
    rooms[beside < 0] = 0
    return rooms


def _unit_costs(ground: Ground, task: OkitaTask, servers: Ints, sources: Ints | slice) -> Floats:
    """Returns δ q^{rr'} + (π E / ρ) q^{r'p} for some p, some r, and all r'."""
    exchanged_mb = task.job.model_mb / task.job.chunks_per_slot
    moved = task.job.chunk_mb * ground.mb_cost[sources]
    return np.asarray(moved[None] + (exchanged_mb * ground.mb_cost).T[servers][:, None, :])


def give_out(left: Ints, unit: Floats, room_for: Ints) -> Ints:
    """Returns the chunks that sites send to training sites, chosen greedily for each case; B x R x R.

    Args:
        left: M_i^r; R.
        unit: cost of a chunk from r trained at r'; B x R x R.
        room_for: chunks that sites have time for, in total no fewer than are left; B x R.
    """
    cases, sites = room_for.shape
    moves = np.zeros((cases, sites, sites), dtype=np.int64)
    spare = room_for.copy()
    every, own = np.arange(cases)[:, None], np.arange(sites)
    priced = np.where(room_for[:, None, :] > 0, unit, np.inf)
    stays = np.where(priced.argmin(axis=2) == own, np.minimum(left, room_for), 0)
    moves[:, own, own] = stays
    spare -= stays
    rest = left - stays
    if sites > 1:
        two = np.partition(priced, 1, axis=2)[:, :, :2]
        regret = np.full(rest.shape, np.inf)
        np.subtract(two[:, :, 1], two[:, :, 0], out=regret, where=np.isfinite(two[:, :, 1]))
        turns = np.argsort(-np.where(rest > 0, regret, -1.0), axis=1, kind="stable")
    else:
        turns = np.zeros((cases, 1), dtype=np.int64)
    for turn in range(sites):
        source = turns[:, turn]
        wanted = rest[every[:, 0], source]
        if not wanted.any():
            continue
        by_cost = np.argsort(unit[every[:, 0], source], axis=1, kind="stable")
        sent = first_of(np.take_along_axis(spare, by_cost, 1), wanted[:, None])
        spare[every, by_cost] -= sent
        moves[every, source[:, None], by_cost] += sent
        rest[every[:, 0], source] = 0
    return moves


def filled_up(ground: Ground, task: OkitaTask, moves: Ints, parameter_server: int, chunks_there: int) -> Ints:
    """Removes partly used worker-slots where sending their chunks to workers with idle time is cheaper.

    Args:
        moves: chunks in all slots; R x R.
        parameter_server: site of the parameter server.
        chunks_there: chunks that workers at that site have time for in all slots.
    """
    a_worker = int(task.can_train(np.array([1]))[0])
    if a_worker < 2:
        return moves
    moves, loads = moves.copy(), moves.sum(axis=0)
    over = loads % a_worker
    spare = np.where(over > 0, a_worker - over, 0)
    spare[parameter_server] = chunks_there - loads[parameter_server]
    saved = task.job.model_mb * ground.mb_cost[:, parameter_server]
    asked = np.flatnonzero((over > 0) & (saved > 0) & (np.diag(moves) >= over))
    for site in asked[np.argsort(-saved[asked] / over[asked], kind="stable")]:
        if spare[site] != a_worker - over[site]:
            # Another site has sent chunks here meanwhile.
            continue
        costs = np.where(spare >= over[site], ground.mb_cost[site], np.inf)
        costs[site] = np.inf
        target = int(np.argmin(costs))
        if task.job.chunk_mb * costs[target] * over[site] < saved[site]:
            moves[site, site] -= over[site]
            moves[site, target] += over[site]
            spare[target] -= over[site]
            spare[site] = 0
    return moves


def link_costs(ground: Ground, task: OkitaTask, moves: Ints, parameter_servers: Ints) -> Floats:
    """Returns the cost of moved data, and of exchanged parameters by whole worker-slots; B."""
    worker_slots = np.ceil(moves.sum(axis=1) / task.job.chunks_per_slot - ROUNDING)
    exchanged = (worker_slots * ground.mb_cost[:, parameter_servers].T).sum(axis=1)
    moved = (moves * ground.mb_cost).sum(axis=(1, 2))
    return np.asarray(task.job.model_mb * exchanged + task.job.chunk_mb * moved)


def first_slot(task: OkitaTask, course: OkitaCourse, free: Floats) -> tuple[Ints, Ints]:
    """Returns workers and moves of a course's first slot on the free resources; R, and R x R."""
    rooms = np.maximum(room(free, task), 0)
    rooms[course.parameter_server] = max(0, int(room_beside(free, task)[course.parameter_server]))
    loads = course.moves.sum(axis=0)
    worker_slots = np.ceil(loads / task.job.chunks_per_slot - ROUNDING).astype(np.int64)
    workers = np.minimum(worker_slots, rooms)
    return workers, this_slot(course.moves, task.can_train(workers))
