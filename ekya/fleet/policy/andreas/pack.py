"""Placement of configurations on nodes, with few moves and few nodes in use."""

import numpy as np

from ekya.fleet.policy.andreas.point import WAITS, Floats, Ints, Point


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
