"""Looks at the first frames of a fleet's streams before a run: what would Ekya understand wrongly?"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_sections import StreamConfig
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.multi_model import Predictors
from ekya.models.golden.detections import FramePlace, GoldenObjects, Question, no_detections
from ekya.models.golden.golden_from_detections import DetectionModel
from ekya.models.golden.golden_model import GoldenModel, label_file_of, open_golden
from ekya.models.golden.label_file import read_labels
from ekya.models.golden.spec import FILE
from ekya.pipeline.base_model import base_model, teacher_warnings
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.inference import serving
from ekya.pipeline.judge_labels import Detect, judge_labels
from ekya.pipeline.prelabel import TRUTH
from ekya.pipeline.sampled_sources import SampledSource, sample_sources
from ekya.pipeline.setup import crop_side
from ekya.streams.ingest.crops import square_frame
from ekya.streams.ingest.first_pictures import describe_odd_pictures, is_moving
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.video import VideoSpec

_LOG = logging.getLogger(__name__)
_TRIED, _GOLDEN_S = 3, 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What was seen of a stream.

    Attributes:
        stream, fps: its id and rate.
        shown: its frame in which the golden model finds most; None if it has none.
        objects: what it finds there.
        odd: what is odd, in sentences that name the stream.
        refused: the first of them is an error.
    """

    stream: StreamId
    fps: float
    shown: Frame | None
    objects: GoldenObjects
    odd: tuple[str, ...]
    refused: bool


def warn_before_run(fleet: FleetConfig) -> None:
    """Looks at a fleet and its models before a run on virtual time, and logs what is odd.

    Raises:
        UserError: a source or a model cannot be opened, or labels are not of its video.
    """
    looks = look_at_fleet(fleet, streams) if (streams := streams_to_look_at(fleet)) else []
    for warning in (*teacher_warnings(fleet), *sentences_of(looks)):
        _LOG.warning("%s", warning)


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
    """Returns the streams whose pictures or labels may be another than is thought: none that is drawn.

    Of data whose own labels were written to a file one is enough: they fit all of its streams, or none.
    """
    known = [stream for stream in fleet.streams if stream.source.gives_truth]
    if fleet.golden.model == FILE:
        known = [] if has_foreign_labels(fleet) else known[1:]
    return [stream for stream in fleet.streams if stream not in known]


def has_foreign_labels(fleet: FleetConfig) -> bool:
    """Returns whether the golden model is a label file that was not written from the streams' own labels.

    Raises:
        UserError: the file cannot be read.
    """
    return fleet.golden.model == FILE and read_labels(label_file_of(fleet.golden), ()).head.by != TRUTH


def look_at_fleet(
    fleet: FleetConfig, streams: Sequence[StreamConfig], golden_s: float = _GOLDEN_S
) -> list[Look]:
    """Opens streams, and looks at their first frames; see ``sample_sources`` and ``look_at_streams``."""
    specs = {stream.id: stream.source for stream in streams}
    sampled = sample_sources(specs, fleet_classes(fleet), also=specs, labelled=has_foreign_labels(fleet))
    golden = open_golden(fleet.golden, fleet_classes(fleet), fleet.edge.task)
    return look_at_streams(fleet, streams, sampled, golden, golden_s)


def look_at_streams(
    fleet: FleetConfig,
    streams: Sequence[StreamConfig],
    sampled: Mapping[StreamId, SampledSource],
    golden: GoldenModel,
    golden_s: float = _GOLDEN_S,
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
    ends_s = time.monotonic() + golden_s
    # Each stream once before any is tried again: the time may not be enough.
    for turn in range(_TRIED):
        for stream in streams:
            one = sampled[stream.id]
            frames = [*one.frames, *(seen.frame for seen in one.seen if seen.frame is not None)]
            tried = (
                frames[turn::_TRIED] if one.seen else frames[turn * (len(frames) - 1) // (_TRIED - 1) :][:1]
            )
            for frame in tried if time.monotonic() < ends_s or not any(found.values()) else ():
                if (objects := _objects_in(golden, stream, frame)) is not None:
                    found[stream.id].append((frame, objects))
    odd = _judge_labels(fleet, streams, sampled, golden) if fleet.golden.model == FILE else {}
    return [_look(fleet, one, sampled[one.id], found[one.id], odd.get(one.id)) for one in streams]


def _objects_in(golden: GoldenModel, stream: StreamConfig, frame: Frame) -> GoldenObjects | None:
    """Returns what the golden model finds in a frame, or names of the source's boxes; None of neither."""
    place = FramePlace(stream.id, frame.index)
    found = golden.find_objects(frame.image, place)
    if found is None and not golden.finds and frame.boxes is not None:
        (classes,) = golden.label_boxes([Question(frame.boxes, frame.image, None, place)])
        found = GoldenObjects(frame.boxes[classes >= 0], classes[classes >= 0], frame.boxes[classes < 0])
    return None if found is None else found.in_areas(stream.areas, frame.size)


def _look(
    fleet: FleetConfig,
    stream: StreamConfig,
    sampled: SampledSource,
    found: Sequence[tuple[Frame, GoldenObjects]],
    labels: tuple[str, bool] | None,
) -> Look:
    odd = [] if labels is None else [labels[0]]
    # Of a data set the mean rate is known, from which its first frames may differ.
    fps = None if stream.source.gives_truth else sampled.fps
    odd += describe_odd_pictures(sampled.frames, fps, live=stream.source.live)
    finds_nothing = len(found) > 1 and not any(len(one.boxes) for _, one in found)
    if fleet.golden.model != FILE and finds_nothing and is_moving(sampled.frames):
        odd.append(
            "something moves in its first pictures, and the golden model finds none of "
            f"{', '.join(fleet_classes(fleet))}; see its picture by ekya check --look, and correct golden or "
            "classes"
        )
    nothing = GoldenObjects(no_detections().boxes, no_detections().classes, no_detections().boxes)
    first = (next(iter(sampled.frames), None), nothing)
    shown, objects = max((first, *found), key=lambda one: len(one[1].boxes))
    said = tuple(f"{stream.id}: {sentence}" for sentence in odd)
    return Look(stream.id, sampled.fps, shown, objects, said, labels is not None and labels[1])


def _judge_labels(
    fleet: FleetConfig,
    streams: Sequence[StreamConfig],
    sampled: Mapping[StreamId, SampledSource],
    golden: GoldenModel,
) -> dict[StreamId, tuple[str, bool]]:
    """Returns what is wrong with the labels of streams, and whether that is certain."""
    assert isinstance(golden, DetectionModel)
    labels = read_labels(label_file_of(fleet.golden), [stream.id for stream in streams])
    sure, detect = (golden.class_of >= 0, golden.sure_score), _student_of(fleet)
    wrong: dict[StreamId, tuple[str, bool]] = {}
    for stream in streams:
        video = sampled[stream.id]
        if isinstance(stream.source, VideoSpec) and len(stream.source.files) > 1:
            # The rates of the others are not known here, and so not the number of their frames.
            video = replace(video, length_s=None)
        own = stream.id in labels.head.frames
        if video.frames and (found := judge_labels(labels.streams[stream.id], *sure, video, own, detect)):
            wrong[stream.id] = (f"{labels.path}: it {found.sentence}", found.certain)
    return wrong


def _student_of(fleet: FleetConfig) -> Detect | None:
    """Returns the detector that a fleet starts with, to compare labels with; None without a trained one."""
    if fleet.edge.task is not Task.DETECT or fleet.edge.weights is None:
        return None
    student, side = serving(base_model(fleet, 0), fleet_classes(fleet), Predictors()), crop_side(fleet)

    def detect(image: NDArray[np.uint8]) -> NDArray[np.float32]:
        (found,) = student.predict(square_frame(image, side), side)
        return np.asarray(found.boxes[found.sure] * np.array(image.shape[1::-1] * 2), np.float32)

    return detect
