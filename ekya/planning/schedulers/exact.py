"""The best plan of one phase: a dynamic programme over quanta.

The paper calls its problem NP-hard (§4.1), as a knapsack is. With shares in quanta of δ it is only a
knapsack with small weights: the streams' shares add up to C quanta, so the best of the first s streams with
c quanta follows from the best of the first s − 1 with fewer, in S · C · U steps where a stream can use U.

The first step computes each stream's best value for u quanta over γ, λ and the split between its two jobs,
from its tables (``tables.py``); the max-plus convolution of the streams and the backtracking through it
follow. Diminishing returns of a share are not assumed: any non-decreasing speed curve will do.

a_MIN and the latency limits are kept for as many streams as the capacity allows, and the best of the plans
that do so is taken. Quanta that gain nothing stay idle. No plan of one phase in multiples of δ that keeps as
many streams scores higher, the thief's included.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ekya.core.plan import Plan
from ekya.core.shares import Job, Work
from ekya.core.view import WindowView
from ekya.planning.schedulers.allocation import choices_by_stream
from ekya.planning.schedulers.reasons import one_phase_plan
from ekya.planning.schedulers.scheduler import Needs
from ekya.planning.schedulers.tables import Floats, Ints, ValueTables, value_tables


@dataclass(frozen=True, slots=True)
class Exact:
    """Finds the best static allocation in multiples of δ."""

    name: ClassVar[str] = "exact"
    needs: ClassVar[Needs] = Needs(labels=True, inference_profile=True, micro_profile=True, early_parts=True)

    def plan(self, view: WindowView) -> Plan:
        """Returns one phase, held until the window's end or the next planning."""
        tables = value_tables(view)
        capacity = max(view.capacity_milli, 0) // view.quantum_milli
        best = _best_by_quanta(tables, capacity)
        shares: dict[Job, int] = {}
        for row, (stream, quanta) in enumerate(
            zip(view.streams, share_out(best.values, capacity), strict=True)
        ):
            inference = int(best.inference[row, quanta])
            shares[Job(stream.stream, Work.INFERENCE)] = inference * view.quantum_milli
            shares[Job(stream.stream, Work.RETRAINING)] = (quanta - inference) * view.quantum_milli
        return one_phase_plan(view, choices_by_stream(view), shares)


@dataclass(frozen=True, slots=True, eq=False)
class BestByQuanta:
    """Best value of each stream for u quanta, S streams by U.

    Attributes:
        values: (S, U) value of the best split of exactly u quanta; minus infinity where there is none, or
            where fewer quanta give as much.
        inference: (S, U) quanta of the inference in it; the rest is the retraining's.
    """

    values: Floats
    inference: Ints


def _best_by_quanta(tables: ValueTables, capacity: int) -> BestByQuanta:
    """Returns the best split of every number of quanta, by weight: their largest sum is the best plan.

    Where the capacity keeps the constraints of all streams that any share keeps, nothing less is allowed.
    Where it does not, each stream that is kept counts for more than all accuracy together.
    """
    keeps_all = tables.floors.sum() <= capacity
    bonus = 0.0 if keeps_all else 1.0 + tables.weights.sum()
    count, levels = tables.serving.shape
    values = np.full((count, 2 * levels - 1), -np.inf)
    inference = np.zeros(values.shape, np.intp)
    has_job = tables.retrains[:, None] | (np.arange(levels) == 0)
    for quanta in range(levels):
        kept = (quanta >= tables.floors)[:, None]
        allowed = has_job & (kept | (not keeps_all))
        value = np.maximum(tables.serving * tables.part[:, quanta, None], tables.golden[:, quanta, None])
        worth = tables.weights[:, None] * value
        split = np.where(allowed, worth + bonus * kept, -np.inf)
        here = values[:, quanta : quanta + levels]
        better = split > here
        np.copyto(here, split, where=better)
        np.copyto(inference[:, quanta : quanta + levels], quanta, where=better)
    below = np.maximum.accumulate(values, axis=1)[:, :-1]
    values[:, 1:][values[:, 1:] <= below] = -np.inf
    return BestByQuanta(values, inference)


def share_out(values: Floats, capacity: int) -> list[int]:
    """Returns the quanta of each stream with the largest sum of values.

    Args:
        values: (S, U) value of a stream with u quanta; minus infinity where it cannot have u.
        capacity: quanta in all. Every stream's fewest must fit.
    """
    offers = [np.flatnonzero(np.isfinite(row)) for row in values]
    capacity = min(capacity, sum(int(offer[-1]) for offer in offers))
    widest = values.shape[1]
    # Minus infinity on the left stands for fewer than 0 quanta, so that no window leaves the array.
    reached = np.full((len(offers) + 1, widest + capacity + 1), -np.inf)
    reached[0, widest:] = 0.0
    totals = reached[:, widest:]
    before = np.lib.stride_tricks.sliding_window_view(reached, capacity + 1, axis=1)
    for row, offer in enumerate(offers):
        np.max(before[row, widest - offer] + values[row, offer, None], axis=0, out=totals[row + 1])
    return _way_back(values, offers, totals, capacity)


def _way_back(values: Floats, offers: list[NDArray[np.intp]], totals: Floats, capacity: int) -> list[int]:
    """Returns the choices behind the largest sum; ties take the fewest quanta, from the last stream on."""
    chosen: list[int] = []
    left = capacity
    for row in range(len(offers) - 1, -1, -1):
        offer = offers[row][offers[row] <= left]
        sums = totals[row, left - offer] + values[row, offer]
        chosen.append(int(offer[sums.argmax()]))
        left -= chosen[-1]
    return chosen[::-1]
