"""F1 of a detector on labelled frames, in all and by class."""

from dataclasses import dataclass

import numpy as np
import torch

from ekya.models.edge.detection.read_objects import Candidates, Found, fleet_outputs, found_in
from ekya.models.edge.model import EdgeModel, to_input
from ekya.models.training.frames import FrameObjects, LabelledFrames
from ekya.models.training.goals import judged_frames

_BATCH = 16


@dataclass(frozen=True, slots=True)
class ClassScore:
    """Scores of the objects of a class.

    Attributes:
        name: of the class.
        objects: number of objects.
        f1: at IoU 0.5, of boxes that are sure, in [0, 1].
    """

    name: str
    objects: int
    f1: float


def found_by(model: EdgeModel, frames: LabelledFrames) -> list[Found]:
    """Returns what a detector finds in each frame."""
    assert model.detector is not None
    in_fleet = fleet_outputs(model.classes, frames.names)
    found: list[Found] = []
    with torch.inference_mode():
        for start in range(0, len(frames), _BATCH):
            outputs = model(to_input(frames.images[start : start + _BATCH], "cpu"))
            found += found_in(Candidates.of(model.detector.decode(outputs)), in_fleet, model.threshold)
    return found


def f1_of(model: EdgeModel, frames: LabelledFrames) -> float:
    """Returns the F1 over all objects, in [0, 1]."""
    return judged_frames(found_by(model, frames), frames.objects).accuracy(np.ones(len(frames)))


def f1_by_class(model: EdgeModel, frames: LabelledFrames) -> list[ClassScore]:
    """Returns the F1 of each class, as if the objects and boxes of the others were not there."""
    found, scores = found_by(model, frames), []
    for index, name in enumerate(frames.names):
        objects = tuple(_only_objects(of, index) for of in frames.objects)
        f1 = judged_frames([_only_found(of, index) for of in found], objects).accuracy(np.ones(len(frames)))
        scores.append(ClassScore(name, sum(len(of.classes) for of in objects), f1))
    return scores


def _only_found(found: Found, index: int) -> Found:
    rows = found.classes == index
    return Found(found.boxes[rows], found.classes[rows], found.confidence[rows])


def _only_objects(objects: FrameObjects, index: int) -> FrameObjects:
    rows = objects.classes == index
    return FrameObjects(objects.boxes[rows], objects.classes[rows], objects.doubtful)
