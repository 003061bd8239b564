"""Conversion of a schedule to a decision; interchangeable nodes are named so that most jobs stay."""

import numpy as np
from scipy.optimize import linear_sum_assignment

from ekya.fleet.policy.andreas.point import WAITS, Ints, Point
from ekya.fleet.policy.assignment import Assignment, Decision, Part
from ekya.fleet.policy.names import NodeName


def decision_of(point: Point, config: Ints, node: Ints) -> Decision:
    """Returns the schedule of these configurations and nodes with names of nodes and reasons."""
    names = _named(point, config, node)
    assignments, waiting = [], {}
    for row, state in enumerate(point.states):
        if config[row] == WAITS:
            waiting[state.job.name] = _why_not(point, row)
        else:
            column = int(config[row])
            part = Part(names[int(node[row])], gpus=int(point.gpus[column]))
            assignments.append(Assignment(state.job.name, (part,), _why(point, row, column)))
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
