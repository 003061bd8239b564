"""ANDREAS: the randomised greedy algorithm (Algorithm 1), as docs/fleet/andreas.md interprets the paper."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from ekya.core.units import US_PER_S
from ekya.fleet.policy.andreas.construct import FEW, Beside, Schedules, construct, proxy
from ekya.fleet.policy.andreas.point import Floats, Ints, Point, point_of
from ekya.fleet.policy.andreas.settle import decision_of
from ekya.fleet.policy.assignment import Decision
from ekya.fleet.policy.view import FleetView

BATCH = 250
"""Schedules that are built together."""

GOLDEN = 0.6180339887498949
"""Fractional parts of its multiples are spread evenly over [0, 1), for any number of them."""


@dataclass(frozen=True, slots=True)
class Andreas:
    """Places all jobs anew at each scheduling point, up to ``iterations`` times, and keeps the best by (1).

    The initial empty schedule is worse than any other. The first schedule is built without randomness; in the
    others its amount varies between none and the paper's. The search stops after a batch without improvement.

    Attributes:
        iterations: MAX_IT.
        postponing: ρ.
        period_s: longest time until the next scheduling point; the paper does not state it.
        periodic: whether it is called when a period is over, besides arrivals and ends.
        swapping: probability that the job with the smallest weight changes places with the next; that of
            others is as much smaller as their weight is larger.
    """

    iterations: int = 1000
    postponing: float = 100.0
    period_s: float = 600.0
    periodic: bool = True
    swapping: float = 0.5
    name: str = "andreas"
    on_events: bool = True

    @property
    def every_us(self) -> int | None:
        """The period (§III)."""
        return round(self.period_s * US_PER_S) if self.periodic else None

    def decide(self, view: FleetView) -> Decision:
        """Returns the decision of the best schedule."""
        point = point_of(view)
        if not point.states or not point.shelves:
            return decision_of(point, point.waiting, point.waiting)
        best, row = self.best_schedule(point, np.random.default_rng([view.seed, view.now_us]))[:2]
        return decision_of(point, best.config[row], best.node[row])

    def best_schedule(self, point: Point, rng: np.random.Generator) -> tuple[Schedules, int, float]:
        """Returns the batch with the best schedule, its row in the batch, and its value."""
        found: tuple[Schedules, int, float] | None = None
        # Tables pay off only for many schedules, and grow exponentially with the number of configurations.
        tables = self.iterations >= BATCH and len(point.gpus) <= FEW
        built = Beside(point).construct if tables else partial(construct, point)
        for begin in range(0, self.iterations, BATCH):
            count = min(BATCH, self.iterations - begin)
            order, wished = self._draw(point, rng, begin == 0)
            schedules = built(order[:count], wished[:count])
            values = proxy(point, schedules, self.postponing, self.period_s)
            row = int(values.argmin())
            if found is not None and values[row] >= found[2]:
                break
            found = schedules, row, float(values[row])
        if found is None:
            raise ValueError("iterations must be at least 1")
        return found

    def _draw(self, point: Point, rng: np.random.Generator, first: bool) -> tuple[Ints, Ints]:
        """Draws orders of jobs and the configuration that each job tries first; always a whole batch."""
        jobs = len(point.states)
        chance = ((np.arange(BATCH) + (0 if first else 1)) * GOLDEN % 1.0)[:, None]
        swaps = rng.random((BATCH, jobs)) < chance * self.swapping * (point.weight.min() / point.weight)
        order = swapped(swaps)
        drawn = drawn_configs(point, rng.random((BATCH, jobs)))
        usual = point.keys.argmin(axis=1).astype(drawn.dtype)
        return order, np.where(rng.random((BATCH, jobs)) < chance, drawn, usual)


def swapped(swaps: np.typing.NDArray[np.bool_]) -> Ints:
    """Returns an order per row: exchanges marked jobs with the next, at even positions, then at odd ones."""
    many, jobs = swaps.shape
    order = np.tile(np.arange(jobs), (many, 1))
    change = swaps[:, : jobs - 1 : 2]
    order[:, : jobs - 1 : 2] += change
    order[:, 1::2] -= change
    one, other = order[:, 1 : jobs - 1 : 2], order[:, 2::2]
    change = swaps.ravel()[one + np.arange(many)[:, None] * jobs]
    further = np.where(change, other - one, 0)
    one += further
    other -= further
    return order


def drawn_configs(point: Point, uniform: Floats) -> Ints:
    """Draws a configuration for each job with odds of 1/cost, among those it may choose.

    Args:
        uniform: random numbers in [0, 1), one per job and schedule.
    """
    with np.errstate(divide="ignore"):
        odds = np.where(np.isfinite(point.keys), 1.0 / np.maximum(point.cost, 1e-12), 0.0)
    odds[odds.sum(axis=1) == 0, 0] = 1.0
    upto = np.cumsum(odds, axis=1)
    upto /= upto[:, -1:]
    drawn = [np.searchsorted(*one, side="right") for one in zip(upto[:, :-1], uniform.T, strict=True)]
    return np.array(drawn).T
