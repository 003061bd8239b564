"""Placement of workers and the parameter server (§IV.B.2)."""

from dataclasses import dataclass

import numpy as np

from ekya.fleet.policy.okita.ground import Floats, Ground, Ints, OkitaTask, first_of, room, room_beside


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
