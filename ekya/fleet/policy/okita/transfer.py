"""Workloads of the sites, and transfers of data to them (§IV.B.3)."""

import numpy as np

from ekya.fleet.policy.okita.ground import Floats, Ground, Ints


def workloads(left: Ints, can_train: Ints, order: Ints) -> Ints:
    """Returns d_i^r, the chunks that each site trains; in total as many as data and time allow.

    "Based on the number of assigned workers" is read as all that its workers have time for. Where that
    exceeds the remaining data, sites train their own data first, and the best sites use their remaining time
    for the rest.

    Args:
        left: M_i^r; R.
        can_train: chunks that the sites' workers have time for, one row per case; B x R.
        order: sites, best first; R.

    Returns:
        B x R.
    """
    own = np.minimum(can_train, left)
    spare = (can_train - own)[:, order]
    rest = np.minimum(can_train.sum(axis=1), left.sum()) - own.sum(axis=1)
    before = np.cumsum(spare, axis=1) - spare
    loads = own.copy()
    loads[:, order] += np.minimum(np.maximum(rest[:, None] - before, 0), spare)
    return loads


def least_transfer_costs(ground: Ground, left: Ints, loads: Ints) -> Floats:
    """Returns a lower bound of ``transfer_costs``: each chunk arrives by its site's cheapest link; B."""
    if len(ground.sites) < 2:
        return np.zeros(len(loads))
    return np.asarray(np.maximum(loads - left, 0) @ ground.cheapest_link)


def transfer_costs(ground: Ground, left: Ints, loads: Ints) -> Floats:
    """Returns the link cost of all chunks that Algorithm 3 (DTA) sends, per megabyte of a chunk.

    Args:
        ground: sites.
        left: M_i^r; R.
        loads: d_i^r, one row per case, in total at most what is left; B x R.

    Returns:
        Σ q^{rr'} g^{rr'}; B.
    """
    missing, surplus = _missing(left, loads)
    costs = np.zeros(len(loads))
    for target in np.flatnonzero(missing.any(axis=0)):
        sources = ground.nearest[target]
        sent = _take(surplus[:, sources], missing[:, target, None])
        surplus[:, sources] -= sent
        costs += sent @ ground.mb_cost[sources, target]
    return costs


def transfers(ground: Ground, left: Ints, loads: Ints) -> Ints:
    """Runs Algorithm 3 (DTA): returns g_i^{rr'}, with chunks that stay on the diagonal.

    Sites that miss data collect it, one after the other, from sites with a surplus, cheapest first.

    Args:
        ground: sites.
        left: M_i^r; R.
        loads: d_i^r; R.

    Returns:
        R x R, from the row's site to the column's.
    """
    missing, surplus = _missing(left, loads)
    moves = np.diag(np.minimum(left, loads))
    for target in np.flatnonzero(missing):
        sources = ground.nearest[target]
        sent = _take(surplus[sources], missing[target, None])
        surplus[sources] -= sent
        moves[sources, target] += sent
    return moves


def _missing(left: Ints, loads: Ints) -> tuple[Ints, Ints]:
    """Returns -H where H = left - loads is negative, and H where it is not; else 0."""
    over = left - loads
    return np.maximum(-over, 0), np.maximum(over, 0)


def _take(available: Ints, wanted: Ints) -> Ints:
    """Takes from the first entries on, until there are as many as wanted."""
    before = np.cumsum(available, axis=-1) - available
    return np.minimum(np.maximum(wanted - before, 0), available)


def this_slot(moves: Ints, can_train: Ints) -> Ints:
    """Limits moves to what sites have time for in one slot, their own data first; R x R."""
    own = np.minimum(np.diag(moves), can_train)
    others = moves - np.diag(np.diag(moves))
    before = np.cumsum(others, axis=0) - others
    return np.asarray(np.minimum(np.maximum(can_train - own - before, 0), others) + np.diag(own))
