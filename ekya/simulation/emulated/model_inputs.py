"""Inputs of models from stored frames, and scoring of the answers: crops of objects, or whole frames."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import InferenceConfig
from ekya.core.records import LabelledBoxes, offsets_of
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.detection.read_objects import Found
from ekya.models.edge.multi_model import ClassAnswer
from ekya.pipeline.settings import PreparationSettings
from ekya.planning.profiling.inference_profile import sides_of
from ekya.results.metrics.accuracy import labelled_tracks, score_stream
from ekya.results.metrics.detection_accuracy import score_detections
from ekya.simulation.emulated.answers import Answers
from ekya.simulation.emulated.stored_frames import InputImages, ModelInput, Scoring, SeenFrames
from ekya.streams.ingest.crops import crop_objects, square_frame


@dataclass(frozen=True, slots=True)
class CropInput:
    """``ModelInput`` of classifiers: crops, of which a lower resolution is made when it is asked for."""

    side: int

    @property
    def sides(self) -> tuple[int, ...]:
        return (self.side,)

    @property
    def scoring(self) -> Scoring:
        """Counts objects."""
        return score_stream

    def images_of(self, image: NDArray[np.uint8], boxes: NDArray[np.float32]) -> InputImages:
        return InputImages(boxes, {self.side: crop_objects(image, boxes, self.side)})

    def answer_frames(self, frames: SeenFrames, answer: ClassAnswer) -> Answers:
        return Answers(frames.offsets, frames.boxes, *answer)

    def counting(self, windows: Sequence[SeenFrames], labelled: LabelledBoxes) -> list[SeenFrames]:
        """Returns the frames without labelled objects: these count in no window."""
        tracks = np.unique(np.concatenate([labelled_tracks(labelled, seen.reference) for seen in windows]))
        return [seen.without(tracks) for seen in windows]


@dataclass(frozen=True, slots=True)
class FrameInput:
    """``ModelInput`` of detectors: each frame as a whole, resized to every resolution as a run does it."""

    sides: tuple[int, ...]

    @property
    def scoring(self) -> Scoring:
        """Counts objects and boxes, for F1."""
        return score_detections

    def images_of(self, image: NDArray[np.uint8], boxes: NDArray[np.float32]) -> InputImages:
        """Returns the frame, with a box around all of it."""
        whole = np.array([[0, 0, image.shape[1], image.shape[0]]], np.float32)
        return InputImages(whole, {side: square_frame(image, side) for side in self.sides})

    def answer_frames(self, frames: SeenFrames, answer: list[Found]) -> Answers:
        answer = [found.in_areas(frames.areas) for found in answer]
        counts = np.array([len(found.classes) for found in answer], np.int64)
        found = np.concatenate([np.zeros((0, 4), np.float32), *(found.boxes for found in answer)])
        size = np.tile(frames.boxes[:, 2:], 2)
        return Answers(
            offsets_of(counts),
            found * np.repeat(size, counts, axis=0),
            np.concatenate([np.zeros(0, np.int64), *(found.classes for found in answer)]),
            np.concatenate([np.zeros(0, np.float32), *(found.confidence for found in answer)]),
        )

    def counting(self, windows: Sequence[SeenFrames], labelled: LabelledBoxes) -> list[SeenFrames]:
        """Returns the frames without labelled ones."""
        return [seen.without_frames(labelled.frame) for seen in windows]


_SIGHTS: Mapping[Task, Callable[[int, tuple[int, ...]], ModelInput]] = MappingProxyType(
    {
        Task.CLASSIFY: lambda side, resolutions: CropInput(side),
        Task.DETECT: lambda side, resolutions: FrameInput(tuple(sorted({side, *resolutions}))),
    }
)


def model_input_of(settings: PreparationSettings, configs: Sequence[InferenceConfig]) -> ModelInput:
    """Returns what a stream's models see, at the side of its labels and at the resolutions of Λ."""
    return _SIGHTS[settings.task](settings.side, tuple(sides_of(configs)))
