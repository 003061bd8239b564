"""Goals of training: the loss of a model's outputs on labelled images, and how right they are."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from ekya.core.objects import SURE, match_image
from ekya.models.edge.detection.detector import DetectorHeads, Targets
from ekya.models.edge.detection.read_objects import BoxCandidates, Found, fleet_outputs, found_in
from ekya.models.edge.model import known_outputs
from ekya.models.training.answered import Answered, answered_crops, answered_frames
from ekya.models.training.frames import FrameObjects, LabelledFrames
from ekya.models.training.labelled import Examples, LabelledCrops

THRESHOLDS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65)
"""Thresholds of a detector that are compared; the first and the last are only neighbours."""

CLEARLY_BETTER = 0.02
"""Least gain of F1 for which a detector's threshold is moved."""

DISTILLATION_TEMPERATURE = 2.0
"""Softens the start model's outputs, so that its second choices count too."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Correctness of a model's outputs on N images: accuracy is the sum of ``correct`` over ``counted``.

    Attributes:
        correct: (N,) float64; of a crop 1 or 0, of a frame twice the number of objects that were found.
        counted: (N,) float64; of a crop 1, of a frame the number of objects and of boxes that were found.
    """

    correct: NDArray[np.float64]
    counted: NDArray[np.float64]

    def accuracy(self, weights: NDArray[np.float64]) -> float:
        """Returns the accuracy in [0, 1] with (N,) weights; 0.0 if nothing counts."""
        total = float((self.counted * weights).sum())
        return float((self.correct * weights).sum()) / total if total else 0.0


class Teaching(Protocol):
    """Answers of the start model on N images, as targets of distillation."""

    def distance(self, outputs: Tensor, batch: Tensor) -> Tensor:
        """Returns the distillation loss of the outputs for (B,) of the images."""


class Goal(Protocol):
    """Targets of a training on N images."""

    def loss(self, outputs: Tensor, batch: Tensor) -> Tensor:
        """Returns the mean loss of the outputs for (B,) of the images."""

    def judge_outputs(self, outputs: Tensor, threshold: float = SURE) -> Judged:
        """Returns how right the outputs for all images are, with a threshold of a detector."""

    def threshold(self, outputs: Tensor) -> float:
        """Returns the score from which the outputs for all images should count, in (0, 1)."""

    def answered(self, outputs: Tensor, threshold: float = SURE) -> Answered:
        """Returns object by object what the outputs for all images say, with a threshold of a detector."""

    def teaching(self, start: tuple[str, ...], answers: Tensor) -> Teaching:
        """Returns the start model's answers on all images as targets.

        Args:
            start: the start model's classes.
            answers: its outputs.
        """


def goal_of(
    examples: Examples, classes: tuple[str, ...], detector: DetectorHeads | None, device: str
) -> Goal:
    """Returns the goal of training a model on labelled images.

    Args:
        examples: labelled crops, whose classes index ``classes``, or labelled frames.
        classes: outputs of the model.
        detector: of the model; None for a classifier.
        device: torch device.
    """
    match examples:
        case LabelledCrops():
            return ClassGoal(classes, torch.from_numpy(examples.classes).to(device))
        case LabelledFrames() if detector is not None:
            return DetectionGoal(examples, classes, detector, device)
        case _:
            raise TypeError(f"no model learns from {type(examples).__name__}")


class ClassGoal:
    """``Goal`` of a classifier.

    Args:
        classes: outputs of the model.
        labels: (N,) int64, index into them.
    """

    def __init__(self, classes: tuple[str, ...], labels: Tensor) -> None:
        self._classes, self._labels = classes, labels

    def loss(self, outputs: Tensor, batch: Tensor) -> Tensor:
        """Returns the cross-entropy of (B, C) logits."""
        return cross_entropy(outputs, self._labels[batch])

    def judge_outputs(self, outputs: Tensor, threshold: float = SURE) -> Judged:
        """Returns which of the (N, C) logits are highest at the label."""
        right = outputs.argmax(dim=1) == self._labels
        return Judged(right.cpu().numpy().astype(np.float64), np.ones(len(right)))

    def answered(self, outputs: Tensor, threshold: float = SURE) -> Answered:
        """Returns the best class of each crop, with its probability."""
        confidence, best = outputs.softmax(dim=1).max(dim=1)
        labels = self._labels.cpu().numpy()
        return answered_crops(self._classes, labels, best.cpu().numpy(), confidence.cpu().numpy())

    def threshold(self, outputs: Tensor) -> float:
        """Returns the usual threshold: of a classifier the best class counts, whatever its score."""
        return SURE

    def teaching(self, start: tuple[str, ...], answers: Tensor) -> Teaching:
        """Returns the start model's softened outputs, and where they are trusted.

        The start model is no teacher on crops that drifted away from it: where the label is a class that it
        knows and it predicts another one, only the label counts.
        """
        old, new = known_outputs(start, self._classes)
        # The start model may have answered in half precision.
        logits = answers[:, old].float()
        known = torch.tensor(new, device=answers.device)
        right = known[logits.argmax(dim=1)] == self._labels
        trusted = (right | ~torch.isin(self._labels, known)).float()
        return _ClassTeaching(new, (logits / DISTILLATION_TEMPERATURE).softmax(dim=1), trusted)


class _ClassTeaching:
    """``Teaching`` of a classifier.

    Args:
        known: outputs of the trained model for the classes that the start model has.
        answers: (N, K) softened probabilities over these outputs.
        trusted: (N,) 1.0 where they count, else 0.0.
    """

    def __init__(self, known: list[int], answers: Tensor, trusted: Tensor) -> None:
        self._known, self._answers, self._trusted = known, answers, trusted

    def distance(self, outputs: Tensor, batch: Tensor) -> Tensor:
        """Returns the KL divergence from the start model over the known classes."""
        heat = DISTILLATION_TEMPERATURE
        answers = (outputs[:, self._known] / heat).log_softmax(dim=1)
        divergence = kl_div(answers, self._answers[batch], reduction="none").sum(dim=1)
        # Gradients of softened outputs fall with the square of the temperature (Hinton et al., 2015).
        return heat * heat * (divergence * self._trusted[batch]).mean()


class DetectionGoal:
    """``Goal`` of a detector.

    Args:
        frames: N frames with their objects.
        classes: outputs of the model; those of the fleet's classes have their names.
        detector: of the model.
        device: torch device.
    """

    def __init__(
        self, frames: LabelledFrames, classes: tuple[str, ...], detector: DetectorHeads, device: str
    ) -> None:
        self._objects, self._names = frames.objects, frames.names
        self._detector = detector
        self._in_fleet = fleet_outputs(classes, frames.names)
        counts = [len(of.classes) for of in frames.objects]
        doubtful = [len(of.doubtful) for of in frames.objects]
        named = np.concatenate([np.zeros(0, np.int64), *(of.classes for of in frames.objects)])
        boxes = np.concatenate([np.zeros((0, 4), np.float32), *(of.boxes for of in frames.objects)])
        regions = np.concatenate([np.zeros((0, 4), np.float32), *(of.doubtful for of in frames.objects)])
        self._targets = Targets(
            torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(device),
            torch.from_numpy(boxes).to(device),
            torch.from_numpy(named[:, None] == self._in_fleet[None]).to(device),
            torch.from_numpy(np.repeat(np.arange(len(counts)), doubtful)).to(device),
            torch.from_numpy(regions).to(device),
        )

    def loss(self, outputs: Tensor, batch: Tensor) -> Tensor:
        """Returns the detector's loss."""
        return self._detector.loss(outputs, self._targets.of_images(batch))

    def judge_outputs(self, outputs: Tensor, threshold: float = SURE) -> Judged:
        """Returns the counts of F1 at IoU 0.5 with class, for boxes of at least this score."""
        return judged_frames(self._found(outputs, threshold), self._objects)

    def answered(self, outputs: Tensor, threshold: float = SURE) -> Answered:
        """Returns objects and boxes of at least this score."""
        return answered_frames(self._names, self._found(outputs, threshold), self._objects)

    def threshold(self, outputs: Tensor) -> float:
        """Returns the threshold with the best F1, ``SURE`` unless another is clearly better.

        Few frames validate, so a threshold is judged together with its neighbours.
        """
        candidates = BoxCandidates.of(self._detector.decode_outputs(outputs))
        even = np.ones(len(self._objects))
        f1 = [
            judged_frames(found_in(candidates, self._in_fleet, threshold), self._objects).accuracy(even)
            for threshold in THRESHOLDS
        ]
        smooth = np.convolve(f1, np.full(3, 1 / 3), mode="valid")
        # ``valid`` leaves out the first threshold, so positions are one lower.
        best, usual = int(smooth.argmax()), THRESHOLDS.index(SURE) - 1
        return THRESHOLDS[1 + best] if smooth[best] >= smooth[usual] + CLEARLY_BETTER else SURE

    def _found(self, outputs: Tensor, threshold: float) -> list[Found]:
        return found_in(BoxCandidates.of(self._detector.decode_outputs(outputs)), self._in_fleet, threshold)

    def teaching(self, start: tuple[str, ...], answers: Tensor) -> Teaching:
        """Returns the start model's outputs where they are right."""
        return _DetectionTeaching(self._detector, answers, self._detector.trusted(answers, self._targets))


class _DetectionTeaching:
    """``Teaching`` of a detector: its start model's outputs where they are right."""

    def __init__(self, detector: DetectorHeads, answers: Tensor, trusted: Tensor) -> None:
        self._detector, self._answers, self._trusted = detector, answers, trusted

    def distance(self, outputs: Tensor, batch: Tensor) -> Tensor:
        """Returns the detector's distillation loss."""
        return self._detector.distance(outputs, self._answers[batch], self._trusted[batch])


def judged_frames(found: list[Found], objects: tuple[FrameObjects, ...]) -> Judged:
    """Returns the counts of F1 of what was found in N frames."""
    counts = np.array([_counts(*of) for of in zip(found, objects, strict=True)], np.float64).reshape(-1, 2)
    return Judged(counts[:, 0], counts[:, 1])


def _counts(found: Found, objects: FrameObjects) -> tuple[int, int]:
    found = found.in_areas(objects.areas)
    sure = found.sure
    matches = match_image(
        found.boxes[sure],
        found.classes[sure].astype(np.int16),
        found.confidence[sure],
        objects.boxes,
        objects.classes.astype(np.int16),
        objects.doubtful,
    )
    hits = int(matches.hit.sum())
    return 2 * hits, len(objects.classes) + int(sure.sum()) - int(matches.ignored.sum())
