"""Notices from what inference sees anyway that the scene of a stream has changed."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import US_PER_S, us_to_seconds

FALSE_ALARMS_PER_HOUR = 0.1
"""Mean number of false alarms of a camera in an hour, for which the threshold is made."""

BLOCK_US = 500_000
"""Frames of such a time are averaged before they are tested."""

LEARNING_BLOCKS = 20
"""Number of blocks from which a reference is learnt before anything is tested."""

MOST_BLOCKS = 600
"""Number of newest blocks that make the reference: it follows what changes more slowly, such as the sun."""

ALLOWANCE = 0.5
"""Long-run standard deviations by which a signal may be above its mean for any time.

A CUSUM with this allowance is the quickest to find a change of twice as much.
"""

REFERENCE_ERRORS = 2.0
"""Standard errors of the reference's mean that are allowed besides."""

STAY_US = 4_000_000
"""Time for which an object is in view: the blocks of such a time resemble each other."""

LONG_RUN = 2 * STAY_US / BLOCK_US
"""Variance of the sum of many blocks by that of as many independent ones."""

FEWEST_BLOCKS = 4
"""A change shorter than this raises no alarm, however great: a bus that fills the picture for a second."""

EXPOSURE = 1.25
"""Factor by which a camera may change its exposure, as for a large dark object."""

DOUBT, OBJECTS, PICTURE = "doubt of the model", "number of objects", "difference of the picture"

_FLOORS = {DOUBT: 0.03, OBJECTS: 1.0, PICTURE: 0.5}
_PART_FLOOR = 0.1
_SIEGMUND = 1.166


@dataclass(frozen=True, slots=True, eq=False)
class SeenFrame:
    """Observations of inference in an analysed frame.

    Attributes:
        t_us: stream time.
        version, resolution: the weights that analysed it, and λ's resolution: confidences depend on both.
        confidence: (N,) of its objects.
        classes: (N,) of its objects, in the fleet's classes.
        picture: (D,) any description of the picture, in grey levels.
    """

    t_us: int
    version: int
    resolution: int
    confidence: NDArray[np.float32]
    classes: NDArray[np.int16]
    picture: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Drift:
    """Evidence of a change.

    Attributes:
        t_us: stream time at which it was enough.
        since_us: stream time from which on frames show the new scene.
        signal: that shows it best.
        value, normal: mean of the signal since then, and of the reference.
        deviations: their distance in standard deviations of a block.
    """

    t_us: int
    since_us: int
    signal: str
    value: float
    normal: float
    deviations: float

    @property
    def reason(self) -> str:
        """The evidence, in one sentence."""
        return (
            f"{self.signal} is {self.value:.3g} since {us_to_seconds(self.since_us):.1f} s and was "
            f"{self.normal:.3g} before: {self.deviations:.1f} standard deviations"
        )


class DriftMonitor:
    """Tests the analysed frames of a stream, in order, for a change of the scene.

    Signals are the mean doubt of the model (1 - confidence), the part of each class in the answers, the
    number of objects, and the difference between the picture and the mean picture of the reference (the
    median over its description, so that an object in less than half of it is none, and but for what exposure
    does). Drift raises a signal; lower doubt and fewer objects are no drift, and without objects only the
    picture is tested. The reference of what the model says begins anew with new weights, and each resolution
    has its own; that of the picture goes on. After an alarm all of it is learnt anew, from the new scene.

    Args:
        classes: the fleet's.
        false_alarms_per_hour: for all signals together; see ``threshold_of``.
    """

    def __init__(self, classes: Sequence[str], false_alarms_per_hour: float = FALSE_ALARMS_PER_HOUR) -> None:
        parts = {f"part of {name}": _PART_FLOOR for name in classes}
        self._floors = {DOUBT: _FLOORS[DOUBT], OBJECTS: _FLOORS[OBJECTS], **parts}
        self._threshold = threshold_of(false_alarms_per_hour / (len(self._floors) + 1))
        self._block: list[SeenFrame] = []
        self._version = -1
        self.relearn_references(0)

    def relearn_references(self, t_us: int) -> None:
        """Learns all references anew, from frames of ``t_us`` on."""
        self._from_us = t_us
        self._block = []
        self._answers: dict[int, _Chart] = {}
        self._picture = _Chart({PICTURE: _FLOORS[PICTURE]}, self._threshold)
        self._pictures: list[NDArray[np.float32]] = []
        self._scene = np.zeros(0, np.float32)

    def observe_frame(self, frame: SeenFrame) -> Drift | None:
        """Takes the next analysed frame; returns evidence of drift when there is enough."""
        if frame.t_us < self._from_us:
            return None
        drift = self._close(frame.t_us) if self._block and _ends(self._block[0], frame) else None
        self._block.append(frame)
        return drift

    def _close(self, now_us: int) -> Drift | None:
        """Tests the block that is over."""
        frames, self._block = self._block, []
        begun_us = frames[0].t_us
        if frames[0].version != self._version:
            self._version, self._answers = frames[0].version, {}
        chart = self._answers.setdefault(frames[0].resolution, _Chart(self._floors, self._threshold))
        found = [chart.add_block(begun_us, now_us, self._of_answers(frames))]
        found += [
            self._picture.add_block(begun_us, now_us, np.array([difference]))
            for difference in self._differences(np.mean([frame.picture for frame in frames], axis=0))
        ]
        drifts = [drift for drift in found if drift is not None]
        if not drifts:
            return None
        self.relearn_references(now_us)
        return max(drifts, key=lambda drift: (drift.deviations, drift.signal))

    def _of_answers(self, frames: Sequence[SeenFrame]) -> NDArray[np.float64]:
        """Returns the signals of the model's answers; NaN where they cannot be told without objects."""
        count = len(self._floors) - 2
        classes = np.concatenate([frame.classes for frame in frames])
        objects = len(classes)
        if not objects:
            return np.array([np.nan, 0.0, *[np.nan] * count])
        doubt = 1.0 - float(np.mean(np.concatenate([frame.confidence for frame in frames])))
        parts = np.bincount(classes, minlength=count) / objects
        return np.array([doubt, objects / len(frames), *parts])

    def _differences(self, picture: NDArray[np.float32]) -> list[float]:
        """Returns the difference of a block's picture from the scene; of all blocks when it is learnt."""
        pictures = self._pictures
        if len(pictures) < LEARNING_BLOCKS:
            pictures.append(picture)
            if len(pictures) < LEARNING_BLOCKS:
                return []
            self._scene = np.mean(pictures, axis=0)
            # A picture is a part of the mean of all; its difference from the mean of the others is larger.
            of_others = len(pictures) / (len(pictures) - 1)
            return [of_others * _difference(one, self._scene) for one in pictures]
        return [_difference(picture, self._scene)]


class _Chart:
    """One-sided CUSUM charts of some signals, with the blocks that are their common reference.

    Blocks enter the reference once all charts are at zero again, and not where an alarm follows.

    Args:
        floors: by signal, the least standard deviation of a block, which may have hardly varied by chance.
        threshold: of every chart.
    """

    def __init__(self, floors: dict[str, float], threshold: float) -> None:
        self._names = tuple(floors)
        self._floors = np.array(list(floors.values()))
        self._threshold = threshold
        self._normal: deque[NDArray[np.float64]] = deque(maxlen=MOST_BLOCKS)
        self._held: deque[NDArray[np.float64]] = deque(maxlen=MOST_BLOCKS)
        self._sum = np.zeros(len(floors))
        self._above: list[list[float]] = [[] for _ in floors]
        self._since_us = [0] * len(floors)

    def add_block(self, begun_us: int, now_us: int, values: NDArray[np.float64]) -> Drift | None:
        """Takes a block's signals, NaN for unknown ones; returns evidence if one reaches the threshold."""
        known = np.isfinite(values)
        counts, mean, spread = self._reference()
        allowed = ALLOWANCE + REFERENCE_ERRORS / np.sqrt(np.maximum(counts, 1))
        long_run = math.sqrt(LONG_RUN) * spread
        # With at most this much of each block, three stay below the threshold, and four can reach it.
        most = self._threshold / (FEWEST_BLOCKS - 0.5)
        tested = known & (counts >= LEARNING_BLOCKS)
        excess = np.where(tested, np.minimum((values - mean) / long_run - allowed, most), 0.0)
        self._sum = np.maximum(self._sum + excess, 0.0)
        for place, (above, value) in enumerate(zip(self._above, values.tolist(), strict=True)):
            if self._sum[place] == 0.0:
                above.clear()
            elif tested[place]:
                above.append(value)
                if len(above) <= 2:
                    # The change is somewhere in the first block: the second one is all of the new scene.
                    self._since_us[place] = begun_us
        # What is learnt is cut where it would become suspicious: one outlier must not hide the next.
        learnt = np.where(tested, np.minimum(values, mean + allowed * long_run), values)
        self._held.append(learnt)
        if not self._sum.any():
            self._normal.extend(self._held)
            self._held.clear()
        return self._drift(now_us, mean, spread)

    def _drift(self, now_us: int, mean: NDArray[np.float64], spread: NDArray[np.float64]) -> Drift | None:
        drifts = []
        for place in np.flatnonzero(self._sum >= self._threshold):
            value, normal = float(np.mean(self._above[place])), float(mean[place])
            deviations = (value - normal) / float(spread[place])
            drifts.append(Drift(now_us, self._since_us[place], self._names[place], value, normal, deviations))
        return max(drifts, key=lambda drift: (drift.deviations, drift.signal), default=None)

    def _reference(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Returns number, mean and standard deviation of the known values of each signal.

        Blocks repeat objects, so those of a short time spread less than those of a long one: the variance of
        n blocks is on average 1 - ``LONG_RUN`` / n of the true one.
        """
        if not self._normal:
            none = np.zeros(len(self._names))
            return none.astype(np.int64), none, self._floors
        blocks = np.array(self._normal)
        known = np.isfinite(blocks)
        counts = known.sum(axis=0)
        some = np.maximum(counts, 1)
        mean = np.where(known, blocks, 0.0).sum(axis=0) / some
        variance = np.where(known, (blocks - mean) ** 2, 0.0).sum(axis=0) / some
        # With fewer than LEARNING_BLOCKS nothing is tested: then the divisor only has to stay above 0.
        variance /= np.maximum(1.0 - LONG_RUN / some, 0.1)
        return counts, mean, np.maximum(np.sqrt(variance), self._floors)


def threshold_of(false_alarms_per_hour: float) -> float:
    """Returns the threshold of one chart for a rate of false alarms.

    Of independent normal terms with allowance k, a CUSUM that alarms above h does so without a change once in
    (exp(2kb) - 2kb - 1) / 2k² terms, with b = h + 1.166 (Siegmund, 1985). Terms are blocks here, so the
    number wanted is 3600 s / ``BLOCK_US`` / rate. Blocks are not independent; what they are measured in is
    their long-run standard deviation, with which sums of many blocks spread as sums of independent ones do.
    Several charts share a rate by parts (Bonferroni).
    """
    terms = 3600 * US_PER_S / BLOCK_US / false_alarms_per_hour
    b = 1.0
    for _ in range(100):  # a contraction: the slope is below 1 for b > 0
        b = math.log1p(2 * ALLOWANCE * b + 2 * ALLOWANCE**2 * terms) / (2 * ALLOWANCE)
    return max(b - _SIEGMUND, 1.0)


def _ends(first: SeenFrame, frame: SeenFrame) -> bool:
    """Returns whether a frame does not belong to the block of another."""
    same = (first.version, first.resolution) == (frame.version, frame.resolution)
    return not same or first.t_us // BLOCK_US != frame.t_us // BLOCK_US


def _difference(picture: NDArray[np.float32], scene: NDArray[np.float32]) -> float:
    """Returns the median distance of a picture from a scene that is as bright, within what exposure does."""
    # Black parts of the scene must not divide by zero.
    gain = np.median(picture / np.maximum(scene, 1.0))
    return float(np.median(np.abs(picture - np.clip(gain, 1.0 / EXPOSURE, EXPOSURE) * scene)))
