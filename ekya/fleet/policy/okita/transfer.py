"""Workloads of the sites, and transfers of data to them (§IV.B.3)."""

from collections.abc import Iterator

import numpy as np

from ekya.fleet.policy.okita.ground import Floats, Ground, Ints, OkitaTask, first_of


def workloads(left: Ints, can_train: Ints, order: Ints) -> Ints:
    """Returns d_i^r, the chunks that each site trains, in total as many as data and time allow; B x R.

    "Based on the number of assigned workers" is read as all that its workers have time for. Where that
    exceeds the remaining data, sites train their own data first, and the best sites use their remaining time
    for the rest.

    Args:
        left: M_i^r; R.
        can_train: chunks that the sites' workers have time for, one row per case; B x R.
        order: sites, best first; R.
    """
    own = np.minimum(can_train, left)
    rest = np.minimum(can_train.sum(axis=1), left.sum()) - own.sum(axis=1)
    loads = own.copy()
    loads[:, order] += first_of((can_train - own)[:, order], rest[:, None])
    return loads


def least_transfer_costs(ground: Ground, left: Ints, loads: Ints) -> Floats:
    """Returns a lower bound of ``transfer_costs``: each chunk arrives by its site's cheapest link; B."""
    if len(ground.sites) < 2:
        return np.zeros(len(loads))
    return np.asarray(np.maximum(loads - left, 0) @ ground.cheapest_link)


def transfer_costs(ground: Ground, left: Ints, loads: Ints) -> Floats:
    """Returns Σ q^{rr'} g^{rr'} of Algorithm 3 (DTA), the link cost per megabyte of a chunk; B.

    Args:
        left: M_i^r; R.
        loads: d_i^r, one row per case, in total at most what is left; B x R.
    """
    costs = np.zeros(len(loads))
    for target, sources, sent in _collected(ground, left, loads):
        costs += sent @ ground.mb_cost[sources, target]
    return costs


def transfers(ground: Ground, left: Ints, loads: Ints) -> Ints:
    """Returns g_i^{rr'} of Algorithm 3 (DTA) for one case, with chunks that stay on the diagonal; R x R."""
    moves = np.diag(np.minimum(left, loads))
    for target, sources, sent in _collected(ground, left, loads[None]):
        moves[sources, target] += sent[0]
    return moves


def _collected(ground: Ground, left: Ints, loads: Ints) -> Iterator[tuple[int, Ints, Ints]]:
    """Runs Algorithm 3 (DTA): yields sites that miss data, its sources, and chunks sent by each; B x R.

    Sites that miss data collect it, one after the other, from sites with a surplus, cheapest first.
    """
    over = left - loads
    missing, surplus = np.maximum(-over, 0), np.maximum(over, 0)
    for target in np.flatnonzero(missing.any(axis=0)):
        sources = ground.nearest[target]
        sent = first_of(surplus[:, sources], missing[:, target, None])
        surplus[:, sources] -= sent
        yield int(target), sources, sent


def moves_of(ground: Ground, task: OkitaTask, worker_slots: Ints, order: Ints) -> Ints:
    """Returns g_i^{rr'} where the worker-slots of the sites, R, train as much as they can; R x R."""
    loads = workloads(task.left, task.can_train(worker_slots)[None], order)[0]
    return transfers(ground, task.left, loads)


def this_slot(moves: Ints, can_train: Ints) -> Ints:
    """Limits moves to what sites have time for in one slot, their own data first; R x R."""
    own = np.minimum(np.diag(moves), can_train)
    others = moves - np.diag(np.diag(moves))
    return np.asarray(first_of(others.T, (can_train - own)[:, None]).T + np.diag(own))
