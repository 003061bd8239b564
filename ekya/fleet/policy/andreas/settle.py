"""From configurations to a decision: nodes, with few moves and few in use, their names, and reasons."""

import numpy as np
from scipy.optimize import linear_sum_assignment

from ekya.fleet.policy.andreas.point import WAITS, Floats, Ints, Point
from ekya.fleet.policy.assignment import Decision, JobAssignment, NodePart
from ekya.fleet.policy.places import NodeName


def packed(point: Point, worth: Floats, config: Ints) -> tuple[Ints, Ints]:
    """Returns the configuration and node of each job that is to have a configuration.

    A job that keeps its configuration keeps its node. The others follow in decreasing size; a job that finds
    no node with enough free GPUs takes fewer.

    Args:
        worth: per second, of each job in each configuration.
        config: of each job, or ``WAITS``; in total at most the GPUs of each shelf.
    """
    now, now_node = point.places_now
    config, node, free = config.copy(), point.waiting, point.node_gpus
    stays = (config != WAITS) & (config == now)
    node[stays] = now_node[stays]
    for place, gpus in zip(node[stays], point.gpus[config[stays]], strict=True):
        free[place] -= int(gpus)
    comes = [int(row) for row in np.flatnonzero((config != WAITS) & ~stays)]
    for row in sorted(comes, key=lambda row: (-point.gpus[config[row]], -worth[row, config[row]], row)):
        column = int(config[row])
        most = int(point.gpus[column])
        begin, end = point.nodes_of(int(point.shelf[column]))
        widest = min(most, max(free[begin:end]))
        runs = [
            gpus for gpus in range(widest, 0, -1) if np.isfinite(point.takes_s[row, column - most + gpus])
        ]
        if not runs:
            config[row] = WAITS
            continue
        gpus, own = runs[0], int(now_node[row])
        fits = [place for place in range(begin, end) if free[place] >= gpus]
        node[row] = min(fits, key=lambda place: (place != own, free[place], place))
        config[row] = column - most + gpus
        free[node[row]] -= gpus
    return config, node


def emptied(point: Point, config: Ints, node: Ints, lost_s: Floats) -> Ints:
    """Empties nodes whose base costs more than moving their jobs; returns the new nodes of the jobs.

    ``lost_s`` has the seconds that a job loses by a move, by configuration.
    """
    node = node.copy()
    now, now_node = point.places_now
    for number, shelf in enumerate(point.shelves):
        base = shelf.base_cost_a_s
        if base <= 0:
            continue
        places = range(*point.nodes_of(number))
        on = {place: [int(row) for row in np.flatnonzero(node == place)] for place in places}
        free = {place: shelf.gpus - int(point.gpus[config[on[place]]].sum()) for place in places}
        for place in sorted(places, key=lambda place: (-free[place], place)):
            where = _elsewhere(point, config, on, free, place)
            if not where:
                continue
            moved = [row for row in where if now[row] == config[row] and now_node[row] == place]
            price = sum(
                lost_s[row, config[row]] * shelf.cost_a_s[int(point.gpus[config[row]])] for row in moved
            )
            there = [row for target in set(where.values()) for row in on[target]]
            together_s = min(_longest_s(point, config, [*where]), _longest_s(point, config, there))
            if base * together_s <= price:
                continue
            for row, target in where.items():
                node[row] = target
                on[target].append(row)
                free[target] -= int(point.gpus[config[row]])
            on[place], free[place] = [], shelf.gpus
    return node


def _elsewhere(
    point: Point, config: Ints, on: dict[int, list[int]], free: dict[int, int], place: int
) -> dict[int, int]:
    """Returns other nodes in use that can take all jobs of a node, by job; empty where not all jobs fit."""
    room = {other: free[other] for other in on if other != place and on[other] and free[other]}
    where = {}
    for row in sorted(on[place], key=lambda row: (-point.gpus[config[row]], row)):
        fits = [other for other, left in room.items() if left >= point.gpus[config[row]]]
        if not fits:
            return {}
        where[row] = min(fits, key=lambda other: (room[other], other))
        room[where[row]] -= int(point.gpus[config[row]])
    return where


def _longest_s(point: Point, config: Ints, rows: list[int]) -> float:
    return max(float(point.takes_s[row, config[row]]) for row in rows)


def decision_of(point: Point, config: Ints, node: Ints) -> Decision:
    """Returns the schedule of these configurations and nodes with names of nodes and reasons."""
    names = _named(point, config, node)
    assignments, waiting = [], {}
    for row, state in enumerate(point.states):
        if config[row] == WAITS:
            waiting[state.job.name] = _why_not(point, row)
        else:
            column = int(config[row])
            part = NodePart(names[int(node[row])], gpus=int(point.gpus[column]))
            assignments.append(JobAssignment(state.job.name, (part,), _why(point, row, column)))
    return Decision(tuple(assignments), waiting)


def _named(point: Point, config: Ints, node: Ints) -> list[NodeName]:
    """Returns a name for each node of the schedule, by the matching in which most jobs stay."""
    count = len(point.node_names)
    stay = np.zeros((count, count))
    now, now_node = point.places_now
    for row in np.flatnonzero((config != WAITS) & (config == now)):
        stay[node[row], now_node[row]] += 1
    names = list(point.node_names)
    for number in range(len(point.shelves)):
        begin, end = point.nodes_of(number)
        if stay[begin:end, begin:end].any():
            used, taken = linear_sum_assignment(stay[begin:end, begin:end], maximize=True)
            for one, other in zip(used, taken, strict=True):
                names[begin + one] = point.node_names[begin + other]
    return names


def _why(point: Point, row: int, column: int) -> str:
    takes_s, due_in_s = point.takes_s[row, column], point.due_in_s[row]
    so = f"ends in {takes_s:.0f} s for {point.cost[row, column]:.3f}"
    if takes_s < due_in_s:
        return so if np.isinf(due_in_s) else f"{so}, {due_in_s - takes_s:.0f} s before it is due"
    return f"{so}, {takes_s - due_in_s:.0f} s late"


def _why_not(point: Point, row: int) -> str:
    fastest_s = point.takes_s[row].min(initial=np.inf)
    if np.isinf(fastest_s):
        return "no node that works has a kind and a number of GPUs it was profiled on"
    spare_s = point.due_in_s[row] - fastest_s
    if spare_s > 0:
        return f"nothing free ends it in time as the best free node could; {spare_s:.0f} s are to spare"
    return f"all GPUs go to others; it is at least {-spare_s:.0f} s late"
