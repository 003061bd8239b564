"""Upper bound on the score of every plan of a window.

It holds for plans in phases, planned again, paused, resized, with shares in multiples of δ. Proof: take any
plan, and any price p(t) ≥ 0 of a GPU at time t. At every instant the plan's shares add up to no more than
the G GPUs there are, so a plan that pays for its shares and is given the price of G GPUs loses nothing:

    score  ≤  Σ_v [ worth of v's accuracy  −  ∫ p(t) · (R_v(t) + I_v(t)) dt ]  +  G · ∫ p(t) dt.

Each bracket concerns one stream alone, and is at most the best that v could do alone at these prices.
``relaxed.py`` bounds that best, and every step there only adds to it:

- γ is any of those offered, once a window; a running one is locked. A retraining that completes at τ is done
  by any shares R(t) ≤ 1 before τ with ∫ speed(R) ≥ work, and the concave envelope of the speeds at multiples
  of δ is at least the speed. Rounding completions up to a microsecond only delays them.
- A γ whose checkpoints serve gains in steps that are never below the gain of its checkpoints. Each part of
  the gain may come when it pays best, as if each belonged to a separate stream with its part of the
  accuracy: since the best inference is worth a convex function of the accuracy, that is no less. Each part
  pays for the work between the part before it and itself, and comes no earlier than a whole GPU could do all
  the work before it; so all the work is paid for once, except that behind the last step.
- λ and I(t) ≤ 1 may change at any instant, without a_MIN and without a limit of age. At a price the best
  multiple of δ is a corner of the envelope of the curves ρ · min(1, I / n).
- Prices are constant within each of K intervals. There the worth of completing at τ is concave in τ, so that
  tangents at a few moments bound it between them.

So any prices give a bound, and the prices are chosen to make it small (the Lagrangian dual of the capacity,
a convex problem in K prices, minimised by cutting planes in a trust region). The choice of prices affects
only how tight the bound is, not whether it holds. The remaining gap is what mixtures could gain: mainly
mixtures of two shares at one instant, which averages over an interval allow, but also of two γ, and of two
moments of completion. It shrinks as streams become many.
"""

from dataclasses import dataclass

import numpy as np
from optimum.per_stream_bound import PerStreamBound, per_stream_bound
from optimum.relaxed import Prices, respond
from scipy.optimize import linprog

from ekya.core.units import FULL_GPU_MILLI
from ekya.core.view import WindowView
from ekya.planning.schedulers.allocation import kept_floors
from ekya.planning.schedulers.tables import Floats

INTERVALS = 16
ROUNDS = 80
"""With these, ten streams take about 0.1 s, and up to ten times as long where checkpoints serve; half as
many intervals cost about 0.001 of tightness."""

_EARLY = 1.5
"""Power of the interval edges: intervals are shorter early in the window, where retrainings compete."""

_EVERYWHERE = 4.0
"""Radius, in multiples of the typical price, of a trust region that holds all relevant prices."""

_CLOSE = 2e-5
"""Smallest improvement promised by the cutting planes; below it further rounds are not worth their
time."""


def upper_bound(
    view: WindowView, *, keep_minimum: bool = False, intervals: int = INTERVALS, rounds: int = ROUNDS
) -> float:
    """Returns a score, by ``objective.evaluate``, that no plan for ``view`` exceeds; 0 without streams.

    Args:
        view: the moment to plan for. Plans whose shares are no multiples of its δ, as placement rounds them,
            are bounded with a δ of 1.
        keep_minimum: bound only plans that keep a_MIN and the latency limits, at all times and for every
            stream that can keep them as it is now. Where the capacity is too small for that there is no such
            plan, and all plans are bounded.
        intervals: number of intervals with constant prices in the rest of the window; more are tighter and
            take longer.
        rounds: maximum number of prices tried.
    """
    if not view.streams:
        return 0.0
    floors = kept_floors(view, 2 * FULL_GPU_MILLI * len(view.streams))
    streams = per_stream_bound(
        view, keep_minimum=keep_minimum and sum(floors.values()) <= view.capacity_milli
    )
    weights = np.array([s.weight for s in view.streams])
    dual = _Dual(
        streams,
        max(view.capacity_milli, 0) // view.quantum_milli * view.quantum_milli / FULL_GPU_MILLI,
        weights / weights.sum(),
        np.linspace(0.0, 1.0, intervals + 1) ** _EARLY,
    )
    return _minimised(dual, rounds)


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """The bound at a point, and its slope there."""

    point: Floats
    value: float
    slope: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Dual:
    """The bound as a function of the prices."""

    streams: PerStreamBound
    gpus: float
    weights: Floats
    edges: Floats

    def at(self, point: Floats) -> _Cut:
        prices = Prices(self.edges, point)
        found = respond(self.streams, self.weights, prices)
        value = float(found.worth.sum() + self.gpus * prices.levels @ prices.lengths)
        return _Cut(point, value, self.gpus * prices.lengths - found.used)

    def first(self, price: float, fall: float) -> Floats:
        """Returns prices from ``price`` on, falling by the part ``fall``: GPUs are dearest at first.

        Streams retrain early in the window.
        """
        prices: Floats = price * (1.0 - fall * (self.edges[1:] + self.edges[:-1]) / 2.0)
        return prices


def _minimised(dual: _Dual, rounds: int) -> float:
    """Returns the least value found by cutting planes, which are trusted only near the best point so far."""
    typical = 1.0 / max(dual.gpus, 0.001)
    trials = [dual.at(dual.first(0.0, 0.0))]
    for fall in (0.0, 0.9):
        trials += [dual.at(dual.first(typical * 2.0**-power, fall)) for power in range(-1, 6)]
    cuts = trials
    best = min(cuts, key=lambda cut: cut.value)
    radius = 0.25
    scale = np.full(len(best.point), max(float(best.point.max()), typical / 64))
    for _ in range(max(rounds - len(cuts), 0)):
        point, promised = _lowest(cuts, best.point - radius * scale, best.point + radius * scale)
        if best.value - promised < _CLOSE:
            if radius >= _EVERYWHERE:
                break
            radius *= 4.0
            continue
        cut = dual.at(point)
        cuts = [*cuts, cut]
        gained = best.value - cut.value
        if gained > 0.1 * (best.value - promised):
            radius *= 1.5
        elif gained <= 0.0:
            radius *= 0.6
        if gained > 0.0:
            best = cut
    return best.value


def _lowest(cuts: list[_Cut], low: Floats, high: Floats) -> tuple[Floats, float]:
    """Returns the point in a box that minimises the highest of the cutting planes, and its height there."""
    slopes = np.array([cut.slope for cut in cuts])
    heights = np.array([cut.slope @ cut.point - cut.value for cut in cuts])
    found = linprog(
        np.append(np.zeros(len(low)), 1.0),
        A_ub=np.hstack([slopes, -np.ones((len(cuts), 1))]),
        b_ub=heights,
        bounds=np.vstack([np.column_stack([np.maximum(low, 0.0), high]), [-np.inf, np.inf]]),
    )
    if found.x is None:
        return cuts[-1].point, np.inf
    return found.x[:-1], float(found.fun)
