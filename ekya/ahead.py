"""`ekya golden label`: a fleet's streams are labelled before they are run."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ekya.config import FleetConfig, StreamConfig
from ekya.core.ids import StreamId
from ekya.core.units import seconds_to_us
from ekya.errors import UserError
from ekya.labeling.detections import Detections, Detector, Question
from ekya.labeling.detectors import PROPOSAL_SCORE
from ekya.labeling.golden import open_classifier_of, open_detector_of
from ekya.labeling.golden_classifier import GoldenClassifier
from ekya.labeling.label_file import LabelFile, LabelHead, LabelTable, resumed
from ekya.labeling.names import FILE
from ekya.labeling.spec import detector_of
from ekya.streams.frame import Frame, Truth
from ekya.streams.process import SourceDiedError, SourceProcess

TRUTH = "truth"
"""Who made labels that came with the data."""

_LOG = logging.getLogger(__name__)
_KEEP_EVERY_S = 30.0
_MOST_PART_WRITING = 0.05


class Teacher(Protocol):
    """Says what is in a whole frame."""

    @property
    def names(self) -> tuple[str, ...]:
        """What it tells apart; the index space of its classes."""

    def see(self, frame: Frame, truth: Truth | None) -> Detections:
        """The objects of a frame."""


class Progress(Protocol):
    """Who waits."""

    def expect(self, stream: StreamId, frames: int | None) -> None:
        """A stream begins, of so many frames if that is known."""

    def labelled(self, frames: int) -> None:
        """So many frames more are done, or were done before."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What was done of a stream.

    Attributes:
        labelled: frames that were labelled now.
        known: frames that had been labelled before.
        objects: boxes in all of them.
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
    progress: Progress,
) -> dict[StreamId, Counts]:
    """Labels every frame of a fleet, as far as its windows go, and hands the labels over on the way.

    Args:
        fleet: as its file says; ``classes`` may be open with a golden detector.
        streams: which of its streams; empty for all.
        from_truth: the data's own labels, instead of the golden model's.
        before: labels to go on with: frames that they know are not labelled again.
        keep: is given all labels, now and then, at the end, and when Ctrl-C comes.
        progress: is told what is done.

    Raises:
        UserError: an unknown stream, one that has no labels of its own or cannot be read twice, a golden
            model that cannot be opened, or labels of another one to go on with.
    """
    chosen = _chosen(fleet, streams, from_truth)
    teacher = _Told(fleet.classes or ()) if from_truth else _teacher(fleet, chosen)
    by = TRUTH if from_truth else detector_of(fleet.golden) or fleet.golden.model
    head = LabelHead(by=by, names=teacher.names, finds=isinstance(teacher, _Found))
    table = LabelTable(head) if before is None else resumed(_of_the_same(before, head))
    counts: dict[StreamId, Counts] = {}
    keeper = _Keeper(table, keep)
    try:
        for stream in chosen:
            counts[stream.id] = _label_stream(fleet, stream, teacher, table, keeper, progress)
    finally:
        keeper.now()
    return counts


def _label_stream(
    fleet: FleetConfig,
    stream: StreamConfig,
    teacher: Teacher,
    table: LabelTable,
    keeper: "_Keeper",
    progress: Progress,
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
                done[frame.index] = teacher.see(frame, truth)
                keeper.sometimes()
            frames += 1
            progress.labelled(1)
        if source.died:
            _LOG.warning("%s: its source died (%s); its labels end there", stream.id, source.died)
        elif to_the_end:
            table.finish(stream.id, frames)
    return _counts(done, known)


def _counts(done: dict[int, Detections], known: int) -> Counts:
    return Counts(len(done) - known, known, sum(len(found.boxes) for found in done.values()))


class _Keeper:
    """Hands labels over every half minute, and never so often that most of the time goes into it."""

    def __init__(self, table: LabelTable, keep: Callable[[LabelTable], None]) -> None:
        self._table = table
        self._keep = keep
        self._wait_s = _KEEP_EVERY_S
        self._kept_s = time.monotonic()

    def sometimes(self) -> None:
        """Hands them over if it is time."""
        if time.monotonic() - self._kept_s >= self._wait_s:
            self.now()

    def now(self) -> None:
        """Hands them over."""
        began_s = time.monotonic()
        self._keep(self._table)
        self._kept_s = time.monotonic()
        self._wait_s = max(_KEEP_EVERY_S, (self._kept_s - began_s) / _MOST_PART_WRITING)


@dataclass(frozen=True, slots=True, eq=False)
class _Told:
    """The data's own labels."""

    names: tuple[str, ...]

    def see(self, frame: Frame, truth: Truth | None) -> Detections:
        if truth is None:
            return Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32))
        return Detections(truth.boxes, truth.classes, np.ones(len(truth.boxes), np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What a detector sees, less sure detections too."""

    detector: Detector

    @property
    def names(self) -> tuple[str, ...]:
        return self.detector.names

    def see(self, frame: Frame, truth: Truth | None) -> Detections:
        return self.detector.detect(frame.image)


@dataclass(frozen=True, slots=True, eq=False)
class _Named:
    """What a classifier calls the boxes that came with the frame."""

    golden: GoldenClassifier

    @property
    def names(self) -> tuple[str, ...]:
        return self.golden.classes

    def see(self, frame: Frame, truth: Truth | None) -> Detections:
        boxes = frame.boxes if frame.boxes is not None else np.zeros((0, 4), np.float32)
        classes, confidences = self.golden.judge([Question(boxes, frame.image)])
        return Detections(boxes, classes, confidences)


def _teacher(fleet: FleetConfig, streams: Sequence[StreamConfig]) -> Teacher:
    if fleet.golden.model == FILE:
        raise UserError("key 'golden.model': the labels are in a file already; name a model to make others.")
    if detector_of(fleet.golden) is not None:
        return _Found(open_detector_of(fleet.golden, PROPOSAL_SCORE))
    for stream in streams:
        if not stream.source.gives_truth:
            raise UserError(
                f"key 'golden.model': {fleet.golden.model} only names objects, and {stream.id} is a video "
                "in which they must be found; use a detector, such as onnx."
            )
    return _Named(open_classifier_of(fleet.golden, fleet.classes or ()))


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
