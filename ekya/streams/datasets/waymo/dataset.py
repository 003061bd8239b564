"""Waymo Open Dataset: one camera's segments as a stream, and as a data set of ``ekya prepare``."""

import logging
import re
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ekya.core.errors import UserError
from ekya.core.unique_tuple import require_distinct
from ekya.core.units import US_PER_S
from ekya.streams.datasets.dataset import Dataset, OnFrame, StreamFindings, Survey
from ekya.streams.datasets.labelled import (
    LabelledFrame,
    LabelledObject,
    LabelledSource,
    ShownFrame,
    examine_source,
)
from ekya.streams.datasets.waymo.catalogue import (
    Drift,
    Segment,
    describe_all,
    describe_segments,
    find_segments,
    read_index,
    segment_reader,
    usable_segments,
    write_index,
)
from ekya.streams.datasets.waymo.shots import (
    CLASSES,
    TYPES,
    LostShot,
    Shot,
    ShotLabels,
    WaymoCamera,
    number_classes,
)
from ekya.streams.ingest.pictures import DecodedPicture, decode_jpeg
from ekya.system.files import FolderPath

_Item = TypeVar("_Item")


class _End:
    """Sentinel behind the last item."""


_END = _End()


def read_ahead(items: Generator[_Item, None, None], count: int) -> Generator[_Item, None, None]:
    """Yields the same items in the same order, up to ``count`` of them made in advance.

    An exception of the generator is raised where its item would have come. Closing this iterator also closes
    the generator, once the item in progress is made.
    """
    # One thread: a generator cannot be entered twice at a time, and items keep their order.
    with ThreadPoolExecutor(1, "read-ahead") as pool:
        coming: deque[Future[_Item | _End]] = deque(pool.submit(next, items, _END) for _ in range(count))
        try:
            while not isinstance(item := coming.popleft().result(), _End):
                coming.append(pool.submit(next, items, _END))
                yield item
        finally:
            # A generator cannot be closed while the thread is in it.
            pool.shutdown(wait=True, cancel_futures=True)
            items.close()


FPS = 10.0
"""Frames a second of the data set's cameras."""

FRAME_US = round(US_PER_S / FPS)

# A segment is 20 seconds long; a step of over a minute is a damaged time, and would stop a paced stream.
_LONGEST_STEP_US = 60 * US_PER_S
# Two seconds of pictures, 7 MB: covers the time that unpacking the next row group of version 2 takes.
_READ_AHEAD = 20


def show_segments(segments: Sequence[Segment], camera: WaymoCamera, max_side: int) -> Iterator[ShownFrame]:
    """Yields all frames of a camera, segment by segment; a thread reads ahead.

    Within a segment, stream time follows the frames' time stamps; the next segment begins a tenth of a second
    after the last frame, regardless of the real gap (paper §6.1).
    """
    t_us = -FRAME_US
    with closing(read_ahead(_shots_of(segments, camera), _READ_AHEAD)) as everything:
        for segment, shots in groupby(everything, key=itemgetter(0)):
            last_us: int | None = None
            for _, shot in shots:
                found = _decoded(shot, last_us, max_side)
                if isinstance(found, LostShot):
                    problem = f"{segment.files.images}: {found.why}"
                    yield ShownFrame(
                        LabelledFrame(segment.files.name, problem=problem), t_us, None, found.frames
                    )
                    continue
                time_us, labels, picture = found
                t_us += FRAME_US if last_us is None else time_us - last_us
                last_us = time_us
                objects = zip(labels.types.tolist(), labels.boxes.tolist(), strict=True)
                frame = LabelledFrame(
                    segment.files.name,
                    tuple(LabelledObject(TYPES.get(kind, ""), *box) for kind, box in objects),
                    picture.stored,
                    tracks=tuple(f"{segment.files.name}/{name}" for name in labels.objects),
                )
                yield ShownFrame(frame, t_us, picture.image)


def _shots_of(
    segments: Sequence[Segment], camera: WaymoCamera
) -> Generator[tuple[Segment, Shot | LostShot], None, None]:
    """Yields all pictures; a file that disappeared or broke since its facts were read becomes a ``Lost``."""
    for segment in segments:
        try:
            for shot in segment_reader(segment.files).read_shots(camera):
                yield segment, shot
        except (UserError, OSError) as error:
            yield segment, LostShot(f"the rest of the segment: {error}")


def _decoded(
    shot: Shot | LostShot, last_us: int | None, max_side: int
) -> tuple[int, ShotLabels, DecodedPicture] | LostShot:
    """Returns time, labels and pixels of a picture that follows the segment's frame at ``last_us``."""
    if isinstance(shot, LostShot):
        return shot
    if last_us is not None and not 0 < shot.timestamp_us - last_us <= _LONGEST_STEP_US:
        return LostShot(f"frame {shot.timestamp_us}: its time does not follow that of the one before")
    picture = decode_jpeg(shot.jpeg, max_side)
    if picture is None:
        return LostShot(f"frame {shot.timestamp_us}: its image cannot be decoded")
    return shot.timestamp_us, shot.labels, picture


_log = logging.getLogger(__name__)


class WaymoSpec(BaseModel):
    """A camera of the car in a fleet file, over some segments or all segments of a location.

    Attributes:
        root: folder with ``camera_image/`` and ``camera_box/`` (version 2) or ``.tfrecord`` files (version
            1), or with folders that have them, such as ``training``.
        segments: names in the data set (``context.name``); they play in chronological order, or by ``drift``.
        location: instead of ``segments``: all segments of a location, such as ``location_sf``.
        camera: camera of the car.
        drift: order of the segments by light or weather, as their metadata say; left out: chronological.
        index: index file that ``ekya prepare`` wrote; with it the source opens without reading every segment.
        max_side: longer frames are scaled down, in proportion, until no side is longer; pixels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gives_truth: ClassVar[bool] = True
    live: ClassVar[bool] = False

    kind: Literal["waymo"] = "waymo"
    root: FolderPath
    segments: Annotated[tuple[str, ...], AfterValidator(require_distinct)] = ()
    location: str | None = None
    camera: WaymoCamera = WaymoCamera.FRONT
    drift: Drift | None = None
    index: Path | None = None
    max_side: int = Field(default=640, ge=32)

    @model_validator(mode="after")
    def _names_segments(self) -> Self:
        if bool(self.segments) == (self.location is not None):
            raise ValueError("write either segments or location")
        return self

    def open(self, classes: tuple[str, ...]) -> LabelledSource:
        """Opens the source, whose truth is in the fleet's classes.

        With an index no segment is read. Without one, the time of each segment is read, and whether it has
        pictures and labels of the camera; for a location, the location of every segment of the root is read.

        Raises:
            UserError: the data set does not have a class; a file is missing or cannot be read; a segment has
                no pictures or labels of the camera.
        """
        class_of = number_classes(classes)
        if self.index is not None:
            chosen = self._indexed(self.index)
        elif self.location is not None:
            chosen = self._at(self.location)
        else:
            chosen = self._named()
        if self.drift is not None:
            chosen = self.drift.order_segments(chosen)
        shown = partial(show_segments, chosen, self.camera, self.max_side)
        return LabelledSource(shown, FPS, class_of, self.max_side)

    def _indexed(self, index: Path) -> tuple[Segment, ...]:
        everything = read_index(index, self.root)
        if self.location is not None:
            chosen = tuple(one for one in everything if one.facts.location == self.location)
        else:
            chosen = tuple(one for one in everything if one.files.name in self.segments)
        if not chosen or len(chosen) < len(self.segments):
            raise UserError(
                f"{index}: does not have every segment that the source names; make it again with ekya "
                "prepare waymo, or remove the key 'index'."
            )
        return chosen

    def _named(self) -> tuple[Segment, ...]:
        there = find_segments(self.root)
        for name in self.segments:
            if name not in there:
                raise UserError(
                    f"{self.root}: has no segment '{name}', named by the key 'segments'; fetch its files, or "
                    "remove the name."
                )
        chosen = describe_segments([there[name] for name in self.segments])
        for segment in chosen:
            segment_reader(segment.files).require_camera(self.camera)
        return chosen

    def _at(self, location: str) -> tuple[Segment, ...]:
        everything, problems = describe_all(self.root)
        here = [segment for segment in everything if segment.facts.location == location]
        usable, unusable = usable_segments(here, self.camera)
        for problem in (*problems, *unusable):
            _log.warning("%s", problem)
        if usable:
            return usable
        if here:
            raise UserError(
                f"{self.root}: no segment of location '{location}' can be used; the first: {unusable[0]}"
            )
        places = sorted({segment.facts.location for segment in everything} - {""})
        remedy = (
            f"the locations are {', '.join(places)}" if places else "fetch the files of its folder 'stats'"
        )
        unread = f" ({len(problems)} could not be read; the first: {problems[0]})" if problems else ""
        raise UserError(
            f"{self.root}: has no segment of location '{location}', the key 'location'{unread}; {remedy}."
        )


_USUAL_FRAMES = 198
"""Estimate for a segment of version 1, whose number of frames is available only after reading it whole."""

_LONGEST_SIDE = 640


@dataclass(frozen=True, slots=True)
class _Stream:
    """A camera at a location, and the segments driven there."""

    location: str
    camera: WaymoCamera
    segments: tuple[Segment, ...]


def _survey(root: Path) -> Survey:
    """Lists every camera at every location; reads location and time of each segment."""
    streams, missing = _streams(root)
    frames = {
        name: sum(segment.facts.frames or _USUAL_FRAMES for segment in stream.segments)
        for name, stream in streams.items()
    }
    return Survey(frames, missing)


def _examine(
    drift: Drift | None, root: Path, stream: str, classes: tuple[str, ...], index: Path, on_frame: OnFrame
) -> StreamFindings:
    found = _stream(root, stream)
    usable, unusable = usable_segments(found.segments, found.camera)
    if not usable:
        raise UserError(f"{root}: no segment of {stream} can be used; the first: {unusable[0]}")
    conditions: Counter[str] = Counter()
    if drift is not None:
        usable = drift.order_segments(usable)
    condition_of = {one.files.name: "" if drift is None else drift.condition_of(one.facts) for one in usable}

    def show_and_count() -> Iterator[ShownFrame]:
        for shown in show_segments(usable, found.camera, _LONGEST_SIDE):
            conditions[condition_of[str(shown.frame.place)]] += shown.image is not None
            yield shown

    source = LabelledSource(show_and_count, FPS, number_classes(classes), _LONGEST_SIDE)
    findings = examine_source(source, classes, on_frame)
    write_index(index, root, usable)
    seconds = {name or "not known": count / FPS for name, count in conditions.items() if drift is not None}
    return replace(findings, problems=(*unusable, *findings.problems), conditions=seconds)


def _spec(drift: Drift | None, root: Path, stream: str) -> WaymoSpec:
    found = _stream(root, stream)
    keys: Mapping[str, Any] = {} if drift is None else {"drift": drift}
    return WaymoSpec(root=root, location=found.location, camera=found.camera, **keys)


def _stream(root: Path, name: str) -> _Stream:
    found = _streams(root)[0].get(name)
    if found is None:
        raise UserError(f"{root}: has no stream '{name}' any more; survey it again.")
    return found


def _streams(root: Path) -> tuple[Mapping[str, _Stream], tuple[str, ...]]:
    """Returns a folder's streams by name, and a sentence for each missing segment or part of one."""
    if not find_segments(root):
        return {}, (
            f"{root}: has neither camera_image/*.parquet nor *.tfrecord, itself or in a folder in it",
        )
    everything, problems = describe_all(root)
    missing = [*problems]
    for segment in everything:
        missing.extend(_parts_missing(segment))
    of_place: dict[str, list[Segment]] = {}
    for segment in everything:
        if segment.facts.location:
            of_place.setdefault(segment.facts.location, []).append(segment)
    streams: dict[str, _Stream] = {}
    for location in sorted(of_place):
        segments = tuple(of_place[location])
        for camera in _cameras(segments):
            name = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{location}-{camera.lower()}")
            streams[name] = _Stream(location, camera, segments)
    return streams, tuple(missing)


def _cameras(segments: tuple[Segment, ...]) -> tuple[WaymoCamera, ...]:
    """Returns the cameras with pictures in any segment; unreadable segments are reported by ``examine``."""
    there: set[WaymoCamera] = set()
    for segment in segments:
        if len(there) == len(WaymoCamera):
            break
        with suppress(UserError):
            there |= set(segment.facts.cameras or segment_reader(segment.files).read_cameras())
    return tuple(camera for camera in WaymoCamera if camera in there)


def _parts_missing(segment: Segment) -> list[str]:
    files = segment.files
    if files.version == 1:
        return [] if segment.facts.location else [f"{files.images}: does not say where it was driven"]
    parts = (
        ("camera_box", files.boxes, "what its pictures show"),
        ("stats", files.stats, "where it was driven"),
    )
    folder = files.images.parent.parent
    return [
        f"{folder / component / files.images.name}: is not there, and says {what}"
        for component, path, what in parts
        if path is None
    ]


_IN_ORDER_OF_TIME = Dataset(
    name="waymo",
    title="Waymo Open Dataset, perception (version 2, or version 1 with camera labels)",
    licence=(
        "the Waymo Dataset License Agreement for Non-Commercial Use, which also binds models trained on the "
        "data; pictures may not be passed on"
    ),
    had_from=(
        "the Waymo Open Dataset site, waymo.com/open, after accepting the licence: of version 2.0.1 the "
        "folders camera_image, camera_box and stats of training and validation (387 GB), or any part of "
        "their segments"
    ),
    layout=(
        "{training,validation}/{camera_image,camera_box,stats}/SEGMENT.parquet (version 2), or "
        "{training,validation}/segment-SEGMENT_with_camera_labels.tfrecord (version 1)"
    ),
    classes_in=lambda root: CLASSES,
    survey=_survey,
    examine=partial(_examine, None),
    spec=partial(_spec, None),
)

WAYMO = replace(
    _IN_ORDER_OF_TIME,
    drifts={
        str(drift): replace(
            _IN_ORDER_OF_TIME,
            drift=str(drift),
            examine=partial(_examine, drift),
            spec=partial(_spec, drift),
        )
        for drift in Drift
    },
)
"""Both versions of the perception data."""
