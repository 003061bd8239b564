"""What each stream would do alone if it paid for GPU time: the inner problem of ``bound.py``.

Time runs from 0 (now) to 1 (the window's end) in K intervals, each with a price per GPU and unit of time. A
stream may retrain and analyse with any share of up to one GPU each, changed at any instant, and keeps what
its accuracy is worth less what its shares cost. That the streams share the GPUs is not asked here.

Units: prices and worths are accuracy times weight; work is GPU-seconds over the rest of the window, so that
work w takes the time w at a whole GPU.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ekya.core.units import FULL_GPU_MILLI, us_to_seconds
from ekya.core.view import StreamView, WindowView
from ekya.scheduling.allocation import largest_share_milli
from ekya.scheduling.objective import DONE_GPU_S, analysed_part
from ekya.scheduling.pick import inference_floor_milli
from ekya.scheduling.tables import Floats, Ints

_SUBDIVISION = 2
"""Completion times looked at in each interval of one price; between them a tangent bounds what is missed."""

Line = list[tuple[float, float]]
"""Points of a curve over shares in GPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The concave envelope of the speeds at multiples of δ: its straight parts, the steepest first.

    Attributes:
        widths: share in GPUs of each part.
        slopes: speed per share, falling.
    """

    widths: Floats
    slopes: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Corners:
    """The shares in GPUs, and what the best λ leaves there, at the corners of the concave envelope.

    At a price no other share is ever best. Rows that have fewer repeat their last one.
    """

    share: Floats
    part: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Alone:
    """The streams and what they could do, as arrays.

    Attributes:
        accuracy: (S,) of the serving models.
        before: shares that inference can have while the model serves, (S, P).
        owner: (O,) the stream of each γ that could finish and would gain; dominated ones are left out.
        after: (O,) accuracy that the γ leads to.
        work: (O,) what it has to do.
        behind: shares that inference can have once the γ is done, (O, P).
        speed: see there.
    """

    accuracy: Floats
    before: Corners
    owner: Ints
    after: Floats
    work: Floats
    behind: Corners
    speed: Segments


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """Of a GPU for the whole window.

    Attributes:
        edges: (K + 1,) moments from 0 to 1 at which they change.
        levels: (K,) between them.
    """

    edges: Floats
    levels: Floats

    @property
    def lengths(self) -> Floats:
        """(K,) of the intervals."""
        return np.diff(self.edges)

    def before(self, moments: Floats) -> Floats:
        """(N, K) how much of each interval lies before moments (N,)."""
        return np.clip(moments[:, None] - self.edges[:-1], 0.0, self.lengths)


@dataclass(frozen=True, slots=True, eq=False)
class Responses:
    """What the streams do at some prices.

    Attributes:
        worth: (S,) at least what the best response is worth, less what it costs.
        value: (S,) mean accuracy of a response that comes close to the best.
        used: (K,) GPUs times time that these responses use in each interval, together.
    """

    worth: Floats
    value: Floats
    used: Floats


def alone(view: WindowView, *, keep_minimum: bool) -> Alone:
    """The arrays of a view, streams by id; ``keep_minimum`` as in ``upper_bound``."""
    streams = sorted(view.streams, key=lambda stream: stream.stream)
    left_s = us_to_seconds(view.window_end_us - view.now_us)
    least = [_least_milli(view, stream, keep_minimum) for stream in streams]
    corners = [_corners(view, stream, at) for stream, at in zip(streams, least, strict=True)]
    offers = [
        (row, after, work)
        for row, stream in enumerate(streams)
        for after, work in (_worthwhile(stream, left_s) if left_s > 0 else [])
    ]
    behind = []
    for row, after, _ in offers:
        later = _least_milli(view, replace(streams[row], accuracy=after), keep_minimum)
        behind.append(corners[row] if later >= least[row] else _corners(view, streams[row], later))
    return Alone(
        accuracy=np.array([stream.accuracy for stream in streams], np.float64),
        before=_padded(corners),
        owner=np.array([row for row, _, _ in offers], np.intp),
        after=np.array([after for _, after, _ in offers], np.float64),
        work=np.array([work for _, _, work in offers], np.float64),
        behind=_padded(behind),
        speed=_segments(view),
    )


def _least_milli(view: WindowView, stream: StreamView, keep_minimum: bool) -> int:
    return (inference_floor_milli(view, stream) or 0) if keep_minimum else 0


def _corners(view: WindowView, stream: StreamView, least_milli: int) -> Line:
    """A λ's accuracy is straight up to the share that it needs, and then flat."""
    shares = _around((o.share_needed_milli for o in stream.inference_options), view.quantum_milli)
    line = [
        (share / FULL_GPU_MILLI, max(analysed_part(option, share) for option in stream.inference_options))
        for share in sorted({least_milli, *(share for share in shares if share > least_milli)})
    ]
    return [line[0], *(end for start, end in pairwise(_envelope(line)) if end[1] > start[1])]


def _around(shares_milli: Iterable[int], quantum_milli: int) -> set[int]:
    """Multiples of δ, of one GPU at most, on both sides of each share; with the least and the largest."""
    largest = largest_share_milli(quantum_milli)
    below = {min(share // quantum_milli * quantum_milli, largest) for share in shares_milli}
    return {0, largest} | below | {min(share + quantum_milli, largest) for share in below}


def _padded(rows: list[Line]) -> Corners:
    most = max((len(points) for points in rows), default=1)
    filled = [points + points[-1:] * (most - len(points)) for points in rows]
    corners = np.array(filled, np.float64).reshape(len(rows), most, 2)
    return Corners(corners[:, :, 0], corners[:, :, 1])


def _worthwhile(stream: StreamView, left_s: float) -> list[tuple[float, float]]:
    """(accuracy after, work) of the γ that gain and fit into the window, each better than any cheaper one."""
    options = (stream.running.option,) if stream.running else stream.retrain_options
    found: list[tuple[float, float]] = []
    reached = stream.accuracy
    for option in sorted(options, key=lambda o: (o.gpu_s, -o.accuracy_after)):
        # The objective takes less work than this for rounding.
        work = max(option.gpu_s - DONE_GPU_S, 0.0) / left_s
        if option.accuracy_after > reached and work < 1.0:
            found.append((option.accuracy_after, work))
            reached = option.accuracy_after
    return found


def _segments(view: WindowView) -> Segments:
    """The speed curve is straight between its points."""
    shares = sorted(_around((share for share, _ in view.training_speed.points), view.quantum_milli))
    line = [(share / FULL_GPU_MILLI, view.training_speed.speed(share)) for share in shares]
    corners = np.array(_envelope(line))
    widths = np.diff(corners[:, 0])
    slopes = np.diff(corners[:, 1]) / widths
    return Segments(widths[slopes > 0.0], slopes[slopes > 0.0])


def _envelope(line: Line) -> Line:
    """The corners of the least concave line above these points, whose first values rise."""
    hull: Line = []
    for point in line:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _slope(start: tuple[float, float], end: tuple[float, float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])


def respond(streams: Alone, weights: Floats, prices: Prices) -> Responses:
    """What every stream does at these prices.

    Args:
        streams: see there.
        weights: (S,) what an accuracy of 1 is worth to each.
        prices: see there.
    """
    count = len(streams.accuracy)
    before = _analysing(streams.before, weights * streams.accuracy, prices.levels)
    after = _analysing(streams.behind, weights[streams.owner] * streams.after, prices.levels)
    worth = before.worth @ prices.lengths
    market = _Market(streams.speed, prices)
    best, ends = _completing(streams, before, after, market)
    worth_best, option_of = worth.copy(), np.full(count, -1, np.intp)
    np.maximum.at(worth_best, streams.owner, best)
    retrains = np.flatnonzero(best >= worth_best[streams.owner])
    option_of[streams.owner[retrains]] = retrains
    return _tallied(streams, worth_best, option_of, ends, before, after, market)


@dataclass(frozen=True, slots=True, eq=False)
class _Analysing:
    """Inference at its best share in each interval, (N, K): worth less cost, share, part."""

    worth: Floats
    share: Floats
    part: Floats


def _analysing(corners: Corners, worth: Floats, prices: Floats) -> _Analysing:
    """``worth`` (N,) is what the model's whole accuracy is worth to each."""
    gains = worth[:, None] * corners.part
    net = gains[:, None, :] - prices[None, :, None] * corners.share[:, None, :]
    corner = net.argmax(axis=2)
    return _Analysing(
        np.take_along_axis(net, corner[:, :, None], axis=2)[:, :, 0],
        np.take_along_axis(corners.share, corner, axis=1),
        np.take_along_axis(corners.part, corner, axis=1),
    )


class _Market:
    """What work costs at best, done before each of N + 1 moments.

    The cheapest way to work is a knapsack that may be cut: an interval and a part of the speed curve give so
    much work at so much a unit, and the cheapest are used first.
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
        """(N, moments) least cost of the work (N,) done before each, infinite if there is no time; and of
        one unit more."""
        at = np.stack([np.searchsorted(done, work) for done in self.done], axis=1)
        at = np.minimum(at, self.done.shape[1] - 1)
        unit = self.unit[at]
        moment = np.arange(len(self.moments))
        cost = self._paid[moment, at] - (self.done[moment, at] - work[:, None]) * unit
        return np.where(work[:, None] <= self.done[:, -1], cost, np.inf), unit

    def spare(self, unit: Floats) -> Floats:
        """(N, moments − 1) what a unit of time more behind each moment saves where work costs ``unit``."""
        prices = np.repeat(self.prices.levels, _SUBDIVISION)
        saved = np.zeros(unit.shape)
        for slope, width in zip(self._speed.slopes, self._speed.widths, strict=True):
            saved += np.maximum(unit * slope - prices, 0.0) * width
        return saved

    def used(self, moment: Ints, work: Floats) -> Floats:
        """(N, K) GPUs times time in each interval of the cheapest way to do work (N,) before moments (N,)."""
        done, time = self.done[moment], self._time[moment]
        step = np.diff(done, axis=1, prepend=0.0)
        part = np.clip((work[:, None] - (done - step)) / np.where(step > 0.0, step, 1.0), 0.0, 1.0)
        spent = np.zeros((len(work), len(self.prices.levels)))
        np.add.at(spent.T, self.interval, (part * (step > 0.0) * time * self._shares).T)
        return spent


def _completing(
    streams: Alone, before: _Analysing, after: _Analysing, market: _Market
) -> tuple[Floats, Ints]:
    """(O,) at least what each γ is worth at its best completion; and the moment next to it.

    Within an interval of one price the worth of completing at a time is concave in it: what is analysed is
    linear, and the least cost of the work is convex. So between two moments it lies under both tangents.
    """
    width = np.diff(market.moments)
    until = np.repeat(before.worth, _SUBDIVISION, axis=1)[streams.owner]
    since = np.repeat(after.worth, _SUBDIVISION, axis=1)
    worth = np.zeros((len(streams.work), len(market.moments)))
    worth[:, 1:] += np.cumsum(until * width, axis=1)
    worth[:, :-1] += np.cumsum((since * width)[:, ::-1], axis=1)[:, ::-1]
    cost, unit = market.costs(streams.work)
    worth -= cost
    later_is_less = since - until
    left, rise = worth[:, :-1], market.spare(unit[:, :-1]) - later_is_less
    right, fall = worth[:, 1:], market.spare(unit[:, 1:]) - later_is_less
    # Where there is time for the work only from somewhere between two moments on.
    earliest = np.maximum(market.moments[:-1], streams.work[:, None] / max(market.top_speed, 1e-9))
    first = right + np.maximum(-fall, 0.0) * np.maximum(market.moments[1:] - earliest, 0.0)
    top = np.where(np.isneginf(left), first, _under_tangents(left, rise, right, fall, width))
    best = top.argmax(axis=1)
    row = np.arange(len(best))
    return top[row, best], np.where(left[row, best] > right[row, best], best, best + 1)


def _under_tangents(left: Floats, rise: Floats, right: Floats, fall: Floats, width: Floats) -> Floats:
    """The highest point under two tangents of a concave function, at the ends of an interval."""
    turns = (rise > 0.0) & (fall < 0.0) & np.isfinite(left) & np.isfinite(right)
    top: Floats = np.maximum(left, right)
    a, b, up, down = left[turns], right[turns], rise[turns], fall[turns]
    wide = np.broadcast_to(width, left.shape)[turns]
    top[turns] = a + up * np.clip((b - down * wide - a) / (up - down), 0.0, wide)
    return top


def _tallied(
    streams: Alone,
    worth: Floats,
    option_of: Ints,
    ends: Ints,
    before: _Analysing,
    after: _Analysing,
    market: _Market,
) -> Responses:
    """What responses come to; ``option_of`` (S,) is the γ of each stream, or −1."""
    option = np.maximum(option_of, 0)
    retrains = option_of >= 0
    end = np.where(retrains, market.moments[ends[option]] if len(ends) else 1.0, 1.0)
    early = market.prices.before(end)
    late = market.prices.lengths - early
    value = streams.accuracy * (before.part * early).sum(axis=1)
    used = before.share * early
    if len(ends):
        value = value + streams.after[option] * (after.part[option] * late).sum(axis=1)
        used = used + after.share[option] * late
        rows = np.flatnonzero(retrains)
        used[rows] += market.used(ends[option[rows]], streams.work[option[rows]])
    return Responses(worth, value, used.sum(axis=0))
