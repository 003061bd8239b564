"""Classes of a fleet: those that its file names, or those that its cameras and videos show."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_sections import StreamConfig
from ekya.core.errors import UserError
from ekya.core.objects import BACKGROUND
from ekya.models.edge.architecture_table import Task
from ekya.models.golden.detections import ObjectDetector
from ekya.models.golden.golden_model import GOLDEN_SCORE, OBJECT_SCORE, label_file_of, open_detector_of
from ekya.models.golden.label_file import LabelFile, read_labels
from ekya.models.golden.spec import FILE, detector_of
from ekya.streams.ingest.feed import LiveSample
from ekya.streams.ingest.frame import Frame, Truth
from ekya.streams.ingest.process import SourceDiedError, SourceProcess
from ekya.streams.ingest.video import SpreadVideoSpec, VideoSpec

_LOG = logging.getLogger(__name__)

WATCHED_S = 10.0
"""Seconds for which a live camera is watched to find the classes it shows."""

MOST_SAMPLED, LEAST_SAMPLED, SAMPLED_IN_ALL = 60, 24, 160
"""Frames in which classes are looked for: of a camera at most and at least, and of all cameras together."""

LONG_FRAMES = 30_000
"""In a longer recording places are sought; a shorter one is decoded sooner as a whole."""

_LEAST_PART = 0.02
_NONE = np.zeros(0, dtype=np.int64)


def fleet_classes(fleet: FleetConfig) -> tuple[str, ...]:
    """Returns the fleet's classes; ``auto`` must have been resolved before."""
    if fleet.classes is None:
        raise UserError("key 'classes': is auto, and the classes that occur are not known yet.")
    return fleet.classes


def with_classes(fleet: FleetConfig, watched: Sequence["Readable"] = ()) -> FleetConfig:
    """Returns the fleet with its classes complete.

    A golden detector that names boxes needs the class ``background``, which is added; edge models that detect
    have no such class. If the file leaves the classes open, they are those that the videos show, and the
    cameras within ``WATCHED_S``, of which edge models that detect know all. With ``watched``, they are those
    that these frames show.

    Raises:
        UserError: there is no detector to find the classes, the cameras show none, or labels of a file are
            of boxes that were given.
    """
    detects = fleet.edge.task is Task.DETECT
    if fleet.golden.model == FILE:
        return _with_classes_of_file(fleet)
    name = detector_of(fleet.golden)
    if fleet.classes is not None:
        if name is None or detects or BACKGROUND in fleet.classes:
            return fleet
        return fleet.model_copy(update={"classes": (*fleet.classes, BACKGROUND)})
    if name is None:
        raise UserError("key 'classes': only a golden detector can find them; list the names.")
    if fleet.golden.class_map is not None:
        raise UserError("key 'classes': auto takes the detector's own; with golden.class_map list the names.")
    with ExitStack() as stack:
        sources: list[Readable] = [*watched]
        for stream in () if watched else fleet.streams:
            if stream.source.live:
                sources.append(stack.enter_context(LiveSample(stream.source, WATCHED_S)))
            else:
                sources.append(stack.enter_context(SourceProcess(stream.first_pass, ())))
        if not watched:
            sources = [_made_short(*of, stack) for of in zip(fleet.streams, sources, strict=True)]
        found = occurring_classes(open_detector_of(fleet.golden, _sure_score(fleet)), *sources)
    for stream, source in zip(fleet.streams, sources, strict=True):
        if not found and isinstance(source, SourceProcess) and source.died:
            raise UserError(f"{stream.id}: its frames cannot be read ({source.died})")
    if not found and any(stream.source.live for stream in fleet.streams):
        raise UserError(
            f"key 'classes': the cameras showed nothing in {WATCHED_S:g} s that {name} knows; list the names."
        )
    _LOG.info("classes that occur: %s", ", ".join(found))
    return fleet.model_copy(update={"classes": _of_edge_model(fleet, found)})


def _made_short(stream: StreamConfig, source: "Readable", stack: ExitStack) -> "Readable":
    """Returns the source, or in place of a long recording one of frames from all over it."""
    if (
        not isinstance(source, SourceProcess)
        or not isinstance(stream.source, VideoSpec)
        or _said_frames(source) <= LONG_FRAMES
    ):
        return source
    source.close()
    spread = SpreadVideoSpec(video=stream.source, runs=LEAST_SAMPLED, run_frames=1)
    return _Sought(stack.enter_context(SourceProcess(spread, ())))


def _sure_score(fleet: FleetConfig) -> float:
    """Returns the minimum score of a detection that counts as an object."""
    return OBJECT_SCORE if fleet.edge.task is Task.DETECT else GOLDEN_SCORE


def _of_edge_model(fleet: FleetConfig, found: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the classes of edge models where these occur.

    Raises:
        UserError: the models detect, and know none of them.
    """
    if fleet.edge.task is Task.CLASSIFY:
        return (*found, BACKGROUND)
    # Imported here: the driver of a run does without torch.
    from ekya.pipeline.base_model import detector_outputs

    outputs = detector_outputs(fleet)
    known = tuple(name for name in found if name in outputs)
    if not known:
        raise UserError(
            f"key 'classes': of what the golden model finds ({', '.join(found) or 'nothing'}) the detector "
            "of the key 'edge.weights' knows nothing; list names that both know."
        )
    if known != found:
        left = ", ".join(name for name in found if name not in known)
        _LOG.warning("classes: %s occur, but the detector of 'edge.weights' does not know them", left)
    return known


def _with_classes_of_file(fleet: FleetConfig) -> FleetConfig:
    """Completes the classes from a label file.

    For models that classify ``background`` is added if its objects were detected.
    """
    path = label_file_of(fleet.golden)
    labels = read_labels(path, [stream.id for stream in fleet.streams])
    for stream in fleet.streams:
        if stream.id not in labels.streams:
            raise UserError(
                f"{path}: holds no labels of {stream.id}; add them with `ekya golden label --resume`, or "
                "leave the stream out of the fleet."
            )
    finds = labels.head.finds
    if finds is None:
        finds = not all(stream.source.gives_truth for stream in fleet.streams)
    detects = fleet.edge.task is Task.DETECT
    if detects and not finds:
        raise UserError(
            f"{path}: its objects were given and only named, and edge.task is {Task.DETECT}; label the "
            f"frames with a golden detector, or use edge.task: {Task.CLASSIFY}."
        )
    classes = fleet.classes
    if classes is None:
        classes = _of_edge_model(fleet, classes_in(labels, _sure_score(fleet)))
    if finds and not detects and BACKGROUND not in classes:
        classes = (*classes, BACKGROUND)
    return fleet.model_copy(update={"classes": classes})


class Readable(Protocol):
    """A ``StreamSource``, a ``SourceProcess`` around one, or frames that were read before."""

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields all frames in order."""


@dataclass(frozen=True, slots=True, eq=False)
class _Sought:
    """``Readable`` of the frames that a source has sought, all of which are wanted."""

    source: SourceProcess

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields them as they are found."""
        return self.source.frames()


def occurring_classes(detector: ObjectDetector, *sources: Readable) -> tuple[str, ...]:
    """Returns the classes that a detector finds in frames that are evenly spread over each source.

    Args:
        detector: the golden one.
        sources: the fleet's cameras; a class found in one of them is the fleet's.

    Returns:
        Names in the detector's order, each at least a fiftieth of some camera's objects.
    """
    count = max(LEAST_SAMPLED, min(MOST_SAMPLED, SAMPLED_IN_ALL // max(len(sources), 1)))
    found = (
        [detector.detect_objects(frame.image).classes for frame in _spread(source, count)]
        for source in sources
    )
    return _often(detector.names, (np.concatenate([_NONE, *of]) for of in found))


def classes_in(labels: LabelFile, sure_score: float) -> tuple[str, ...]:
    """Returns ``occurring_classes`` of existing labels with at least this confidence."""
    found = (of.found.classes[of.found.scores >= sure_score] for of in labels.streams.values())
    return _often(labels.head.names, found)


def _often(names: tuple[str, ...], cameras: Iterable[NDArray[np.int64]]) -> tuple[str, ...]:
    """Returns the names that are at least a fiftieth of some camera's objects."""
    occurs = np.zeros(len(names), dtype=np.bool_)
    for classes in cameras:
        counts = np.bincount(classes, minlength=len(names))
        occurs |= (counts > 0) & (counts >= _LEAST_PART * counts.sum())
    return tuple(name for name, here in zip(names, occurs, strict=True) if here)


def _spread(source: Readable, count: int) -> Iterable[Frame]:
    """Returns about ``count`` frames at equal distances, and at most twice as many; all if there are fewer.

    Of a recording whose header says how long it is these alone are handed over. Otherwise every frame is kept
    at first, then every second, every fourth, and so on.
    """
    if isinstance(source, SourceProcess) and (frames := _said_frames(source)) > count:
        chosen = [(2 * at + 1) * frames // (2 * count) for at in range(count)]
        return (frame for frame, _ in source.frames(only=chosen))
    kept: list[Frame] = []
    stride = 1
    for at, (frame, _) in enumerate(source.frames()):
        if at % stride:
            continue
        kept.append(frame)
        if len(kept) > 2 * count:
            kept = kept[::2]
            stride *= 2
    return kept


def _said_frames(source: SourceProcess) -> int:
    """Returns the number of frames that a recording's header promises; 0 if it says nothing."""
    with suppress(SourceDiedError):
        fps = source.wait_open()
        return round(fps * (source.length_s or 0.0))
    return 0
