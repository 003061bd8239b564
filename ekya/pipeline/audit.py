"""Audit of a stream: draws frames from all that arrive, and compares their answers with the golden model."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.core.areas import WHOLE_PICTURE, Areas
from ekya.core.objects import SAME_OBJECT_IOU, SURE, iou_matrix, match_image
from ekya.core.records import FramePrediction
from ekya.core.units import StreamId
from ekya.models.edge.architecture_table import Task
from ekya.models.golden.detections import FramePlace, GoldenObjects, Question
from ekya.models.golden.golden_model import Labels
from ekya.pipeline.collector import LONGEST_SIDE
from ekya.pipeline.device_scopes import DeviceScopes
from ekya.pipeline.labelling import affordable_count
from ekya.pipeline.settings import PreparationSettings
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.pictures import shrink_by_area

BUDGET_PART = 0.1
"""Part of the golden model's budget for a stream's window that its audit may take beside it."""

_DRAWS = 0xA0D17
"""Keeps these draws apart from others with the same seed."""

_NO_BOXES = np.zeros((0, 4), np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class DrawnFrame:
    """A frame that was drawn, with the answer that a consumer had for it.

    Attributes:
        frame: index in the stream.
        image: (H, W, 3) uint8 BGR, the frame or a smaller copy.
        size: width and height of the frame in pixels.
        boxes: (N, 4) float32, its objects, where the source gives them.
        answer: row with the boxes and classes in force; None before the first.
        areas: where its objects count.
    """

    frame: int
    image: NDArray[np.uint8]
    size: tuple[int, int]
    boxes: NDArray[np.float32] | None
    answer: FramePrediction | None
    areas: Areas = WHOLE_PICTURE


@dataclass(frozen=True, slots=True, eq=False)
class DrawnFrames:
    """Frames that were drawn from ``arrived`` frames, each with the same probability, in random order."""

    arrived: int
    frames: tuple[DrawnFrame, ...]

    def joined(self, later: "DrawnFrames", most: int, seed: int) -> "DrawnFrames":
        """Returns at most ``most`` frames that are drawn from the frames of both."""
        arrived = self.arrived + later.arrived
        rng = np.random.default_rng((seed, _DRAWS, arrived))
        count = min(most, arrived)
        # As many as a draw from all frames of both would have from the first.
        mine = int(rng.hypergeometric(self.arrived, later.arrived, count)) if count else 0
        frames = (*self.frames[:mine], *later.frames[: count - mine])
        return DrawnFrames(arrived, tuple(frames[at] for at in rng.permutation(len(frames))))


class FrameDraw:
    """Draws frames from all that arrive until they are taken: a reservoir, so their number need not be known.

    A frame whose picture was never taken, since a newer one had arrived, is as likely to be drawn as any.
    Its answer is then compared with the next picture. One thread shows frames, another one may take them.

    Args:
        most: number of frames.
        settings: of the stream.
        window_us: length of a window.
    """

    def __init__(self, most: int, settings: PreparationSettings, window_us: int) -> None:
        self._most, self._settings, self._window_us = most, settings, window_us
        self._lock = threading.Lock()
        self._rng = np.random.default_rng()
        self._arrived = 0
        self._drawn: dict[int, DrawnFrame] = {}
        self._without_picture: dict[int, FramePrediction | None] = {}

    def sample_frame(self, t_us: int, frame: Frame | None, answer: FramePrediction | None) -> None:
        """Shows a frame that has arrived, in order.

        Args:
            t_us: its stream time.
            frame: the frame; None if its picture was not taken.
            answer: row with the boxes and classes in force for it; None before the first.
        """
        if not self._most:
            return
        with self._lock:
            if frame is not None:
                for place, given in self._without_picture.items():
                    self._drawn[place] = self._kept(frame, given)
                self._without_picture.clear()
            if not self._arrived:
                seed = (self._settings.seed, _DRAWS, t_us // self._window_us)
                self._rng = np.random.default_rng(seed)
            # Reservoir sampling: the n-th frame takes a place with probability most / n.
            place = (
                self._arrived if self._arrived < self._most else int(self._rng.integers(self._arrived + 1))
            )
            self._arrived += 1
            if place >= self._most:
                return
            self._drawn.pop(place, None)
            self._without_picture.pop(place, None)
            if frame is None:
                self._without_picture[place] = answer
            else:
                self._drawn[place] = self._kept(frame, answer)

    def drain_sample(self) -> DrawnFrames:
        """Returns the frames, and begins anew."""
        with self._lock:
            drawn = [self._drawn[place] for place in sorted(self._drawn)]
            # In random order: a budget may cover only the first ones, which must be a fair draw too.
            taken = DrawnFrames(self._arrived, tuple(drawn[at] for at in self._rng.permutation(len(drawn))))
            self._arrived = 0
            self._drawn.clear()
            self._without_picture.clear()
        return taken

    def _kept(self, frame: Frame, answer: FramePrediction | None) -> DrawnFrame:
        boxes = frame.boxes if self._settings.task is Task.CLASSIFY else None
        # Crops of given boxes are cut from the whole frame, as for labels.
        image = shrink_by_area(frame.image, LONGEST_SIDE) if boxes is None else frame.image
        return DrawnFrame(frame.index, image, frame.size, boxes, answer, frame.areas)


@dataclass(frozen=True, slots=True)
class AuditCounts:
    """Parts of each audited frame that are right, and that count; see ``AccuracyAudited``."""

    correct: tuple[int, ...]
    counted: tuple[int, ...]


def audit(
    drawn: DrawnFrames,
    golden: Labels,
    settings: PreparationSettings,
    stream: StreamId,
    scopes: DeviceScopes,
    golden_gpu_s: Callable[[Sequence[Question]], float],
) -> AuditCounts:
    """Compares the answers of drawn frames with the golden model, one frame after the other.

    Frames that the golden model knows nothing about (of a label file) are left out.

    Args:
        drawn: the frames.
        golden: the golden model.
        settings: of the stream; with a budget only as many frames as ``BUDGET_PART`` of it covers.
        stream: its name.
        scopes: of the work on a frame.
        golden_gpu_s: expected GPU-seconds of the golden model for some questions.
    """
    count = len(drawn.frames)
    if count and settings.label_gpu_s is not None:
        one_gpu_s = golden_gpu_s([_question(drawn.frames[0], stream)])
        count = affordable_count(BUDGET_PART * settings.label_gpu_s, one_gpu_s, count)
    judged = []
    for frame in drawn.frames[:count]:
        with scopes.host():
            objects = _objects(frame, golden, stream)
        if objects is not None:
            judged.append(score_audited_frame(frame.answer, objects, settings.task, len(settings.classes)))
    return AuditCounts(tuple(right for right, _ in judged), tuple(counts for _, counts in judged))


def score_audited_frame(
    answer: FramePrediction | None, objects: GoldenObjects, task: Task, class_count: int
) -> tuple[int, int]:
    """Returns the parts of one frame that are right, and those that count, as the score of a run has them.

    Args:
        answer: row with the boxes and classes in force; None if there were none.
        objects: of the frame, by the golden model.
        task: of the edge model.
        class_count: number of classes of the fleet.
    """
    if task is Task.CLASSIFY:
        if answer is None or not len(objects.boxes):
            return 0, len(objects.boxes)
        same = objects.classes[:, None] == answer.classes[None]
        hit = same & (iou_matrix(objects.boxes, answer.boxes) >= SAME_OBJECT_IOU)
        return int(hit.any(axis=1).sum()), len(objects.boxes)
    if answer is None:
        return 0, len(objects.boxes)
    counts = (answer.confidence >= SURE) & (answer.classes >= 0) & (answer.classes < class_count)
    matches = match_image(
        answer.boxes[counts],
        answer.classes[counts],
        answer.confidence[counts],
        objects.boxes,
        objects.classes.astype(np.int16),
        objects.doubtful,
    )
    boxes = int(counts.sum()) - int(matches.ignored.sum())
    return 2 * int(matches.hit.sum()), len(objects.boxes) + boxes


def _question(frame: DrawnFrame, stream: StreamId) -> Question:
    boxes = _NO_BOXES if frame.boxes is None else frame.boxes
    return Question(boxes, frame.image, None, FramePlace(stream, frame.frame), frame.size)


def _objects(frame: DrawnFrame, golden: Labels, stream: StreamId) -> GoldenObjects | None:
    """Returns the objects of a frame by the golden model; None if it knows nothing about the frame."""
    question = _question(frame, stream)
    if frame.boxes is None:
        (found,) = golden.find_each([question])
        return None if found is None else found.in_areas(frame.areas, frame.size)
    (classes,) = golden.label_boxes([question])
    named = classes >= 0
    if golden.background is not None:
        named &= classes != golden.background
    return GoldenObjects(frame.boxes[named], classes[named], _NO_BOXES)
