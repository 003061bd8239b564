"""Preparing and retraining as an investment: what it takes from inference, and what it is expected to give.

For t seconds inference has what a preparation at share s and the retraining after it leave. Let V(c) be the
largest weighted mean of the streams' inference accuracy with capacity c. A preparation of some streams, with
P GPU-seconds for labels and trials of all of them and R for retraining them one after the other, then costs

    (V(C) − V(C − s)) · (P + R) / speed(s)

accuracy-seconds, as if retrainings ran at share s too. Until the window's end each stream then has its
expected gain, from when it has been retrained, which takes less where more than s can be used. Streams come
in the order of gain per GPU-second, so the best set is a prefix. The share and the prefix with the
largest difference are taken; where none is above zero nothing is prepared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import FULL_GPU_MILLI, US_PER_S, StreamId
from ekya.core.view import WindowView
from ekya.planning.schedulers.tables import analysed_parts

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prospect:
    """Expected gain and cost of preparing a stream and retraining it.

    Attributes:
        gain: expected gain of its model's accuracy, every frame analysed.
        prepare_gpu_s, retrain_gpu_s: GPU-seconds of labels and trials, and of the retraining.
    """

    stream: StreamId
    gain: float
    prepare_gpu_s: float
    retrain_gpu_s: float


@dataclass(frozen=True, slots=True)
class Investment:
    """The best share and streams.

    Attributes:
        share_milli: 0 where no stream is worth preparing.
        streams: those that are, the most rewarding first.
        worth: expected rise of the mean over the rest of the window.
    """

    share_milli: int
    streams: tuple[StreamId, ...]
    worth: float


NOTHING = Investment(0, (), 0.0)


def best_investment(
    view: WindowView, prospects: Sequence[Prospect], most_milli: int, limit_us: Callable[[int], int]
) -> Investment:
    """Returns the share, of ``most_milli`` at most, and the streams with the largest expected worth.

    Args:
        view: without a preparation.
        prospects: of streams of the view.
        most_milli: largest share; the others are multiples of δ.
        limit_us: time limit of a preparation at a share.
    """
    left_s = (view.window_end_us - view.now_us) / US_PER_S
    if not prospects or left_s <= 0.0:
        return NOTHING
    weights = {stream.stream: stream.weight for stream in view.streams}
    total = sum(weights.values())
    values = inference_values(view)
    capacity = min(view.capacity_milli // view.quantum_milli, len(values) - 1)
    most = sum(one.weight * one.accuracy for one in view.streams) / total
    # What is gained shows only in frames that are analysed.
    analysed = min(values[capacity] / most, 1.0) if most > 0.0 else 1.0
    ranked = sorted(prospects, key=lambda one: _rank(one, weights[one.stream]))
    gains = np.array([weights[one.stream] / total * one.gain * analysed for one in ranked])
    prepared = np.cumsum([one.prepare_gpu_s for one in ranked])
    retrained = np.cumsum([one.retrain_gpu_s for one in ranked])
    # Retrainings have all that they can use, and this many run at a time.
    rate = view.training_speed.speed_at(min(view.capacity_milli, FULL_GPU_MILLI))
    rate = max(rate * max(view.capacity_milli / FULL_GPU_MILLI, 1.0), 1e-9)
    # Costs are expected only: at a smaller share a mistake would take much of the window.
    least_milli = max(most_milli // 2 // view.quantum_milli, 1) * view.quantum_milli
    best = NOTHING
    for share_milli in sorted({*range(least_milli, most_milli, view.quantum_milli), most_milli}):
        speed = view.training_speed.speed_at(share_milli)
        if speed <= 0.0 or share_milli > view.capacity_milli:
            continue
        without = values[max(capacity - share_milli // view.quantum_milli, 0)]
        costs = (values[capacity] - without) * (prepared + retrained) / speed
        # Row k: the first k + 1 streams are prepared; column i: when the i-th of them has been retrained.
        done_s = prepared[:, None] / speed + retrained[None, :] / rate
        served_s = np.tril(np.maximum(left_s - done_s, 0.0))
        worth = ((served_s * gains).sum(axis=1) - costs) / left_s
        # Limits are whole microseconds, which must not cost a stream; and the first one is prepared as far as
        # there is time, or what is known of its cost would never change.
        in_time = prepared / speed <= limit_us(share_milli) / US_PER_S * (1.0 + 1e-6)
        in_time[0] = True
        worth = np.where(in_time, worth, -np.inf)
        count = int(np.argmax(worth))
        if worth[count] > best.worth:
            streams = tuple(one.stream for one in ranked[: count + 1])
            best = Investment(share_milli, streams, float(worth[count]))
    return best


def inference_values(view: WindowView) -> Floats:
    """Returns the largest weighted mean of inference accuracy with 0, 1, 2 ... quanta, retraining nothing."""
    model, golden = analysed_parts(view)
    accuracy = np.array([stream.accuracy for stream in view.streams])[:, None]
    weights = np.array([stream.weight for stream in view.streams])[:, None]
    values = weights * np.maximum(accuracy * model, golden) / max(weights.sum(), 1e-12)
    reached = np.zeros(max(view.capacity_milli, 0) // view.quantum_milli + 1)
    for of_stream in values:
        rises = np.flatnonzero(np.diff(np.maximum.accumulate(of_stream)) > 0.0) + 1
        best = reached + of_stream[0]
        for quanta in rises[rises < len(reached)].tolist():
            rest = len(reached) - quanta
            np.maximum(best[quanta:], reached[:rest] + of_stream[quanta], out=best[quanta:])
        reached = best
    return reached


def _rank(one: Prospect, weight: float) -> tuple[float, StreamId]:
    return (-weight * one.gain / max(one.prepare_gpu_s + one.retrain_gpu_s, 1e-9), one.stream)
