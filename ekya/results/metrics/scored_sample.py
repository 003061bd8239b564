"""Accuracy from a sample of the frames: which frames are drawn, and how far the accuracy may be off.

The frames of a stream's window are a stratum, from which frames are drawn without replacement. A window's
accuracy is the ratio of two totals over its frames, so its variance is that of a ratio (linearised); that of
a mean over windows and streams follows from it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from ekya.core.records import PredictionColumns
from ekya.results.metrics.accuracy import WindowSample

CONFIDENCE = 0.95
"""Probability with which an interval holds the accuracy of all frames."""

FEWEST_FRAMES = 6
"""Frames that are drawn at least from a window of a stream."""


def choose_frames(
    predictions: PredictionColumns, labelled: NDArray[np.int64], per_window: int, seed: Sequence[int]
) -> NDArray[np.int64]:
    """Returns frames to score a stream on, rising: ``per_window`` of each window, or all of a shorter one.

    Args:
        predictions: of the stream.
        labelled: frames from which labels were taken, which count in no accuracy.
        per_window: number of frames of each window.
        seed: of the draw.
    """
    random = np.random.default_rng(list(seed))
    free = ~np.isin(predictions.frame, labelled)
    drawn = [np.zeros(0, np.int64)]
    for window in np.unique(predictions.window):
        frames = predictions.frame[free & (predictions.window == window)]
        drawn.append(random.permutation(frames)[:per_window])
    return np.sort(np.concatenate(drawn))


def margin_of_mean(streams: Mapping[str, Sequence[WindowSample]]) -> float | None:
    """Returns half the width of the 95% interval of the mean accuracy; None if it cannot be told.

    Args:
        streams: windows of each stream; the mean over the streams of the means over their windows is meant.
    """
    means, degrees = [], 0
    for windows in streams.values():
        known = [window.accuracy_variance for window in windows if window.counted.sum()]
        if not known:
            continue
        if None in known:
            return None
        means.append(sum(one for one in known if one is not None) / len(known) ** 2)
        degrees += sum(len(window.counted) - 1 for window in windows if window.counted.sum())
    if not any(means):
        return 0.0 if means else None
    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2)) * float(np.sqrt(sum(means))) / len(means)
