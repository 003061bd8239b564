"""Labelling of a window for a detector: the golden one sees whole frames; λ is measured on them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

import cv2
import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import InferenceConfig
from ekya.core.objects import SAME_OBJECT_IOU, iou_matrix
from ekya.core.weights import Compared
from ekya.models.edge.detection.read_objects import Found
from ekya.models.golden.detections import GoldenObjects, Question
from ekya.models.golden.golden_model import Labels
from ekya.models.training.frames import (
    NOTHING,
    FrameObjects,
    LabelledFrames,
    distinct_objects,
    split_by_time,
)
from ekya.models.training.goals import judged_frames
from ekya.models.training.labelled import VALIDATION_FRACTION, Examples
from ekya.pipeline.collector import CollectedFrame, spread
from ekya.pipeline.device_scopes import UNCHARGED, DeviceScopes
from ekya.pipeline.inference import Serving
from ekya.pipeline.labelling import (
    SAMPLE_PART,
    LabellingInputs,
    affordable_count,
    longest_run,
    warn_if_none,
)
from ekya.pipeline.labels import LabelledPart, StreamLabels
from ekya.planning.adaptation.shadow_gate import LEAST_OBJECTS
from ekya.planning.profiling.inference_profile import BurstFrame, sides_of
from ekya.streams.ingest.crops import square_frame
from ekya.streams.ingest.motion import BoxFlow

SURE_WITHOUT_TEACHER = 0.6
"""Confidence from which the student's word counts against the golden detector's: clearly above ``SURE``."""

LEAST_BURST, LABELS_A_BURST_FRAME = 4, 4
"""Frames of a burst at least, and labelled frames for each of it: where a window has no time for many
labels, it has none for a long burst, which comes first where the golden detector answers."""

CHANGED, MOVING_PART = 40, 0.02
"""Least change of a pixel, of 255, that noise does not make, and of how many a picture that moves has it."""

SPANS = 8
"""Parts of equal length of a window; labelled frames of one part show the same objects, and are not split."""


@dataclass(frozen=True, slots=True, eq=False)
class ChosenFrames:
    """Frames that the golden detector labels, or has answered before, in order of time."""

    frames: tuple[CollectedFrame, ...]

    @property
    def questions(self) -> list[Question]:
        return [frame.question for frame in self.frames if frame.answer is None]


class FrameLabelling:
    """``Labelling`` of whole frames."""

    def select(self, given: LabellingInputs) -> ChosenFrames:
        """Returns all answered frames, and others that are spread over the window, within the budget."""
        settings, sample = given.settings, given.material.sample
        wanted, budget_gpu_s = settings.frames_per_window, settings.label_gpu_s
        answered = [frame for frame in sample if frame.answer is not None]
        others = [frame for frame in sample if frame.answer is None]
        one_gpu_s = _one_gpu_s(given, others)
        if budget_gpu_s is not None:
            budget_gpu_s *= SAMPLE_PART
        count = affordable_count(budget_gpu_s, one_gpu_s, min(max(wanted - len(answered), 0), len(others)))
        if others and not answered:
            warn_if_none(given, count, one_gpu_s)
        chosen = [*answered, *spread(others, count)]
        return ChosenFrames(tuple(sorted(chosen, key=lambda frame: frame.frame)))

    def label(self, given: LabellingInputs, asked: ChosenFrames) -> StreamLabels:
        """Labels the chosen frames, and splits them into training and validation by time."""
        kept = _labelled(given.golden, asked.frames)
        window, side = given.material.window, given.settings.side
        t_us = np.array([frame.t_us for frame, _ in kept], np.int64)
        images = [square_frame(frame.picture, side) for frame, _ in kept]
        examples = LabelledFrames(
            np.concatenate([np.zeros((0, side, side, 3), np.uint8), *images]),
            tuple(objects_of(frame, found) for frame, found in kept),
            given.settings.classes,
            window * SPANS + _span_of_each(t_us),
            t_us,
        )
        frames = np.array([frame.frame for frame, _ in kept], np.int64)
        whole = np.array([(0, 0, *frame.size) for frame, _ in kept], np.float32).reshape(-1, 4)
        everything = LabelledPart(examples, frames, whole)
        _, held_out = split_by_time(examples, VALIDATION_FRACTION)
        validates = np.isin(t_us, held_out.t_us)
        return StreamLabels(
            window,
            everything.select_objects(np.flatnonzero(~validates)),
            everything.select_objects(np.flatnonzero(validates)),
        )

    def burst_questions(self, given: LabellingInputs) -> list[Question]:
        return [frame.question for frame in _asked_burst(given)]

    def burst(
        self, given: LabellingInputs, configs: Sequence[InferenceConfig], scopes: DeviceScopes
    ) -> list[BurstFrame]:
        """Labels consecutive frames, and finds their objects at each resolution with the serving model.

        As inference follows the golden detector's boxes, so are the objects here, into as many frames as its
        λ skip at most.
        """
        asked = _asked_burst(given)
        with scopes.host():
            labelled = _labelled(given.golden, asked)
        return measure_burst(given.serving, configs, labelled, scopes)

    def to_compare(self, given: LabellingInputs, labels: StreamLabels) -> tuple[Examples, int] | None:
        """Returns all labelled frames, and the number of distinct objects; None if there are too few."""
        labelled = _frames_of(labels)
        objects = distinct_objects(labelled)
        return (labelled, objects) if objects >= LEAST_OBJECTS else None

    def compared_images(self, labels: StreamLabels, compared: Compared) -> int:
        """Returns the number of compared frames: all."""
        return labels.count

    def images_to_check_teacher(self, labels: StreamLabels) -> int:
        """Returns the number of frames that ``check_teacher`` analyses: all."""
        return labels.count

    def check_teacher(self, given: LabellingInputs, labels: StreamLabels) -> str | None:
        """Returns a warning if the golden detector finds less than the student, or nothing where all moves.

        There is no truth to compare with. So only what a good teacher hardly ever shows counts: of the
        objects that the student is sure of, more have no box of the golden detector on them, not even a
        doubtful one, than the golden detector finds in all. Boxes that stay in place count once: one that is
        wrong may be there in every frame.
        """
        labelled = _frames_of(labels)
        answers = given.serving.predict(labelled.images, labelled.side)
        missed = tuple(_missed(*of) for of in zip(answers, labelled.objects, strict=True))
        alone, taught = distinct_objects(replace(labelled, objects=missed)), distinct_objects(labelled)
        if alone < LEAST_OBJECTS or alone <= taught:
            moving = _moving_part(labelled.images)
            if moving < MOVING_PART or any(len(of.boxes) + len(of.doubtful) for of in labelled.objects):
                return None
            return (
                f"golden.model: in the first {len(labelled)} labelled frames, in which up to "
                f"{100 * moving:.0f}% of the picture change, the golden detector finds nothing; if there are "
                "objects in view, check the classes (--classes), name the layout of its file "
                "(golden.layout), or a better detector"
            )
        return (
            f"golden.model: in the first {len(labelled)} labelled frames the golden detector finds {taught} "
            f"objects, and misses {alone} that the student is sure of; it may be the worse one, so look at "
            "its boxes, or name a better detector"
        )


def _moving_part(images: NDArray[np.uint8]) -> float:
    """Returns the largest part of the pixels that change clearly from one of the pictures to the next."""
    pairs = pairwise(images)
    return max((float((cv2.absdiff(*pair).max(axis=2) > CHANGED).mean()) for pair in pairs), default=0.0)


def measure_burst(
    serving: Serving,
    configs: Sequence[InferenceConfig],
    labelled: Sequence[tuple[CollectedFrame, GoldenObjects]],
    scopes: DeviceScopes = UNCHARGED,
) -> list[BurstFrame]:
    """Returns consecutive frames with what λ are measured on; see ``FrameLabelling.burst``.

    Args:
        serving: the model that serves, a detector.
        configs: Λ.
        labelled: the frames, with what the golden detector finds.
        scopes: of each analysis.
    """
    answers: dict[int, list[Found]] = {}
    for resolution in sides_of(configs):
        answers[resolution] = []
        for frame, _ in labelled:
            with scopes.scope():
                (found,) = serving.predict(square_frame(frame.picture, resolution), resolution)
            answers[resolution].append(found.in_areas(frame.areas))
    finest = answers[max(answers)]
    as_true = tuple(_as_objects(found) for found in finest)
    judged = {side: judged_frames(found, as_true) for side, found in answers.items()}
    skipped = max((of.every for of in configs if of.by_golden), default=1) - 1
    return [
        BurstFrame(
            of.boxes,
            of.classes,
            {side: (float(by.correct[at]), float(by.counted[at])) for side, by in judged.items()},
            _followed(labelled[at : at + skipped + 1], scopes),
        )
        for at, (_, of) in enumerate(labelled)
    ]


def objects_of(frame: CollectedFrame, found: GoldenObjects) -> FrameObjects:
    """Returns what was found in a frame, as fractions of it."""
    scale = np.tile(np.array(frame.size, np.float32), 2)
    return FrameObjects(found.boxes / scale, found.classes, found.doubtful / scale, frame.areas)


def _frames_of(labels: StreamLabels) -> LabelledFrames:
    """Returns the frames of both parts, in order of time: the youngest validate."""
    labelled = labels.examples
    assert isinstance(labelled, LabelledFrames)
    return labelled


def _labelled(golden: Labels, frames: Sequence[CollectedFrame]) -> list[tuple[CollectedFrame, GoldenObjects]]:
    """Returns frames with their objects, those of which the golden detector knows nothing left out."""
    asked = [frame for frame in frames if frame.answer is None]
    found = iter(golden.find_each([replace(frame.question, found=None, size=frame.size) for frame in asked]))
    answers = [(frame, frame.answer or next(found)) for frame in frames]
    return [(frame, of.in_areas(frame.areas, frame.size)) for frame, of in answers if of is not None]


def _span_of_each(t_us: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns (N,) the part of the time from the first to the last of N frames, below ``SPANS``."""
    if not len(t_us):
        return t_us
    # + 1, so that the last frame is in the last span and not behind it.
    spans: NDArray[np.int64] = (t_us - t_us.min()) * SPANS // (t_us.max() - t_us.min() + 1)
    return spans


def _followed(
    labelled: Sequence[tuple[CollectedFrame, GoldenObjects]], scopes: DeviceScopes
) -> tuple[tuple[NDArray[np.float32], NDArray[np.int64]], ...]:
    """Follows the objects of the first frame into the others; returns their boxes and classes in each."""
    if len(labelled) < 2:
        return ()
    (first, objects), flow = labelled[0], BoxFlow()
    height, width = first.picture.shape[:2]
    scale = np.tile(np.array([first.size[0] / width, first.size[1] / height], np.float32), 2)
    followed = []
    with scopes.host():
        flow.start_boxes(first.picture, np.asarray(objects.boxes / scale, np.float32))
        for frame, _ in labelled[1:]:
            if not flow.has_size_of(frame.picture):
                break
            boxes = np.asarray(flow.follow_boxes(frame.picture) * scale, np.float32)
            followed.append((boxes, objects.classes[flow.rows]))
    return tuple(followed)


def _missed(found: Found, objects: FrameObjects) -> FrameObjects:
    """Returns what the student is sure of where the golden detector has no box."""
    found = found.in_areas(objects.areas)
    sure = found.confidence >= SURE_WITHOUT_TEACHER
    boxes, classes = found.boxes[sure], found.classes[sure]
    seen = iou_matrix(boxes, np.concatenate([objects.boxes, objects.doubtful])) >= SAME_OBJECT_IOU
    alone = ~seen.any(axis=1)
    return FrameObjects(boxes[alone], classes[alone], NOTHING.doubtful)


def _as_objects(found: Found) -> FrameObjects:
    """Returns the sure ones of what was found as if they were true."""
    sure = found.sure
    return FrameObjects(found.boxes[sure], found.classes[sure], np.zeros((0, 4), np.float32))


def _one_gpu_s(given: LabellingInputs, frames: Sequence[CollectedFrame]) -> float:
    """Returns the golden detector's GPU-seconds for one frame; 0 without a budget."""
    if given.settings.label_gpu_s is None or not frames:
        return 0.0
    return given.golden_gpu_s([frames[0].question])


def _asked_burst(given: LabellingInputs) -> list[CollectedFrame]:
    """Returns the burst to label: shorter where few frames are labelled, and within what a budget leaves."""
    most = max(LEAST_BURST, ceil(given.settings.frames_per_window / LABELS_A_BURST_FRAME))
    frames, budget_gpu_s = longest_run(given.material.burst)[:most], given.settings.label_gpu_s
    left_gpu_s = None if budget_gpu_s is None else (1.0 - SAMPLE_PART) * budget_gpu_s
    return frames[: affordable_count(left_gpu_s, _one_gpu_s(given, frames), len(frames))]
