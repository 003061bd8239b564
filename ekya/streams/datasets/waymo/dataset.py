"""Waymo Open Dataset: one camera's segments as a stream, and as a data set of ``ekya prepare``."""

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ekya.core.errors import UserError
from ekya.core.unique_tuple import require_distinct
from ekya.streams.datasets.dataset import Dataset, StreamFindings, Survey
from ekya.streams.datasets.labelled import LabelledSource, examine_source
from ekya.streams.datasets.waymo.catalogue import (
    Segment,
    describe_all,
    describe_segments,
    find_segments,
    read_index,
    segment_reader,
    usable_segments,
    write_index,
)
from ekya.streams.datasets.waymo.scan import FPS, show_segments
from ekya.streams.datasets.waymo.shots import CLASSES, WaymoCamera, number_classes
from ekya.system.files import FolderPath

_log = logging.getLogger(__name__)


class WaymoSpec(BaseModel):
    """A camera of the car in a fleet file, over some segments or all segments of a location.

    Attributes:
        root: folder with ``camera_image/`` and ``camera_box/`` (version 2) or ``.tfrecord`` files (version
            1), or with folders that have them, such as ``training``.
        segments: names in the data set (``context.name``); they play in chronological order.
        location: instead of ``segments``: all segments of a location, such as ``location_sf``.
        camera: camera of the car.
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
    root: Path, stream: str, classes: tuple[str, ...], index: Path, on_frame: Callable[[], None]
) -> StreamFindings:
    found = _stream(root, stream)
    usable, unusable = usable_segments(found.segments, found.camera)
    if not usable:
        raise UserError(f"{root}: no segment of {stream} can be used; the first: {unusable[0]}")
    shown = partial(show_segments, usable, found.camera, _LONGEST_SIDE)
    source = LabelledSource(shown, FPS, number_classes(classes), _LONGEST_SIDE)
    findings = examine_source(source, classes, on_frame)
    write_index(index, root, usable)
    return replace(findings, problems=(*unusable, *findings.problems))


def _spec(root: Path, stream: str) -> WaymoSpec:
    found = _stream(root, stream)
    return WaymoSpec(root=root, location=found.location, camera=found.camera)


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
            there |= set(segment_reader(segment.files).read_cameras())
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


WAYMO = Dataset(
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
    examine=_examine,
    spec=_spec,
)
"""Both versions of the perception data."""
