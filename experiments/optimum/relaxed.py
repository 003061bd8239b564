"""Best response of each stream alone to prices of GPU time: the inner problem of ``bound.py``.

Time runs from 0 (now) to 1 (the window's end) in K intervals, each with a price per GPU and unit of time. A
stream may retrain and analyse with any share of up to one GPU each, changed at any instant; it earns what
its accuracy is worth and pays for its shares. The capacity that the streams share does not constrain this
problem.

Units: prices and worths are accuracy times weight; work is as in ``per_stream_bound.py``.
"""

from dataclasses import dataclass

import numpy as np
from optimum.per_stream_bound import Corners, PerStreamBound, Segments

from ekya.planning.schedulers.tables import Floats, Ints

_SUBDIVISION = 2
"""Completion times tried in each interval of one price; between them a tangent bounds the worth."""


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """Prices of a GPU over the whole window.

    Attributes:
        edges: (K + 1,) moments from 0 to 1 at which prices change.
        levels: (K,) prices between them.
    """

    edges: Floats
    levels: Floats

    @property
    def lengths(self) -> Floats:
        """(K,) lengths of the intervals."""
        return np.diff(self.edges)

    def before(self, moments: Floats) -> Floats:
        """Returns (N, K) how much of each interval lies before moments (N,)."""
        return np.clip(moments[:, None] - self.edges[:-1], 0.0, self.lengths)


@dataclass(frozen=True, slots=True, eq=False)
class Responses:
    """Responses of the streams to prices.

    Attributes:
        worth: (S,) upper bound of the best response's worth, less its cost.
        used: (K,) GPUs times time that these responses use together in each interval.
    """

    worth: Floats
    used: Floats


def respond(streams: PerStreamBound, weights: Floats, prices: Prices) -> Responses:
    """Returns every stream's response to these prices.

    Args:
        streams: what each stream could do alone.
        weights: (S,) what an accuracy of 1 is worth to each.
        prices: of the window.
    """
    count = len(streams.accuracy)
    before = _analysing(streams.before, weights * streams.accuracy, prices.levels)
    after = _analysing(streams.behind, weights[streams.owner] * streams.after, prices.levels)
    worth = before.worth @ prices.lengths
    market = _Market(streams.speed, prices)
    steps, ends = _completing(streams, before, after, market)
    # A step that is not worth its work is left out, and the accuracy before it goes on to serve.
    without = streams.mass * worth[streams.owner]
    reached = steps >= without
    gammas = int(streams.gamma[-1]) + 1 if len(streams.gamma) else 0
    best, owner = np.full(gammas, -np.inf), np.zeros(gammas, np.intp)
    best[streams.gamma[reached]] = 0.0
    np.add.at(best, streams.gamma, np.where(reached, steps, without))
    owner[streams.gamma] = streams.owner
    worth_best, gamma_of = worth.copy(), np.full(count, -1, np.intp)
    np.maximum.at(worth_best, owner, best)
    retrains = np.flatnonzero(best >= worth_best[owner])
    gamma_of[owner[retrains]] = retrains
    taken = np.flatnonzero(gamma_of[streams.owner] == streams.gamma)
    return _tallied(streams, worth_best, taken, np.where(reached, ends, -1), before, after, market)


@dataclass(frozen=True, slots=True, eq=False)
class _Analysing:
    """Inference at its best share in each interval, (N, K): worth less cost, share, part."""

    worth: Floats
    share: Floats
    part: Floats


def _analysing(corners: Corners, worth: Floats, prices: Floats) -> _Analysing:
    """Returns the best inference at these prices; ``worth`` (N,) is that of the model's whole accuracy."""
    gains = worth[:, None] * corners.part
    net = gains[:, None, :] - prices[None, :, None] * corners.share[:, None, :]
    corner = net.argmax(axis=2)
    return _Analysing(
        np.take_along_axis(net, corner[:, :, None], axis=2)[:, :, 0],
        np.take_along_axis(corners.share, corner, axis=1),
        np.take_along_axis(corners.part, corner, axis=1),
    )


class _Market:
    """Least cost of work that is done before each of N + 1 moments.

    This is a fractional knapsack: an interval and a part of the speed curve give some work at a cost per
    unit, and the cheapest are used first.
    """

    def __init__(self, speed: Segments, prices: Prices) -> None:
        intervals = len(prices.levels)
        steps = np.repeat(prices.lengths, _SUBDIVISION) / _SUBDIVISION
        self.prices = prices
        self.moments = np.append(0.0, np.cumsum(steps))
        available = prices.before(self.moments)
        unit = prices.levels[:, None] / speed.slopes
        order = np.argsort(unit, axis=None, kind="stable")
        self.unit = unit.ravel()[order]
        self.interval = np.repeat(np.arange(intervals), len(speed.slopes))[order]
        time_to_work = np.tile(speed.widths * speed.slopes, intervals)[order]
        self._shares = np.tile(speed.widths, intervals)[order]
        self._time = available[:, self.interval]
        self.done = np.cumsum(self._time * time_to_work, axis=1)
        self._paid = np.cumsum(self._time * time_to_work * self.unit, axis=1)
        self._speed = speed
        self.top_speed = float(speed.widths @ speed.slopes)

    def costs(self, work: Floats) -> tuple[Floats, Floats]:
        """Returns (N, moments) the least cost of the work (N,) before each moment, and that of one more unit.

        The cost is infinite where there is not enough time.
        """
        at = np.stack([np.searchsorted(done, work) for done in self.done], axis=1)
        at = np.minimum(at, self.done.shape[1] - 1)
        unit = self.unit[at]
        moment = np.arange(len(self.moments))
        cost = self._paid[moment, at] - (self.done[moment, at] - work[:, None]) * unit
        return np.where(work[:, None] <= self.done[:, -1], cost, np.inf), unit

    def spare(self, unit: Floats) -> Floats:
        """Returns (N, moments − 1) what one more unit of time after each moment saves.

        ``unit`` is the cost of a unit of work.
        """
        prices = np.repeat(self.prices.levels, _SUBDIVISION)
        saved = np.zeros(unit.shape)
        for slope, width in zip(self._speed.slopes, self._speed.widths, strict=True):
            saved += np.maximum(unit * slope - prices, 0.0) * width
        return saved

    def used(self, moment: Ints, work: Floats) -> Floats:
        """Returns (N, K) GPUs times time per interval of the cheapest way to do work (N,) before moments."""
        done, time = self.done[moment], self._time[moment]
        step = np.diff(done, axis=1, prepend=0.0)
        part = np.clip((work[:, None] - (done - step)) / np.where(step > 0.0, step, 1.0), 0.0, 1.0)
        spent = np.zeros((len(work), len(self.prices.levels)))
        np.add.at(spent.T, self.interval, (part * (step > 0.0) * time * self._shares).T)
        return spent


def _completing(
    streams: PerStreamBound, before: _Analysing, after: _Analysing, market: _Market
) -> tuple[Floats, Ints]:
    """Returns (O,) an upper bound of each step's worth at its best completion, and the moment next to it.

    Within an interval of one price the worth of completing at a time is concave in it: inference is linear,
    and the least cost of the work is convex. So between two moments it lies under both tangents.
    """
    width = np.diff(market.moments)
    until = np.repeat(before.worth, _SUBDIVISION, axis=1)[streams.owner]
    since = np.repeat(after.worth, _SUBDIVISION, axis=1)
    worth = np.zeros((len(streams.work), len(market.moments)))
    worth[:, 1:] += np.cumsum(until * width, axis=1)
    worth[:, :-1] += np.cumsum((since * width)[:, ::-1], axis=1)[:, ::-1]
    worth *= streams.mass[:, None]
    cost, unit = market.costs(streams.work)
    worth -= cost
    possible_from = streams.before_it[:, None] / max(market.top_speed, 1e-9)
    rising = (streams.mass < 1.0)[:, None]
    worth[rising & (market.moments < possible_from)] = -np.inf
    unit = np.where(rising & (streams.work == 0.0)[:, None], 0.0, unit)
    later_is_less = streams.mass[:, None] * (since - until)
    left, rise = worth[:, :-1], market.spare(unit[:, :-1]) - later_is_less
    right, fall = worth[:, 1:], market.spare(unit[:, 1:]) - later_is_less
    # The work becomes possible only between two moments.
    earliest = np.maximum(market.moments[:-1], possible_from)
    first = right + np.maximum(-fall, 0.0) * np.maximum(market.moments[1:] - earliest, 0.0)
    top = np.where(np.isneginf(left), first, _under_tangents(left, rise, right, fall, width))
    best = top.argmax(axis=1)
    row = np.arange(len(best))
    return top[row, best], np.where(left[row, best] > right[row, best], best, best + 1)


def _under_tangents(left: Floats, rise: Floats, right: Floats, fall: Floats, width: Floats) -> Floats:
    """Returns the highest point under two tangents of a concave function, at the ends of an interval."""
    turns = (rise > 0.0) & (fall < 0.0) & np.isfinite(left) & np.isfinite(right)
    top: Floats = np.maximum(left, right)
    a, b, up, down = left[turns], right[turns], rise[turns], fall[turns]
    wide = np.broadcast_to(width, left.shape)[turns]
    top[turns] = a + up * np.clip((b - down * wide - a) / (up - down), 0.0, wide)
    return top


def _tallied(
    streams: PerStreamBound,
    worth: Floats,
    taken: Ints,
    ends: Ints,
    before: _Analysing,
    after: _Analysing,
    market: _Market,
) -> Responses:
    """Adds up the responses.

    ``taken`` are the steps of the γ that were chosen; ``ends`` (O,) are the moments at which steps are
    reached, −1 for never.
    """
    retrains = np.zeros(len(worth), np.bool_)
    retrains[streams.owner[taken]] = True
    used = before.share * market.prices.lengths
    used[retrains] = 0.0
    row, mass = streams.owner[taken], streams.mass[taken]
    early = market.prices.before(np.where(ends[taken] >= 0, market.moments[ends[taken]], 1.0))
    late = market.prices.lengths - early
    np.add.at(used, row, mass[:, None] * (before.share[row] * early + after.share[taken] * late))
    working = taken[ends[taken] >= 0]
    np.add.at(used, streams.owner[working], market.used(ends[working], streams.work[working]))
    return Responses(worth, used.sum(axis=0))
