"""Placement of workers and the parameter server (§IV.B.2), and the transfers that it causes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ekya.fleet.policy.okita.ground import Floats, Ground, Ints, OkitaTask, first_of, room, room_beside


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


@dataclass(frozen=True, slots=True)
class OkitaWeights:
    """Proportional factors of Okita's two metrics; the paper gives no values and finds them uncritical.

    Attributes:
        waited, left: α_1 and α_2 of O (Eq. 4).
        free, links, data: β_1, β_2 and β_3 of Q (Eq. 6).
    """

    waited: float = 1.0
    left: float = 1.0
    free: float = 1.0
    links: float = 1.0
    data: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Result of Algorithm 2 (PA) for several numbers of workers.

    Attributes:
        order: sites by Q, best first; R.
        parameter_servers: site of the parameter server, B; -1 where the workers do not fit.
        slot_costs: of the exchange of parameters in one slot, B; infinite where the workers do not fit.
    """

    order: Ints
    parameter_servers: Ints
    slot_costs: Floats
    _room: Ints
    _beside: Ints

    def workers(self, cases: Ints, counts: Ints) -> Ints:
        """Returns y_i^r of cases that fit; B x R.

        Args:
            counts: N of each case; B.
        """
        parameter_servers = self.parameter_servers[cases]
        held = np.tile(self._room, (len(cases), 1))
        held[np.arange(len(cases)), parameter_servers] = self._beside[parameter_servers]
        workers = np.empty_like(held)
        workers[:, self.order] = first_of(held[:, self.order], counts[:, None])
        return workers


def quality(ground: Ground, task: OkitaTask, free: Floats, weights: OkitaWeights) -> Floats:
    """Returns Q_i^r (Eq. 6); R.

    The mean link cost is for 100 MB, the unit of §V.B's table; for one MB it would be a tenth of the other
    terms.
    """
    parts = np.divide(free, ground.capacity, out=np.zeros_like(free), where=ground.capacity > 0)
    data = np.divide(task.left, task.chunks, out=np.zeros(len(task.left)), where=task.chunks > 0)
    spare = weights.free * parts.mean(axis=1)
    return np.asarray(spare - weights.links * ground.link_mean + weights.data * data)


def place(ground: Ground, task: OkitaTask, free: Floats, counts: Ints, weights: OkitaWeights) -> Placed:
    """Runs Algorithm 2 (PA) for several numbers of workers in one batch.

    For every site of the parameter server, workers fill sites in the order of Q; the cheapest such site wins,
    in a tie the last, as in line 12.

    Args:
        free: U_r^k; R x K.
        counts: N, ascending; B.
    """
    order = np.argsort(-quality(ground, task, free, weights), kind="stable")
    alone, beside = np.maximum(room(free, task), 0), room_beside(free, task)
    most = int(counts[-1])
    # No site needs more workers than are wanted in total; so sums stay small.
    alone, beside = np.minimum(alone, most), np.minimum(beside, most)
    possible = np.flatnonzero(beside >= 0)
    if not possible.size:
        empty = np.full(len(counts), -1, dtype=np.int64)
        return Placed(order, empty, np.full(len(counts), np.inf), alone, beside)
    held = np.tile(alone[order], (len(possible), 1))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    held[np.arange(len(possible)), rank[possible]] = beside[possible]
    exchange = ground.mb_cost[np.ix_(order, possible)].T
    costs = _filling_costs(held, exchange, counts)
    # Reversed, so that argmin returns the last of equally cheap sites.
    best = len(possible) - 1 - np.argmin(costs[::-1], axis=0)
    cheapest = costs[best, np.arange(len(counts))]
    parameter_servers = np.where(np.isfinite(cheapest), possible[best], -1)
    return Placed(order, parameter_servers, task.job.model_mb * cheapest, alone, beside)


def most_workers(task: OkitaTask, free: Floats) -> int:
    """Returns A_i, the workers that fit beside their parameter server; 0 where that does not fit."""
    alone, beside = np.maximum(room(free, task), 0), room_beside(free, task)
    possible = beside >= 0
    if not possible.any():
        return 0
    return int(alone.sum() + (beside - alone)[possible].max())


def _filling_costs(held: Ints, unit: Floats, counts: Ints) -> Floats:
    """Returns the cost of the first N workers of each row; P x B, infinite where a row holds fewer.

    Args:
        held: workers that fit on each site, in the order in which sites fill; P x R.
        unit: cost of a worker on each site; P x R.
        counts: N; B.
    """
    rows, sites = held.shape
    filled, paid = np.cumsum(held, axis=1), np.cumsum(held * unit, axis=1)
    # One search for all rows: each row is shifted to a separate range.
    span = int(filled.max()) + int(counts[-1]) + 1
    base = np.arange(rows)[:, None] * span
    found = np.searchsorted((filled + base).ravel(), (counts + base).ravel()).reshape(rows, len(counts))
    at = np.minimum(found - np.arange(rows)[:, None] * sites, sites - 1)
    over = np.take_along_axis(filled, at, 1) - counts
    costs = np.take_along_axis(paid, at, 1) - over * np.take_along_axis(unit, at, 1)
    return np.where(filled[:, -1:] >= counts, costs, np.inf)
