"""`ekya golden label`: labels a fleet's recordings before a run."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_sections import StreamConfig
from ekya.core.errors import UserError
from ekya.core.units import StreamId, seconds_to_us
from ekya.models.edge.architecture_table import Task
from ekya.models.golden.detections import Detections, Question, no_detections
from ekya.models.golden.golden_model import (
    DOUBTFUL_SCORE,
    PROPOSAL_SCORE,
    open_classifier_of,
    open_detector_of,
)
from ekya.models.golden.label_file import LabelFile, LabelHead, LabelTable, resumed
from ekya.models.golden.spec import FILE, detector_of
from ekya.streams.ingest.frame import Frame, Truth
from ekya.streams.ingest.process import SourceDiedError, SourceProcess
from ekya.system.keeper import Keeper

TRUTH = "truth"
"""``LabelHead.by`` for labels that came with the data."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Teacher:
    """Labels the objects in whole frames.

    Attributes:
        by: name of the source of the labels.
        names: class names, which the classes of ``label`` index.
        finds: True if boxes are detected in the images; False if they are given.
        label: returns the objects of a frame, from the frame and what is known of it.
    """

    by: str
    names: tuple[str, ...]
    finds: bool
    label: Callable[[Frame, Truth | None], Detections]


class LabelProgress(Protocol):
    """Receives the progress of labelling."""

    def expect(self, stream: StreamId, frames: int | None) -> None:
        """Called when a stream begins; ``frames`` is its length, None if it is not known."""

    def labelled(self, frames: int) -> None:
        """Called when this many more frames are labelled, now or by an earlier run."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of one labelled stream.

    Attributes:
        labelled: frames labelled in this run.
        known: frames labelled before.
        objects: boxes in all of these frames.
    """

    labelled: int
    known: int
    objects: int


def label_ahead(
    fleet: FleetConfig,
    streams: Sequence[StreamId],
    from_truth: bool,
    before: LabelFile | None,
    keep: Callable[[LabelTable], None],
    progress: LabelProgress,
) -> dict[StreamId, Counts]:
    """Labels every frame of a fleet up to the end of its windows and saves the labels on the way.

    Args:
        fleet: the fleet file's content; ``classes`` may be None (``auto``) with a golden detector.
        streams: ids of the streams to label; empty for all, also those of pretraining.
        from_truth: take the data's own labels instead of the golden model's.
        before: labels to continue from; frames that they contain are not labelled again.
        keep: saves all labels; called periodically, at the end, and on Ctrl-C.
        progress: receives the progress.

    Raises:
        UserError: a stream is unknown, has no labels of its own (``from_truth``) or is live; the golden model
            cannot be opened; or ``before`` was made by another model or with other classes.
    """
    chosen = _chosen(fleet.with_pretraining(), streams, from_truth)
    teacher = _truth(fleet.classes or ()) if from_truth else _teacher(fleet, chosen)
    head = LabelHead(by=teacher.by, names=teacher.names, finds=teacher.finds)
    table = LabelTable(head) if before is None else resumed(_of_the_same(before, head))
    counts: dict[StreamId, Counts] = {}
    keeper = Keeper(lambda: keep(table))
    try:
        for stream in chosen:
            counts[stream.id] = _label_stream(fleet, stream, teacher, table, keeper, progress)
    finally:
        keeper.save_now()
    return counts


def _label_stream(
    fleet: FleetConfig,
    stream: StreamConfig,
    teacher: Teacher,
    table: LabelTable,
    keeper: Keeper,
    progress: LabelProgress,
) -> Counts:
    done = table.frames.setdefault(stream.id, {})
    known = len(done)
    until_us = None if fleet.windows is None else fleet.windows * seconds_to_us(fleet.window_s)
    if stream.id in table.head.frames:
        progress.expect(stream.id, known)
        progress.labelled(known)
        return _counts(done, known)
    with SourceProcess(stream.unbroken, fleet.classes or ()) as source:
        try:
            fps = source.wait_open()
        except SourceDiedError as error:
            _LOG.warning("%s: it is left without labels: %s", stream.id, error)
            return _counts(done, known)
        progress.expect(stream.id, None if until_us is None else round(fps * until_us / 1e6))
        frames, to_the_end = 0, True
        for frame, truth in source.frames():
            if until_us is not None and frame.t_us >= until_us:
                to_the_end = False
                break
            if frame.index not in done:
                done[frame.index] = teacher.label(frame, truth)
                keeper.save_if_due()
            frames += 1
            progress.labelled(1)
        if source.died:
            _LOG.warning("%s: its source died (%s); its labels end there", stream.id, source.died)
        elif to_the_end:
            table.finish_stream(stream.id, frames)
    return _counts(done, known)


def _counts(done: dict[int, Detections], known: int) -> Counts:
    return Counts(len(done) - known, known, sum(len(found.boxes) for found in done.values()))


def _truth(names: tuple[str, ...]) -> Teacher:
    """Returns the data's own labels as a teacher."""

    def label(_: Frame, truth: Truth | None) -> Detections:
        return no_detections() if truth is None else known_objects(truth.boxes, truth.classes)

    return Teacher(TRUTH, names, False, label)


def known_objects(boxes: NDArray[np.float32], classes: NDArray[np.int64]) -> Detections:
    """Returns objects that came with the data, which are certain."""
    return Detections(boxes, classes, np.ones(len(boxes), np.float32))


def _teacher(fleet: FleetConfig, streams: Sequence[StreamConfig]) -> Teacher:
    """Returns the golden model as a teacher; a detector's labels go down to those that are not sure."""
    detects = fleet.edge.task is Task.DETECT
    if fleet.golden.model == FILE:
        raise UserError("key 'golden.model': the labels are in a file already; name a model to make others.")
    name = detector_of(fleet.golden)
    if name is not None:
        detector = open_detector_of(fleet.golden, DOUBTFUL_SCORE if detects else PROPOSAL_SCORE)
        return Teacher(name, detector.names, True, lambda frame, _: detector.detect_objects(frame.image))
    for stream in streams:
        if not stream.source.gives_truth:
            raise UserError(
                f"key 'golden.model': {fleet.golden.model} only names objects, and {stream.id} is a video "
                "in which they must be found; use a detector, such as onnx."
            )
    golden = open_classifier_of(fleet.golden, fleet.classes or ())

    def classify(frame: Frame, _: Truth | None) -> Detections:
        boxes = frame.boxes if frame.boxes is not None else no_detections().boxes
        classes, confidences = golden.classify_boxes([Question(boxes, frame.image)])
        return Detections(boxes, classes, confidences)

    return Teacher(fleet.golden.model, golden.classes, False, classify)


def _chosen(fleet: FleetConfig, streams: Sequence[StreamId], from_truth: bool) -> list[StreamConfig]:
    unknown = sorted(set(streams) - {stream.id for stream in fleet.streams})
    if unknown:
        names = ", ".join(stream.id for stream in fleet.streams)
        raise UserError(f"--streams: the fleet has no '{unknown[0]}'; choose from {names}.")
    chosen = [stream for stream in fleet.streams if not streams or stream.id in streams]
    for stream in chosen:
        if stream.source.live:
            raise UserError(
                f"stream {stream.id}: what a live camera will show cannot be labelled before; leave it out "
                "(--streams)."
            )
        if from_truth and not stream.source.gives_truth:
            raise UserError(
                f"--from-truth: {stream.id} comes without labels; leave it out (--streams), or let the "
                "golden model label it."
            )
    return chosen


def _of_the_same(before: LabelFile, head: LabelHead) -> LabelFile:
    if (before.head.by, before.head.names) != (head.by, head.names):
        raise UserError(
            f"--resume: {before.path} was made by {before.head.by}, and this would be {head.by}, or other "
            "classes; name another file with --out."
        )
    return before
