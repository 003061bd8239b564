"""Per-stream inputs of the inner problem in ``relaxed.py``, as arrays: shares, γ and steps of their gain.

Unit of work: GPU-seconds over the rest of the window, so that work w takes the time w on a whole GPU.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ekya.core.units import FULL_GPU_MILLI, us_to_seconds
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.planning.schedulers.allocation import largest_share_milli
from ekya.planning.schedulers.checkpoint_gain import bend_of, mean_part
from ekya.planning.schedulers.objective import DONE_GPU_S, analysed_part
from ekya.planning.schedulers.tables import Floats, Ints, floor_quanta

_STEPS = 12
"""Number of steps in which the gain from checkpoints is taken to arrive, each slightly too early."""

Line = list[tuple[float, float]]
"""Points of a curve over shares in GPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Concave envelope of the speeds at multiples of δ: its straight parts, the steepest first.

    Attributes:
        widths: share in GPUs of each part.
        slopes: speed per share, falling.
    """

    widths: Floats
    slopes: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Corners:
    """Corners of a concave envelope: shares in GPUs, and the part of the accuracy left by the best λ there.

    At any price the best share is one of these. Shorter rows repeat their last corner.
    """

    share: Floats
    part: Floats


@dataclass(frozen=True, slots=True, eq=False)
class PerStreamBound:
    """Streams and what each could do alone, as arrays.

    Attributes:
        accuracy: (S,) accuracy of the serving models.
        before: (S, P) inference shares while the current model serves.
        owner: (O,) stream of each step of a γ that is reachable and gains. Without checkpoints a γ is one
            step, and dominated ones are left out.
        gamma: (O,) index of the γ that the step belongs to, counted from 0.
        mass: (O,) part of the gain that the step brings; the parts of a γ add up to 1.
        after: (O,) accuracy that the γ leads to.
        work: (O,) work of the step.
        before_it: (O,) work with which the step is reached, including that of the steps before it.
        behind: (O, P) inference shares once the γ is done.
        speed: training speed, see ``Segments``.
    """

    accuracy: Floats
    before: Corners
    owner: Ints
    gamma: Ints
    mass: Floats
    after: Floats
    work: Floats
    before_it: Floats
    behind: Corners
    speed: Segments


def per_stream_bound(view: WindowView, *, keep_minimum: bool) -> PerStreamBound:
    """Returns the arrays of a view, streams by id; ``keep_minimum`` as in ``upper_bound``."""
    streams = view.streams
    left_s = us_to_seconds(view.window_end_us - view.now_us)
    found = [_worthwhile(stream, left_s) if left_s > 0 else [] for stream in streams]
    least = [
        min(_least_milli(view, stream, keep_minimum), *_rising_floors(view, stream, steps, keep_minimum))
        for stream, steps in zip(streams, found, strict=True)
    ]
    corners = [_corners(view, stream, at) for stream, at in zip(streams, least, strict=True)]
    offers = [(row, step) for row, steps in enumerate(found) for step in steps]
    behind = []
    for row, step in offers:
        later = _least_milli(view, replace(streams[row], accuracy=step.after), keep_minimum)
        behind.append(corners[row] if later >= least[row] else _corners(view, streams[row], later))
    firsts = np.cumsum([step.first for _, step in offers], dtype=np.intp)
    return PerStreamBound(
        accuracy=np.array([stream.accuracy for stream in streams], np.float64),
        before=_padded(corners),
        owner=np.array([row for row, _ in offers], np.intp),
        gamma=firsts - 1,
        mass=np.array([step.mass for _, step in offers], np.float64),
        after=np.array([step.after for _, step in offers], np.float64),
        work=np.array([step.work for _, step in offers], np.float64),
        before_it=np.array([step.before_it for _, step in offers], np.float64),
        behind=_padded(behind),
        speed=_segments(view),
    )


def _least_milli(view: WindowView, stream: StreamView, keep_minimum: bool) -> int:
    if not keep_minimum:
        return 0
    alone = replace(view, streams=(stream,))
    return int(floor_quanta(alone, np.array([[stream.accuracy]]))[0, 0]) * view.quantum_milli


def _corners(view: WindowView, stream: StreamView, least_milli: int) -> Line:
    """Returns the corners of the best λ's envelope, from the share ``least_milli`` on.

    A λ's accuracy follows the speed curve, which is straight between its points, up to the share that it
    needs, and is flat beyond.
    """
    bends = [share for share, _ in view.inference_speed.points[1:-1]]
    needed = [option.share_needed_milli for option in stream.inference_options]
    shares = _around([*needed, *bends], view.quantum_milli)
    speed = view.inference_speed
    line = [
        (share / FULL_GPU_MILLI, max(analysed_part(one, share, speed) for one in stream.inference_options))
        for share in sorted({least_milli, *(share for share in shares if share > least_milli)})
    ]
    return [line[0], *(end for start, end in pairwise(_envelope(line)) if end[1] > start[1])]


def _around(shares_milli: Iterable[int], quantum_milli: int) -> set[int]:
    """Returns 0, the largest share, and the multiples of δ on both sides of each share; one GPU at most."""
    largest = largest_share_milli(quantum_milli)
    below = {min(share // quantum_milli * quantum_milli, largest) for share in shares_milli}
    return {0, largest} | below | {min(share + quantum_milli, largest) for share in below}


def _padded(rows: list[Line]) -> Corners:
    most = max((len(points) for points in rows), default=1)
    filled = [points + points[-1:] * (most - len(points)) for points in rows]
    corners = np.array(filled, np.float64).reshape(len(rows), most, 2)
    return Corners(corners[:, :, 0], corners[:, :, 1])


@dataclass(frozen=True, slots=True)
class _Step:
    """Part of a γ's gain; ``first`` marks its γ's first step; other fields as in ``PerStreamBound``."""

    first: bool
    mass: float
    after: float
    work: float
    before_it: float


def _worthwhile(stream: StreamView, left_s: float) -> list[_Step]:
    """Returns the steps of the γ that gain and fit into the window, cheapest γ first.

    Each γ is better than any cheaper one. A γ whose checkpoints serve need neither fit nor be better, since
    it gains before it ends.
    """
    options = (stream.running.option,) if stream.running else stream.retrain_options
    found: list[_Step] = []
    reached = stream.accuracy
    for option in sorted(options, key=lambda o: (o.gpu_s, -o.accuracy_after)):
        # The objective treats this last bit of work as rounding.
        work = max(option.gpu_s - DONE_GPU_S, 0.0) / left_s
        if option.early_part > 0.0 and option.accuracy_after > stream.accuracy:
            found += _rising_steps(option, work)
        elif option.accuracy_after > reached and work < 1.0:
            found.append(_Step(True, 1.0, option.accuracy_after, work, work))
            reached = option.accuracy_after
    return found


def _rising_steps(option: RetrainOption, work: float) -> Iterator[_Step]:
    """Yields steps never below the gain of checkpoints: each part of the gain counts from its beginning.

    A step pays for the work of the part before it, which is done by then; the first one is free.
    """
    at, reached = steps_above(option.early_part, _STEPS)
    for step in range(_STEPS):
        paid = at[step] - at[step - 1] if step else 0.0
        mass = reached[step + 1] - reached[step]
        yield _Step(step == 0, mass, option.accuracy_after, paid * work, at[step] * work)


def steps_above(early_part: float, count: int) -> tuple[list[float], list[float]]:
    """Returns parts of the work from 0 to 1, and f there: (count + 1,) each.

    They lie closer where f is steep, so that the steps from each to the next exceed f least in total.
    """
    bend = bend_of(early_part)
    # At equal parts of the integral of √f'; f' is an exponential, and so is its root.
    last = -math.expm1(-bend / 2.0)
    at = [-2.0 * math.log1p(-last * step / count) / bend for step in range(count)] + [1.0]
    return at, [mean_part(bend, part, part) for part in at]


def _rising_floors(
    view: WindowView, stream: StreamView, steps: Sequence[_Step], keep_minimum: bool
) -> list[int]:
    """Returns the floors that keep a_MIN at the accuracies to which γ with serving checkpoints lead.

    A plan between two steps need not keep more than these. Without such a γ the only floor is a whole GPU,
    which lowers no minimum.
    """
    rising = {step.after for step in steps if step.mass < 1.0}
    known = [_least_milli(view, replace(stream, accuracy=after), keep_minimum) for after in rising]
    return known or [FULL_GPU_MILLI]


def _segments(view: WindowView) -> Segments:
    """Returns the envelope of the training speed, which is straight between the points of its curve."""
    shares = sorted(_around((share for share, _ in view.training_speed.points), view.quantum_milli))
    line = [(share / FULL_GPU_MILLI, view.training_speed.speed_at(share)) for share in shares]
    corners = np.array(_envelope(line))
    widths = np.diff(corners[:, 0])
    slopes = np.diff(corners[:, 1]) / widths
    return Segments(widths[slopes > 0.0], slopes[slopes > 0.0])


def _envelope(line: Line) -> Line:
    """Returns the corners of the least concave line above these points, whose first values rise."""
    hull: Line = []
    for point in line:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _slope(start: tuple[float, float], end: tuple[float, float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])
