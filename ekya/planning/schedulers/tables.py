"""PickConfigs (paper Algorithm 2) for all streams and all shares together, as arrays.

With one phase a stream's value is the product of a term in (γ, R) and a term in (λ, I) (``objective.py``).
So all its values are a column times a row: ``serving[:, None] * part[None, :]``, over shares in quanta of δ;
or the row of the golden detector alone, where that is more. The numbers equal those of ``pick.py`` to the
last bit, since the same operations are done in the same order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import FULL_GPU_MILLI, US_PER_S
from ekya.core.view import WindowView
from ekya.planning.schedulers.checkpoint_gain import bends_of, mean_parts
from ekya.planning.schedulers.pick import (
    SAME,
    cheapest_rank,
    inference_rank,
    is_young,
    retraining_order,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class ValueTables:
    """Value of every stream of a view at each share; S streams in their order, shares of 0 to L − 1 quanta.

    Attributes:
        serving: (S, L) mean accuracy of the serving model at the best γ for a retraining share.
        part: (S, L) part of it that the best λ of the edge model leaves at an inference share.
        golden: (S, L) accuracy of the best λ of the golden detector at that share; 0 without one.
        floors: (S,) quanta from which on a_MIN and the latency limit are kept; 0 where no share keeps them.
        weights: (S,) weight of a stream in the mean.
        retrains: (S,) whether there is a retraining to give a share to.
    """

    serving: Floats
    part: Floats
    golden: Floats
    floors: Ints
    weights: Floats
    retrains: NDArray[np.bool_]

    @property
    def levels(self) -> int:
        """L: a job holds 0 to L − 1 quanta, at most one GPU."""
        return int(self.serving.shape[1])


def value_tables(view: WindowView) -> ValueTables:
    """Returns the tables of a view."""
    accuracy = np.array([stream.accuracy for stream in view.streams])[:, None]
    part, golden = analysed_parts(view)
    return ValueTables(
        serving=_serving(view, accuracy),
        part=part,
        golden=golden,
        floors=floor_quanta(view, accuracy)[:, 0],
        weights=np.array([stream.weight for stream in view.streams]),
        retrains=np.array([s.running is not None or bool(s.retrain_options) for s in view.streams], np.bool_),
    )


def _serving(view: WindowView, accuracy: Floats) -> Floats:
    """Returns (S, L) ``ValueTables.serving``; γ are tried in the order of ``pick_retraining``."""
    streams, speeds = view.streams, np.array(training_speeds(view))
    best = np.repeat(accuracy, len(speeds), axis=1)
    left_us = view.window_end_us - view.now_us
    if left_us <= 0:
        return best
    offered = [[stream.running.option] if stream.running else retraining_order(stream) for stream in streams]
    work = _columns([[o.gpu_s for o in options] for options in offered], np.inf)
    after = _columns([[o.accuracy_after for o in options] for options in offered], 0.0)
    # The γ of a running retraining is locked, even if it gains nothing.
    least_gain = np.array([-1.0 if stream.running else SAME for stream in streams])[:, None]
    # No speed and endless work give infinity or NaN, which ``counts`` leaves out.
    with np.errstate(divide="ignore", invalid="ignore"):
        took_us = np.ceil(work.T[:, :, None] / speeds * US_PER_S)
        gains = np.maximum(after.T[:, :, None] - accuracy, 0.0)
        values = accuracy + gains * ((left_us - took_us) / left_us)
    counts = (speeds > 0.0) & (took_us < left_us)
    early = _columns([[o.early_part for o in options] for options in offered], 0.0)
    place = np.nonzero(early.T)
    if len(place[0]):
        parts = _parts_served(early.T[place], work.T[place], took_us[place], speeds, left_us)
        values[place] = accuracy[place[1]] + gains[place] * parts
        counts[place] = speeds > 0.0
    for value, counted in zip(values, counts, strict=True):
        np.copyto(best, value, where=counted & (value > best + least_gain))
    return best


def _parts_served(early: Floats, gpu_s: Floats, took_us: Floats, speeds: Floats, left_us: int) -> Floats:
    """Returns (N, L) the mean part of its gain that each of N γ brings if its checkpoints serve.

    Args:
        early, gpu_s: (N,) early part and GPU-seconds of the γ.
        took_us: (N, L) time until it is done.
        speeds: (L,) training speeds; results at speed 0 are not used.
        left_us: time left in the window.
    """
    with np.errstate(invalid="ignore"):
        parts: Floats = (left_us - took_us + early[:, None] * took_us) / left_us
    late, share = np.nonzero((took_us >= left_us) & (speeds > 0.0))
    done = np.minimum(speeds[share] * left_us / US_PER_S / gpu_s[late], 1.0)
    parts[late, share] = mean_parts(bends_of(early)[late], np.zeros(len(done)), done)
    return parts


def training_speeds(view: WindowView) -> list[float]:
    """Returns the speed of a retraining at shares of 0 to L − 1 quanta."""
    return [view.training_speed.speed_at(share) for share in range(0, FULL_GPU_MILLI + 1, view.quantum_milli)]


def analysed_parts(view: WindowView) -> tuple[Floats, Floats]:
    """Returns the part of the full accuracy that the best λ reaches at each share.

    λ are tried from the worst on, so the last one that fits is the best.

    Returns:
        Two (S, L) arrays, for streams and shares in quanta of δ. The first holds the parts of λ of the edge
        model, the second those of the golden detector; 0 where ``pick_inference`` takes one of the other.
    """
    shares = np.arange(0, FULL_GPU_MILLI + 1, view.quantum_milli)
    ranked = [
        sorted(
            sorted(stream.inference_options, key=inference_rank, reverse=True), key=partial(is_young, stream)
        )
        for stream in view.streams
    ]
    cheapest = [min(stream.inference_options, key=cheapest_rank) for stream in view.streams]
    needed = _columns([[o.share_needed_milli for o in options] for options in ranked], np.inf)
    relative = _columns([[o.relative_accuracy for o in options] for options in ranked], 0.0)
    by_golden = _columns([[o.config.by_golden for o in options] for options in ranked], 0.0) > 0.0
    young = _columns(
        [[is_young(s, o) for o in known] for s, known in zip(view.streams, ranked, strict=True)], 0.0
    )
    speed = view.inference_speed
    reached = np.array([speed.linear_milli(int(share)) for share in shares])
    least = np.array([speed.linear_milli(max(o.share_needed_milli, 1)) for o in cheapest])[:, None]
    starved = np.array([o.relative_accuracy for o in cheapest])[:, None] * np.minimum(1.0, reached / least)
    starved = np.array(starved, np.float64).reshape(len(view.streams), len(shares))
    dear = np.array([o.config.by_golden for o in cheapest], np.bool_).reshape(-1, 1)
    model, golden = np.where(dear, 0.0, starved), np.where(dear, starved, 0.0)
    # What is taken so far: 0 where nothing fits, 1 for a λ that is too old, 2 for one that is not.
    taken = np.zeros(starved.shape)
    for need, rho, of_golden, age in zip(needed.T, relative.T, by_golden.T, young.T, strict=True):
        fits, rank = need[:, None] <= shares, 1.0 + age[:, None]
        for parts, its in ((model, ~of_golden[:, None]), (golden, of_golden[:, None])):
            np.copyto(parts, 0.0, where=fits & (taken < rank))
            np.copyto(parts, rho[:, None], where=fits & its)
        taken = np.where(fits, rank, taken)
    return model, golden


def floor_quanta(view: WindowView, accuracy: Floats) -> Ints:
    """Returns (S, A) the smallest inference shares, in quanta, from which on constraints are kept.

    The constraints are a_MIN and the latency limit together; where no share keeps both, the limit alone, and
    where none keeps that, a_MIN alone. 0 if no share keeps any.

    Args:
        view: the streams.
        accuracy: (S, A) accuracies of each stream's model, every frame analysed.
    """
    streams, none = view.streams, FULL_GPU_MILLI + 1
    needed_milli = _columns(
        [[max(o.share_needed_milli, 0) for o in s.inference_options] for s in streams], none
    )
    relative = _columns([[o.relative_accuracy for o in s.inference_options] for s in streams], 0.0)
    young = _columns([[is_young(s, o) for o in s.inference_options] for s in streams], 0.0) > 0.0
    limited = np.array([stream.max_age_us is not None for stream in streams], np.bool_)
    quanta = np.ceil(needed_milli / view.quantum_milli)
    needed = np.where(quanta * view.quantum_milli <= FULL_GPU_MILLI, quanta, none)
    by_golden = _columns([[o.config.by_golden for o in s.inference_options] for s in streams], 0.0) > 0.0
    full = np.where(by_golden[:, None], 1.0, accuracy[:, :, None])
    reaching = full * relative[:, None] >= view.min_accuracy - SAME
    floor = np.full(accuracy.shape, none)
    for pool in (reaching & young[:, None], (young & limited[:, None])[:, None], reaching):
        least = np.where(pool, needed[:, None], none).min(axis=2, initial=none)
        floor = np.where(floor < none, floor, least)
    floors: Ints = np.where(floor < none, floor, 0).astype(np.intp)
    return floors


def _columns(rows: Sequence[Sequence[float]], fill: float) -> Floats:
    """Returns rows of different lengths as one array, with ``fill`` behind the short ones."""
    width = max((len(row) for row in rows), default=0)
    return np.array([[*row, *[fill] * (width - len(row))] for row in rows], np.float64).reshape(
        len(rows), width
    )
