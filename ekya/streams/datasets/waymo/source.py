"""Segments of the Waymo Open Dataset as the stream of one camera, with labels as ground truth."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ekya.core.errors import UserError
from ekya.core.unique_tuple import distinct
from ekya.streams.datasets.waymo.catalogue import (
    Segment,
    find_segments,
    look_into,
    look_into_all,
    read_index,
    usable_segments,
    version_of,
)
from ekya.streams.datasets.waymo.scan import FPS, FRAME_US, Shown, scan, shots_of
from ekya.streams.datasets.waymo.shots import Camera, Lost, Shot, class_of_type
from ekya.streams.ingest.frame import Frame, StreamSource, Truth
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
    segments: Annotated[tuple[str, ...], AfterValidator(distinct)] = ()
    location: str | None = None
    camera: Camera = Camera.FRONT
    index: Path | None = None
    max_side: int = Field(default=640, ge=32)

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        if bool(self.segments) == (self.location is not None):
            raise ValueError("write either segments or location")
        return self

    def open(self, classes: tuple[str, ...]) -> StreamSource:
        """Opens the source, whose truth is in the fleet's classes.

        With an index no segment is read. Without one, the time of each segment is read, and whether it has
        pictures and labels of the camera; for a location, the location of every segment of the root is read.

        Raises:
            UserError: the data set does not have a class; a file is missing or cannot be read; a segment has
                no pictures or labels of the camera.
        """
        known = class_of_type(classes)
        if self.index is not None:
            chosen = self._indexed(self.index)
        elif self.location is not None:
            chosen = self._at(self.location)
        else:
            chosen = self._named()
        return WaymoSource(chosen, self.camera, known, self.max_side)

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
        chosen = look_into([there[name] for name in self.segments])
        for segment in chosen:
            version_of(segment.files).check(segment.files, self.camera)
        return chosen

    def _at(self, location: str) -> tuple[Segment, ...]:
        everything, problems = look_into_all(self.root)
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
        unread = f" ({len(problems)} could not be looked into; the first: {problems[0]})" if problems else ""
        raise UserError(
            f"{self.root}: has no segment of location '{location}', the key 'location'{unread}; {remedy}."
        )


@dataclass(eq=False)
class WaymoSource:
    """``StreamSource``, with truth, of segments that play in sequence.

    Within a segment, stream time follows the frames' time stamps; the next segment begins a tenth of a second
    after the last frame, regardless of the real gap (paper §6.1).

    Attributes:
        segments: segments, in the order in which they play.
        camera: camera of the car.
        known: index into the fleet's classes by type; objects of other types are left out.
        max_side: longest side of a frame, pixels; larger frames are scaled down.
    """

    segments: tuple[Segment, ...]
    camera: Camera
    known: Mapping[int, int]
    max_side: int
    _damaged: int = field(default=0, init=False)

    @property
    def fps(self) -> float:
        """Frames a second, the same for all cameras of the data set."""
        return FPS

    @property
    def damaged(self) -> int:
        """Number of frames of the current pass that lack a picture or labels or cannot be read."""
        return self._damaged

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields all frames that can be shown; counts the others, and logs them once a segment."""
        self._damaged = 0
        index, tracks, start_us = 0, 0, 0
        with closing(shots_of(self.segments, self.camera)) as everything:
            for segment, shots in groupby(everything, key=itemgetter(0)):
                numbers: dict[str, int] = {}
                t_us = start_us - FRAME_US
                for shown in self._shown(segment, (shot for _, shot in shots)):
                    t_us += shown.step_us
                    truth = self._truth(shown, numbers, tracks)
                    yield Frame(index, t_us, shown.picture.image, truth.boxes), truth
                    index += 1
                start_us = t_us + FRAME_US
                tracks += len(numbers)

    def _truth(self, shown: Shown, numbers: dict[str, int], first: int) -> Truth:
        """Returns a frame's truth; ``numbers`` holds the segment's track numbers, counted from ``first``."""
        boxes, rows = shown.boxes(self.known)
        classes = [self.known[kind] for kind in shown.labels.types[rows].tolist()]
        names = [shown.labels.objects[row] for row in rows.tolist()]
        tracks = [first + numbers.setdefault(name, len(numbers)) for name in names]
        return Truth(boxes, np.array(classes, np.int64), np.array(tracks, np.int64))

    def _shown(self, segment: Segment, shots: Iterable[Shot | Lost]) -> Iterator[Shown]:
        """Yields a segment's frames that can be shown; counts the others, and logs them at the end."""
        lost: list[Lost] = []
        try:
            for one in scan(shots, self.max_side):
                if isinstance(one, Lost):
                    lost.append(one)
                    self._damaged += one.frames
                else:
                    yield one
        finally:
            if lost:
                frames = sum(one.frames for one in lost)
                _log.warning(
                    "%s: %d frames are left out, the first is %s", segment.files.images, frames, lost[0].why
                )
