"""Looks at the first frames of a fleet's streams before a run: what would Ekya understand wrongly?"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_sections import StreamConfig
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.models.catalogue import GOLDEN
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.multi_model import Predictors
from ekya.models.golden.detections import FramePlace, GoldenObjects, Question, no_detections
from ekya.models.golden.golden_from_detections import DetectionModel
from ekya.models.golden.golden_model import (
    OBJECT_SCORE,
    GoldenModel,
    label_file_of,
    open_detector,
    open_golden,
)
from ekya.models.golden.judge_labels import SeenFrame, SeenVideo, judge_labels
from ekya.models.golden.label_file import LabelFile, read_labels
from ekya.models.golden.spec import FILE, ONNX
from ekya.pipeline.base_model import base_model, teacher_warnings
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.inference import serving
from ekya.pipeline.setup import crop_side
from ekya.streams.ingest.camera import ASSUMED_FPS
from ekya.streams.ingest.crops import square_frame
from ekya.streams.ingest.feed import LiveSample
from ekya.streams.ingest.first_pictures import describe_odd_pictures, is_moving
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.motion import MotionRegions
from ekya.streams.ingest.process import SourceDiedError, SourceProcess, SourceSpec

_LOG = logging.getLogger(__name__)

MOST_SOURCES = 4
"""Upper bound of sources whose work is timed, or whose labels are compared with pictures."""

GOLDEN_S = 1.0
"""Seconds for the golden model on first frames, of all streams together."""

_FRAMES, _READ_S, _LIVE_S = 12, 1.0, 5.0
_LABELLED_FRAMES, _LABELLED_S, _DETECTED_EVERY = 300, 1.0, 12
_TRIED = 3
_AT_ONCE = 8
_GREY = Frame(0, 0, np.full((480, 640, 3), 127, np.uint8), None)


@dataclass(frozen=True, slots=True)
class SampledSource:
    """First frames of a source and its rate.

    Attributes:
        fps: frames a second.
        frames: the first ones; empty if there were none.
        length_s: of a recording, if it is known; seconds.
        later: further ones, spread over the first seconds, where labels are to be compared with them.
        seen: what moves in all of these, or the boxes of the source.
    """

    fps: float
    frames: tuple[Frame, ...]
    length_s: float | None = None
    later: tuple[Frame, ...] = ()
    seen: tuple[SeenFrame, ...] = ()

    @property
    def pictures(self) -> tuple[Frame, ...]:
        """The first frames; grey ones if there are none, which the run reports later."""
        return self.frames or (_GREY,) * _TRIED


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What was seen of a stream.

    Attributes:
        stream: its id.
        sampled: its first frames.
        shown: that of its frames in which the golden model finds most; None if there is none.
        objects: what it finds there.
        odd: what is odd, in sentences that name the stream.
        refused: the first of them is an error.
    """

    stream: StreamId
    sampled: SampledSource
    shown: Frame | None
    objects: GoldenObjects
    odd: tuple[str, ...]
    refused: bool


def warn_before_run(fleet: FleetConfig) -> None:
    """Looks at a fleet and its models before a run on virtual time, and logs what is odd.

    Raises:
        UserError: a source or a model cannot be opened, or labels are not of its video.
    """
    streams = streams_to_look_at(fleet)
    looks = look_at_fleet(fleet, streams) if streams else []
    for warning in (*teacher_warnings(fleet), *sentences_of(looks)):
        _LOG.warning("%s", warning)


def look_at_fleet(
    fleet: FleetConfig, streams: Sequence[StreamConfig], golden_s: float = GOLDEN_S
) -> list[Look]:
    """Opens streams concurrently, and looks at their first frames; see ``look_at_streams``.

    Raises:
        UserError: a source or the golden model cannot be opened.
    """
    sampled = sample_sources(
        {stream.id: stream.source for stream in streams},
        fleet_classes(fleet),
        most=len(streams),
        labelled=fleet.golden.model == FILE,
    )
    golden = open_golden(fleet.golden, fleet_classes(fleet), fleet.edge.task)
    return look_at_streams(fleet, streams, sampled, golden, golden_s)


def sentences_of(looks: Sequence[Look]) -> tuple[str, ...]:
    """Returns what is odd.

    Raises:
        UserError: labels are not of their video.
    """
    for look in looks:
        if look.refused:
            raise UserError(look.odd[0])
    return tuple(sentence for look in looks for sentence in look.odd)


def streams_to_look_at(fleet: FleetConfig) -> list[StreamConfig]:
    """Returns the streams whose pictures or labels may be another than is thought."""
    is_file = fleet.golden.model == FILE
    return [stream for stream in fleet.streams if is_file or not stream.source.gives_truth]


def sample_sources(
    specs: Mapping[StreamId, SourceSpec],
    classes: tuple[str, ...],
    most: int = MOST_SOURCES,
    also: Collection[StreamId] = (),
    labelled: bool = False,
) -> dict[StreamId, SampledSource]:
    """Reads the first frames of up to ``most`` different sources, and of those of ``also``, concurrently.

    Args:
        specs: sources of streams.
        classes: the fleet's.
        most: number of different sources.
        also: further streams.
        labelled: read more of the first ``MOST_SOURCES``, to compare them with labels.

    Returns:
        Samples of the streams that were opened, and of streams with the same source.

    Raises:
        UserError: a recording cannot be opened.
    """
    different: dict[str, SourceSpec] = {}
    for spec in specs.values():
        different.setdefault(_name(spec), spec)
    opened = dict(islice(different.items(), most)) | {_name(specs[one]): specs[one] for one in also}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        read = {
            name: pool.submit(_read_source, spec, classes, labelled and at < MOST_SOURCES)
            for at, (name, spec) in enumerate(opened.items())
        }
        found = {name: one.result() for name, one in read.items()}
    return {stream: found[_name(spec)] for stream, spec in specs.items() if _name(spec) in found}


def _read_source(spec: SourceSpec, classes: tuple[str, ...], labelled: bool) -> SampledSource:
    with LiveSample(spec, _LIVE_S) if spec.live else SourceProcess(spec, classes) as source:
        try:
            fps = source.wait_open()
        except SourceDiedError:
            return SampledSource(ASSUMED_FPS, ())
        count, ends_s = _FRAMES, time.monotonic() + _READ_S
        if labelled:
            count, ends_s = _LABELLED_FRAMES, time.monotonic() + _LABELLED_S
        frames: list[Frame] = []
        later: list[Frame] = []
        seen: list[SeenFrame] = []
        moving = MotionRegions()
        for frame, _ in islice(source.frames(), count):
            if len(frames) < _FRAMES:
                frames.append(frame)
            elif frame.index % _DETECTED_EVERY == 0:
                later.append(frame)
            if labelled:
                boxes = moving.find_regions(frame.image) if frame.boxes is None else frame.boxes
                seen.append(SeenFrame(frame.index, frame.t_us, boxes))
            if time.monotonic() > ends_s and len(frames) >= _TRIED:
                break
        length_s = source.length_s if isinstance(source, SourceProcess) else None
        return SampledSource(fps, tuple(frames), length_s, tuple(later), tuple(seen))


def _name(spec: SourceSpec) -> str:
    return f"{type(spec).__qualname__} {spec.model_dump_json()}"


def look_at_streams(
    fleet: FleetConfig,
    streams: Sequence[StreamConfig],
    sampled: Mapping[StreamId, SampledSource],
    golden: GoldenModel,
    golden_s: float = GOLDEN_S,
) -> list[Look]:
    """Judges the first frames of streams, and what golden model or label file finds in them.

    Args:
        fleet: with its classes.
        streams: those to look at.
        sampled: their first frames.
        golden: of the fleet.
        golden_s: seconds for it; one frame is tried in any case.
    """
    found: dict[StreamId, list[tuple[Frame, GoldenObjects]]] = {stream.id: [] for stream in streams}
    ends_s, is_file = time.monotonic() + golden_s, fleet.golden.model == FILE
    # Each stream once before any is tried again: the time may not be enough.
    for turn in range(_LABELLED_FRAMES if is_file else _TRIED):
        for stream in streams:
            frames = (*sampled[stream.id].frames, *sampled[stream.id].later)
            at = turn if is_file else turn * (len(frames) - 1) // (_TRIED - 1)
            if 0 <= at < len(frames) and (time.monotonic() < ends_s or not any(found.values())):
                objects = _objects_in(golden, stream, frames[at])
                found[stream.id] += [] if objects is None else [(frames[at], objects)]
    labels = read_labels(label_file_of(fleet.golden), list(found)) if is_file else None
    detect = None if labels is None else _detector_for_trial(fleet)
    return [
        _judge_stream(fleet, stream, sampled[stream.id], found[stream.id], (golden, labels, detect))
        for stream in streams
    ]


def _objects_in(golden: GoldenModel, stream: StreamConfig, frame: Frame) -> GoldenObjects | None:
    """Returns what the golden model finds in a frame, or names of the source's boxes; None of neither."""
    place = FramePlace(stream.id, frame.index)
    found = golden.find_objects(frame.image, place)
    if found is None and not golden.finds and frame.boxes is not None:
        (classes,) = golden.label_boxes([Question(frame.boxes, frame.image, None, place)])
        named = classes >= 0
        found = GoldenObjects(frame.boxes[named], classes[named], frame.boxes[~named])
    return None if found is None else found.in_areas(stream.areas, frame.size)


_Detect = Callable[[NDArray[np.uint8]], NDArray[np.float32]]


def _judge_stream(
    fleet: FleetConfig,
    stream: StreamConfig,
    sampled: SampledSource,
    found: Sequence[tuple[Frame, GoldenObjects]],
    by: tuple[GoldenModel, LabelFile | None, _Detect | None],
) -> Look:
    golden, labels, detect = by
    odd = list(describe_odd_pictures(sampled.frames, sampled.fps, live=stream.source.live))
    refused = False
    if labels is not None and isinstance(golden, DetectionModel) and sampled.frames:
        table, video = labels.streams[stream.id], _seen_video(stream, sampled, detect)
        own = stream.id in labels.head.frames
        problem = judge_labels(table, golden.class_of >= 0, golden.sure_score, video, own)
        if problem is not None:
            refused = problem.certain
            odd.insert(0, f"{labels.path}: it {problem.sentence}")
    elif len(found) > 1 and is_moving(sampled.frames) and not any(len(one.boxes) for _, one in found):
        odd.append(
            "something moves in its first pictures, and the golden model finds none of "
            f"{', '.join(fleet_classes(fleet))}; see its picture by ekya check --look, and correct golden or "
            "classes"
        )
    shown: Frame | None
    nothing = GoldenObjects(no_detections().boxes, no_detections().classes, no_detections().boxes)
    unseen = (next(iter(sampled.frames), None), nothing)
    shown, objects = max(found, key=lambda one: len(one[1].boxes), default=unseen)
    return Look(
        stream.id, sampled, shown, objects, tuple(f"{stream.id}: {sentence}" for sentence in odd), refused
    )


def _seen_video(stream: StreamConfig, sampled: SampledSource, detect: _Detect | None) -> SeenVideo:
    detected: dict[int, NDArray[np.float32]] = {}
    if detect is not None and sampled.seen and not stream.source.gives_truth:
        tried = (*sampled.frames[:: _FRAMES // 2], *sampled.later)
        detected = {frame.index: detect(frame.image) for frame in tried}
    seen = [
        replace(one, detected=detected[one.index]) if one.index in detected else one for one in sampled.seen
    ]
    count = None if sampled.length_s is None else round(sampled.length_s * sampled.fps)
    return SeenVideo(sampled.fps, sampled.frames[0].size, count, seen)


def _detector_for_trial(fleet: FleetConfig) -> _Detect | None:
    """Returns a detector to compare labels with: the cache's fastest golden one, or the fleet's student."""
    cached = [model for model in GOLDEN if model.is_cached]
    if cached:
        detector = open_detector(ONNX, cached[-1].cached_path, OBJECT_SCORE)
        return lambda image: detector.detect_objects(image).boxes
    if fleet.edge.task is not Task.DETECT or fleet.edge.weights is None:
        return None
    student, side = serving(base_model(fleet, 0), fleet_classes(fleet), Predictors()), crop_side(fleet)

    def detect(image: NDArray[np.uint8]) -> NDArray[np.float32]:
        (found,) = student.predict(square_frame(image, side), side)
        size = np.array(image.shape[1::-1] * 2, np.float32)
        return np.asarray(found.boxes[found.sure] * size, np.float32)

    return detect
