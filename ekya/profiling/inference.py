"""What leaving frames out costs: the inference profiler (paper §3.1)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.core.boxes import iou_matrix
from ekya.core.configs import InferenceConfig
from ekya.core.units import FULL_GPU_MILLI
from ekya.core.view import InferenceOption

HEADROOM = 1.15
"""Frames differ in how many objects they show; a share without slack would drop the crowded ones."""

_SAME_OBJECT_IOU = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class BurstFrame:
    """One of a run of consecutive labelled frames.

    Attributes:
        boxes: (N, 4) float32.
        labels: (N,) class of each box by the golden model.
        answers: per resolution, (N,) class of each box by the serving model.
    """

    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    answers: Mapping[int, NDArray[np.int64]]


def prior_relative_accuracy(config: InferenceConfig, finest: int) -> float:
    """A guess until a burst is measured: every halving of the frame rate costs about a fifth."""
    return float(config.every**-0.35 * (config.resolution / finest) ** 0.1)


def inference_options(
    configs: Sequence[InferenceConfig],
    burst: Sequence[BurstFrame],
    frame_gpu_s: Mapping[int, float],
    fps: float,
) -> tuple[InferenceOption, ...]:
    """Λ with the accuracy of each λ relative to the most demanding one, and the share it needs.

    Args:
        configs: Λ.
        burst: consecutive labelled frames; empty gives priors.
        frame_gpu_s: GPU-seconds to analyse one frame, per resolution.
        fps: frames a second of the camera.
    """
    finest = max(config.resolution for config in configs)
    best = _accuracy(burst, InferenceConfig(1, finest))
    options = []
    for config in configs:
        relative = prior_relative_accuracy(config, finest)
        if best > 0.0:
            relative = min(_accuracy(burst, config) / best, 1.0)
        needed = frame_gpu_s[config.resolution] * fps / config.every * HEADROOM
        options.append(InferenceOption(config, relative, math.ceil(needed * FULL_GPU_MILLI)))
    return tuple(options)


def _accuracy(burst: Sequence[BurstFrame], config: InferenceConfig) -> float:
    """Part of the burst's objects that λ answers rightly, over all phases in which it may start."""
    right = counted = 0
    for start in range(min(config.every, len(burst))):
        for at in range(start, len(burst)):
            answering = burst[at - (at - start) % config.every]
            right += _right(burst[at], answering, config.resolution)
            counted += len(burst[at].labels)
    return right / counted if counted else 0.0


def _right(frame: BurstFrame, answering: BurstFrame, resolution: int) -> int:
    """Objects of a frame that a box of the answering frame overlaps enough, with the right class."""
    overlaps = iou_matrix(frame.boxes, answering.boxes) >= _SAME_OBJECT_IOU
    agrees = frame.labels[:, None] == answering.answers[resolution][None, :]
    return int(np.any(overlaps & agrees, axis=1).sum())
