"""Inference profiler (paper §3.1): relative accuracy, needed share and age of results for each λ."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.host import HostCosts, StreamCosts
from ekya.core.objects import iou_matrix
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.units import FULL_GPU_MILLI, seconds_to_us
from ekya.core.view import InferenceOption

HEADROOM = 1.15
"""Slack of a needed share: frames differ in how many objects they show, and crowded ones would be dropped
without it."""

KEEPS_UP_PART = 0.95
"""Part of its frames that a λ must be able to analyse to keep up, once their real cost is measured."""

PRIOR_OBJECTS = 2.0
"""Weight of a guess about λ, in objects of a burst: two cars that stand at a light show how those two move,
and not how the street does."""

HELD_LOSS, LATE_LOSS, FOLLOWED_LOSS = 0.35, 0.1, 0.05
"""Exponents by which accuracy falls with the frames that are left out: boxes stay in place until the next
analysed frame, or until flow follows them, or are followed in each. Of two detectors on four videos."""

ALL = 1_000_000
"""Number of frames in which boxes stay in place where flow never follows them: more than a λ skips."""

NEVER_FOLLOWED: Mapping[int, float] = MappingProxyType({})
"""Cost of following boxes where all stay in place."""

_SAME_OBJECT_IOU = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class BurstFrame:
    """One of a run of consecutive labelled frames.

    Attributes:
        boxes: (N, 4) float32.
        labels: (N,) class of each box by the golden model.
        alike: per resolution, how many answers of the serving model are the same as at the finest, and how
            many count.
        followed: for λ of the golden detector, to which optical flow follows boxes in frames that they skip:
            these boxes in the next frame, in the one after it, and so on, each with the labels of those that
            are left.
    """

    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    alike: Mapping[int, tuple[float, float]]
    followed: tuple[tuple[NDArray[np.float32], NDArray[np.int64]], ...] = ()

    def boxes_after(self, later: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Returns the boxes, with their labels, that answer for the frame this many frames later."""
        return self.followed[later - 1] if 0 < later <= len(self.followed) else (self.boxes, self.labels)


def sides_of(configs: Sequence[InferenceConfig]) -> list[int]:
    """Returns the resolutions of Λ, rising."""
    return sorted({config.resolution for config in configs if not config.by_golden})


def prior_relative_accuracy(config: InferenceConfig, finest: int, held: int = ALL) -> float:
    """Returns a guess at ``InferenceOption.relative_accuracy``, used until a burst is measured.

    Every halving of the frame rate costs about a fifth, or a thirtieth where optical flow follows the
    boxes. A model that was trained at one resolution answers much worse at another: a quarter less costs
    about half. The golden detector has one resolution.

    Args:
        config: λ.
        finest: the largest resolution in Λ.
        held: number of frames after an analysed one in which its boxes stay in place, as in ``held_frames``.
    """
    there = config.every**-HELD_LOSS
    if held < config.every - 1:
        part = held / config.every
        there = part * (held + 1) ** -LATE_LOSS + (1.0 - part) * config.every**-FOLLOWED_LOSS
    sharp = 1.0 if config.by_golden else (config.resolution / finest) ** 2.5
    return float(there * sharp)


def measured_relative_accuracy(
    config: InferenceConfig, finest: int, burst: Sequence[BurstFrame], held: int = ALL
) -> float:
    """Returns the relative accuracy of λ on a burst with objects.

    A burst of k frames shows only λ that leave out at most k - 1. Of any other λ it shows the first part,
    and the rest is guessed. The golden detector is right where it runs.
    """
    shown = min(config.every, len(burst))
    guessed = prior_relative_accuracy(InferenceConfig(config.every, finest), finest, held)
    guessed /= prior_relative_accuracy(InferenceConfig(shown, finest), finest, held)
    sharp = 1.0 if config.by_golden else _as_sharp(burst, config.resolution)
    # In frames that a burst shows boxes may stay in place, and in later ones be followed, which loses less.
    return _still_there(burst, shown, held) * min(guessed, 1.0) * sharp


def inference_options(
    configs: Sequence[InferenceConfig],
    burst: Sequence[BurstFrame],
    frame_gpu_s: Mapping[int, float],
    fps: float,
    speed: SpeedCurve = LINEAR,
    following_gpu_s: Mapping[int, float] = NEVER_FOLLOWED,
) -> tuple[InferenceOption, ...]:
    """Returns Λ: for each λ its accuracy relative to the most demanding one, needed share and age of results.

    A burst shows few objects, and a model that has drifted gets most of them wrong, so the number of correct
    answers would mostly be luck, and say nothing of the model that is about to be retrained. Relative
    accuracy is therefore the product of two parts that a burst shows well for any model: how many objects
    are still where an earlier frame's box of their class was, or where optical flow followed it to, and how
    many are classified the same at a lower resolution. Results of few objects or few frames are mixed with a
    guess.

    Args:
        configs: Λ.
        burst: consecutive labelled frames; empty gives guesses.
        frame_gpu_s: GPU-seconds to analyse one frame, per resolution.
        fps: frames a second of the camera.
        speed: of inference at a share.
        following_gpu_s: GPU-seconds to follow the boxes of an analysed frame into another one, per
            resolution; boxes of a resolution that is not listed stay in place.
    """
    finest = max(config.resolution for config in configs)
    objects = sum(len(frame.labels) for frame in burst) / len(burst) if burst else 0.0
    weight = objects / (objects + PRIOR_OBJECTS)
    options = []
    for config in configs:
        period_s = period_gpu_s(config, frame_gpu_s, following_gpu_s, fps, speed)
        share_milli = speed.share_for(period_s * fps / config.every * HEADROOM)
        held = ALL
        if config.resolution in following_gpu_s:
            held = held_frames(share_milli, frame_gpu_s[config.resolution], fps, speed)
        relative = prior_relative_accuracy(config, finest, held)
        if objects:
            measured = measured_relative_accuracy(config, finest, burst, held)
            relative = weight * measured + (1.0 - weight) * relative
        age_us = oldest_result_us(config, share_milli, frame_gpu_s[config.resolution], fps, speed)
        options.append(InferenceOption(config, relative, share_milli, age_us))
    return tuple(options)


def period_gpu_s(
    config: InferenceConfig,
    frame_gpu_s: Mapping[int, float],
    following_gpu_s: Mapping[int, float],
    fps: float,
    speed: SpeedCurve = LINEAR,
) -> float:
    """Returns the GPU-seconds of a λ for ``every`` frames.

    One frame is analysed, and its boxes are followed into those of the others that do not arrive meanwhile,
    at the share that is enough to follow them into all.

    Args:
        config: λ.
        frame_gpu_s, following_gpu_s, fps, speed: as in ``inference_options``.
    """
    analysing_s = frame_gpu_s[config.resolution]
    following_s = following_gpu_s.get(config.resolution, 0.0)
    all_s = analysing_s + (config.every - 1) * following_s
    share_milli = speed.share_for(all_s * fps / config.every * HEADROOM)
    held = held_frames(share_milli, analysing_s, fps, speed)
    return analysing_s + max(config.every - 1 - held, 0) * following_s


def needed_milli(of: StreamCosts, config: InferenceConfig) -> int:
    """Returns the share with which a λ keeps up."""
    gpu_s = period_gpu_s(config, of.frame_gpu_s, of.following_gpu_s, of.fps)
    return math.ceil(FULL_GPU_MILLI * gpu_s * of.fps / config.every * HEADROOM)


def floor_milli(
    of: StreamCosts, every: Sequence[int], resolutions: Sequence[int], golden_every: Sequence[int] = ()
) -> int:
    """Returns the share of a stream's cheapest λ that analyses about one frame a second, or more of them."""
    fastest = max(1, round(of.fps))
    once_a_second = [k for k in every if k <= fastest] or [min(every)]
    configs = [InferenceConfig(k, side) for k in once_a_second for side in resolutions]
    configs += [InferenceConfig(k, GOLDEN_RESOLUTION) for k in golden_every if k <= fastest]
    return min(needed_milli(of, config) for config in configs)


def all_milli(costs: HostCosts, every: int, resolution: int) -> int:
    """Returns the share of one λ for all cameras; of a slower camera no less than one frame a second."""
    return sum(
        needed_milli(of, InferenceConfig(min(every, max(1, round(of.fps))), resolution))
        for of in costs.streams.values()
    )


def used_milli(config: InferenceConfig, frame_gpu_s: float, fps: float, speed: SpeedCurve = LINEAR) -> int:
    """Returns the share that a λ uses to analyse all its frames; above 1000 where one GPU is not enough."""
    return speed.share_for(frame_gpu_s * fps / config.every)


def at_measured_use(
    options: tuple[InferenceOption, ...],
    config: InferenceConfig,
    share_milli: int,
    speed: SpeedCurve = LINEAR,
) -> tuple[InferenceOption, ...]:
    """Returns Λ with their needed shares, after one λ was measured to use another share than was profiled.

    The cause of its dearer or cheaper frames, jobs beside it or a fuller street, affects those of the other
    λ of its detector equally. The cost of the other detector was measured separately, and stays as profiled.
    ``HEADROOM`` then only determines the ample share: a λ that misses a frame in twenty for want of share is
    still better than one that leaves out every other.

    Args:
        options: as profiled.
        config, share_milli: the measured λ and its share. A λ outside the options changes nothing.
        speed: of inference at a share.
    """
    profiled = next((option.share_needed_milli for option in options if option.config == config), 0)
    if profiled == 0:
        return options
    times = speed.speed_needed(share_milli) / speed.speed_needed(profiled)

    def seen(option: InferenceOption) -> InferenceOption:
        if option.config.by_golden != config.by_golden:
            return option
        used = speed.speed_needed(option.share_needed_milli) * times
        needed_milli = speed.share_for(used * KEEPS_UP_PART)
        return replace(option, share_needed_milli=needed_milli, ample_milli=speed.share_for(used * HEADROOM))

    return tuple(seen(option) for option in options)


def oldest_result_us(
    config: InferenceConfig, share_milli: int, frame_gpu_s: float, fps: float, speed: SpeedCurve = LINEAR
) -> int:
    """Returns the highest age of a result that still stands, in microseconds, where λ keeps up.

    A result is as old as its frame, and stands until that of the next analysed frame is there: ``every``
    frames later, plus the time to analyse one at the share that λ needs (at one GPU, if it needs more).
    """
    return seconds_to_us(config.every / fps + _analysing_s(share_milli, frame_gpu_s, speed))


def held_frames(share_milli: int, frame_gpu_s: float, fps: float, speed: SpeedCurve = LINEAR) -> int:
    """Returns the number of frames after an analysed one into which flow does not follow its boxes.

    They arrive while it is analysed; afterwards boxes are followed into the newest of them.
    """
    return max(int(_analysing_s(share_milli, frame_gpu_s, speed) * fps) - 1, 0)


def _analysing_s(share_milli: int, frame_gpu_s: float, speed: SpeedCurve) -> float:
    """Returns the time to analyse a frame at a share, of one GPU at most."""
    usable_milli = min(share_milli, FULL_GPU_MILLI)
    return frame_gpu_s / speed.speed_at(usable_milli) if usable_milli > 0 else 0.0


def _still_there(burst: Sequence[BurstFrame], every: int, held: int) -> float:
    """Returns the part of the objects that a box of their class in the answering frame overlaps enough.

    Counted over all phases in which λ may start; 1 for a λ of every frame.
    """
    there = counted = 0
    for start in range(min(every, len(burst))):
        for at in range(start, len(burst)):
            answering = burst[at - (at - start) % every]
            later = (at - start) % every
            boxes, labels = answering.boxes_after(later if later > held else 0)
            overlaps = iou_matrix(burst[at].boxes, boxes) >= _SAME_OBJECT_IOU
            same_class = burst[at].labels[:, None] == labels[None, :]
            there += int(np.any(overlaps & same_class, axis=1).sum())
            counted += len(burst[at].labels)
    return there / counted if counted else 1.0


def _as_sharp(burst: Sequence[BurstFrame], resolution: int) -> float:
    """Returns the part of the answers that are the same at a resolution as at the finest."""
    alike, counted = (sum(part) for part in zip(*(frame.alike[resolution] for frame in burst), strict=True))
    return alike / counted if counted else 1.0
