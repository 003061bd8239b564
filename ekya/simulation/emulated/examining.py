"""Scores models of a stream on the frames of one of its windows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import InferenceConfig
from ekya.core.trace import Standing
from ekya.core.units import FULL_GPU_MILLI, US_PER_S
from ekya.core.view import InferenceOption
from ekya.models.edge.model import EdgeModel
from ekya.pipeline.inference import judged
from ekya.pipeline.labels import StreamLabels
from ekya.planning.profiling.inference_profile import (
    NEVER_FOLLOWED,
    held_frames,
    oldest_result_us,
    period_gpu_s,
)
from ekya.results.metrics.accuracy import ScoreSeries, WindowScore
from ekya.simulation.emulated.answers import Answers, ImageBatch
from ekya.simulation.emulated.stored_frames import ModelInput, SeenFrames

PARTS = 8
"""Number of equal parts of a window with separate accuracies: a retraining serves only from its middle on."""


@dataclass(frozen=True, slots=True, eq=False)
class Exam:
    """Frames of a window, and the validation part of the labels that are made when it opens.

    Attributes:
        frames: of the window; what was labelled does not count.
        model_input: what models see of them.
        batch: images of these frames.
        labels: of the previous window; None in window 0.
        validation: images of the labels' validation part; None without one.
        classes: the fleet's.
        window_us: length of the window.
    """

    frames: SeenFrames
    model_input: ModelInput
    batch: ImageBatch
    labels: StreamLabels | None
    validation: ImageBatch | None
    classes: tuple[str, ...]
    window_us: int

    @property
    def window(self) -> int:
        """Index of the window."""
        return self.frames.window

    def of_heads(self, model: EdgeModel) -> "Exam | None":
        """Returns a faster exam for models that differ from this one in their heads only, if any."""
        batch = self.batch.of_heads(model)
        if batch is None:
            return None
        validation = None if self.validation is None else self.validation.of_heads(model)
        return replace(self, batch=batch, validation=validation)

    def thinned(self, step: int) -> "Exam":
        """Returns the exam on every ``step``-th frame only: neighbouring frames show the same objects."""
        batch = self.batch.select_images(self.frames.rows_of_every(step))
        return replace(self, frames=self.frames.thinned(step), batch=batch)

    def standing(self, model: EdgeModel, validation_accuracy: float | None = None) -> Standing:
        """Scores a model. Runs it on the validation part unless ``validation_accuracy`` is given.

        Without a validation part, the accuracy on the frames stands for it, and vice versa; 0 without both.
        """
        score, series = self._score(self.model_input.answer_frames(self.frames, self.batch.run_model(model)))
        accuracy = score.accuracy
        if validation_accuracy is None:
            validation_accuracy = self._validate(model)
        if validation_accuracy is None:
            validation_accuracy = 0.0 if accuracy is None else accuracy
        return Standing(self.window, validation_accuracy, accuracy, self._by_part(series, accuracy))

    @property
    def objects_by_part(self) -> tuple[int, ...]:
        """Number of objects that count in each of the ``PARTS`` equal parts of the window."""
        _, series = self._score(self.frames.unanswered())
        counted = np.bincount(self._parts(series), series.counted, minlength=PARTS)
        return tuple(int(count) for count in counted)

    def _score(self, answers: Answers) -> tuple[WindowScore, ScoreSeries]:
        return self.frames.score(answers, len(self.classes))

    def _by_part(self, series: ScoreSeries, accuracy: float | None) -> tuple[float, ...]:
        """Returns the accuracy in each part; that of the window for a part without objects."""
        if accuracy is None:
            return ()
        parts = self._parts(series)
        counted = np.bincount(parts, series.counted, minlength=PARTS)
        correct = np.bincount(parts, series.correct, minlength=PARTS)
        return tuple(
            right / count if count else accuracy
            for right, count in zip(correct.tolist(), counted.tolist(), strict=True)
        )

    def _parts(self, series: ScoreSeries) -> NDArray[np.int64]:
        """Returns for each second the part that contains its middle."""
        middle_us = (series.start_us + US_PER_S // 2) % self.window_us
        return middle_us * PARTS // self.window_us

    def _validate(self, model: EdgeModel) -> float | None:
        if self.validation is None or self.labels is None:
            return None
        examples = self.labels.validation.examples
        weights = examples.mix_weights(self.labels.training.examples)
        return judged(self.validation.run_model(model), examples).accuracy(weights)


def true_options(
    configs: tuple[InferenceConfig, ...],
    frames: SeenFrames,
    answers: Mapping[int, tuple[Answers, ...]],
    class_count: int,
    frame_gpu_s: Mapping[int, float],
    fps: float,
    following_gpu_s: Mapping[int, float] = NEVER_FOLLOWED,
) -> tuple[InferenceOption, ...]:
    """Returns the true Λ of a window: the part of their accuracy that the given models keep under each λ.

    Where λ is of the golden detector it is that one's accuracy. The share is the mean demand of the window's
    objects, without headroom.

    Args:
        configs: Λ.
        frames: all of the window's.
        answers: per resolution, those of each model.
        class_count: number of classes of the fleet.
        frame_gpu_s: GPU-seconds to analyse one frame, per resolution.
        fps: frames per second of the camera.
        following_gpu_s: GPU-seconds to follow the boxes of an analysed frame into another one, per
            resolution; those of a resolution that is missing stay in place.
    """
    finest = max(config.resolution for config in configs)

    def counts(resolution: int, every: int, from_first_of: int) -> tuple[int, int]:
        scores = [frames.score(of, class_count, every, from_first_of)[0] for of in answers[resolution]]
        return sum(score.correct for score in scores), sum(score.counted for score in scores)

    def relative(config: InferenceConfig, share_milli: int) -> float:
        if config.by_golden:
            held = held_frames(share_milli, frame_gpu_s[config.resolution], fps)
            followed = frames.golden[config.every]
            score, _ = frames.score(followed, class_count, config.every, config.every, held)
            return 1.0 if score.accuracy is None else score.accuracy
        most, of_most = counts(finest, 1, config.every)
        kept, of_kept = counts(config.resolution, config.every, config.every)
        return min(kept * of_most / (most * of_kept), 1.0) if most else 1.0

    options = []
    for config in configs:
        period_s = period_gpu_s(config, frame_gpu_s, following_gpu_s, fps)
        share_milli = math.ceil(period_s * fps / config.every * FULL_GPU_MILLI)
        age_us = oldest_result_us(config, share_milli, frame_gpu_s[config.resolution], fps)
        options.append(InferenceOption(config, relative(config, share_milli), share_milli, age_us))
    return tuple(options)
