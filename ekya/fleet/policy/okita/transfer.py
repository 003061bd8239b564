"""Which site trains how many chunks, and where they come from (§IV.B.3)."""

import numpy as np

from ekya.fleet.policy.okita.ground import Floats, Ground, Ints


def workloads(left: Ints, can_train: Ints, order: Ints) -> Ints:
    """d_i^r: what every site trains, as much in all as there is data and time for.

    "Based on the number of assigned workers": all that its workers have time for. Where that is more than the
    data that is left, a site's own data goes first, and time that is left goes to others' by the order of
    sites.

    Args:
        left: M_i^r; R.
        can_train: chunks that the sites' workers have time for, one row a case; B x R.
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
    """What no way of sending is below: every chunk by its site's cheapest link; as ``transfer_costs``."""
    if len(ground.sites) < 2:
        return np.zeros(len(loads))
    return np.asarray(np.maximum(loads - left, 0) @ ground.cheapest_link)


def transfer_costs(ground: Ground, left: Ints, loads: Ints) -> Floats:
    """Cost of a megabyte of each chunk that Algorithm 3 (DTA) sends, for many workloads at once.

    Args:
        ground: sites.
        left: M_i^r; R.
        loads: d_i^r, one row a case, never more in all than is left; B x R.

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
    """Algorithm 3 (DTA): g_i^{rr'}, with what stays where it is on the diagonal.

    Sites that miss data collect it, one after the other, from those that have some to spare, cheapest first.

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
    """-H where it is negative, and H where it is not."""
    over = left - loads
    return np.maximum(-over, 0), np.maximum(over, 0)


def _take(available: Ints, wanted: Ints) -> Ints:
    """From the first ones on, until there are as many as are wanted."""
    before = np.cumsum(available, axis=-1) - available
    return np.minimum(np.maximum(wanted - before, 0), available)
