"""Segments of the Waymo Open Dataset as one camera's stream: pictures, and what was drawn in them."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ekya.core.units import US_PER_S
from ekya.errors import UserError
from ekya.files import FolderPath
from ekya.streams.frame import Frame, StreamSource, Truth
from ekya.streams.pictures import Picture, decode_jpeg
from ekya.streams.waymo.catalogue import VERSIONS, Segment, find_segments, look_into, look_into_all
from ekya.streams.waymo.classes import class_of_type
from ekya.streams.waymo.shots import Camera, Labels, Lost, Shot

_log = logging.getLogger(__name__)

_FPS = 10.0
_FRAME_US = round(US_PER_S / _FPS)
# A segment is 20 seconds long; a step that is longer is a broken number, and would stop a paced stream.
_LONGEST_STEP_US = 60 * US_PER_S
_SMALLEST_SIDE = 1.0


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) != len(names):
        raise ValueError("a segment stands there twice; keep one of them")
    return names


class WaymoSpec(BaseModel):
    """A camera of the car, as a fleet file describes it: some segments, or all of a location.

    Attributes:
        root: folder with ``camera_image/`` and ``camera_box/`` (version 2) or ``.tfrecord`` files (version
            1), or with folders that have them, such as ``training``.
        segments: names, as the data set has them (``context.name``); they play in the order of time.
        location: instead of ``segments``: all segments of a place, such as ``location_sf``.
        camera: which of the car's.
        max_side: longer frames are scaled down, in proportion, until no side is longer; pixels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gives_truth: ClassVar[bool] = True
    live: ClassVar[bool] = False

    kind: Literal["waymo"] = "waymo"
    root: FolderPath
    segments: Annotated[tuple[str, ...], AfterValidator(_distinct)] = ()
    location: str | None = None
    camera: Camera = Camera.FRONT
    max_side: int = Field(default=640, ge=32)

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        if bool(self.segments) == (self.location is not None):
            raise ValueError("write either segments or location")
        return self

    def open(self, classes: tuple[str, ...]) -> StreamSource:
        """The source, whose truth is in the fleet's classes.

        Looks into every segment, but at no picture. Named segments open faster than a location: for that,
        every segment of the root is asked where it was driven.

        Raises:
            UserError: a class that the data set does not know; a file that is missing or cannot be read; a
                segment without pictures or labels of the camera.
        """
        known = class_of_type(classes)
        chosen = self._named() if self.location is None else self._at(self.location)
        return WaymoSource(chosen, self.camera, known, self.max_side)

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
            VERSIONS[segment.files.version].check(segment.files, self.camera)
        return chosen

    def _at(self, location: str) -> tuple[Segment, ...]:
        everything, problems = look_into_all(self.root)
        here = [segment for segment in everything if segment.facts.location == location]
        usable, unusable = _usable(here, self.camera)
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
        raise UserError(
            f"{self.root}: has no segment of location '{location}', the key 'location'; {remedy}."
        )


def _usable(segments: Sequence[Segment], camera: Camera) -> tuple[tuple[Segment, ...], tuple[str, ...]]:
    """Those that have pictures and labels of the camera; and a sentence for each that has not."""
    usable, problems = [], []
    for segment in segments:
        try:
            VERSIONS[segment.files.version].check(segment.files, camera)
        except UserError as error:
            problems.append(str(error))
        else:
            usable.append(segment)
    return tuple(usable), tuple(problems)


@dataclass(eq=False)
class WaymoSource:
    """Segments that play one after the other. A ``StreamSource`` with truth.

    Stream time is that of the frames' own time stamps within a segment; the next one follows a tenth of a
    second behind, whatever lies between them in truth (paper §6.1).

    Attributes:
        segments: in the order in which they play.
        camera: whose pictures.
        known: index into the fleet's classes by type; objects of other types are left out.
        max_side: no side of a frame is longer, pixels.
    """

    segments: tuple[Segment, ...]
    camera: Camera
    known: Mapping[int, int]
    max_side: int
    _damaged: int = field(default=0, init=False)

    @property
    def fps(self) -> float:
        """The data set's cameras take ten pictures a second."""
        return _FPS

    @property
    def damaged(self) -> int:
        """Frames of the current pass without a picture or labels, or that cannot be read."""
        return self._damaged

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """All frames that can be shown; the others are counted, and named in the log once a segment."""
        self._damaged = 0
        index, tracks, start_us = 0, 0, 0
        for segment in self.segments:
            numbers: dict[str, int] = {}
            t_us = start_us - _FRAME_US
            for shot, picture, step_us in self._usable(segment):
                t_us += step_us
                height, width = picture.image.shape[:2]
                boxes, rows = fit(shot.labels, picture.scale, (width, height), self.known)
                classes = np.array([self.known[kind] for kind in shot.labels.types[rows].tolist()], np.int64)
                own = [
                    tracks + numbers.setdefault(shot.labels.objects[row], len(numbers))
                    for row in rows.tolist()
                ]
                truth = Truth(boxes, classes, np.array(own, np.int64))
                yield Frame(index, t_us, picture.image, boxes), truth
                index += 1
            start_us = t_us + _FRAME_US
            tracks += len(numbers)

    def _usable(self, segment: Segment) -> Iterator[tuple[Shot, Picture, int]]:
        """A segment's pictures, each with the stream time since the one before it; the rest is counted."""
        lost: list[Lost] = []
        last_us: int | None = None
        try:
            for shot in _shots(segment, self.camera):
                picture = None
                if isinstance(shot, Lost):
                    problem = shot
                elif last_us is not None and not 0 < shot.timestamp_us - last_us <= _LONGEST_STEP_US:
                    problem = Lost(
                        f"frame {shot.timestamp_us}: its time does not follow that of the one before"
                    )
                elif (picture := decode_jpeg(shot.jpeg, self.max_side)) is None:
                    problem = Lost(f"frame {shot.timestamp_us}: its image cannot be decoded")
                else:
                    step_us = _FRAME_US if last_us is None else shot.timestamp_us - last_us
                    last_us = shot.timestamp_us
                    yield shot, picture, step_us
                    continue
                lost.append(problem)
                self._damaged += problem.frames
        finally:
            if lost:
                frames = sum(one.frames for one in lost)
                _log.warning(
                    "%s: %d frames are left out, the first is %s", segment.files.images, frames, lost[0].why
                )


def _shots(segment: Segment, camera: Camera) -> Iterator[Shot | Lost]:
    """A file that went away or broke since it was looked into is one more thing that is lost."""
    try:
        yield from VERSIONS[segment.files.version].shots(segment.files, camera)
    except (UserError, OSError) as error:
        yield Lost(f"the rest of the segment: {error}")


def fit(
    labels: Labels, scale: NDArray[np.float64], size: tuple[int, int], known: Mapping[int, int]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Labels as boxes in a frame.

    Args:
        labels: as they were drawn.
        scale: (4,) of the frame's pixels to those that they were drawn in.
        size: the frame's width and height in pixels; boxes are cut at its edges.
        known: types that count.

    Returns:
        (N, 4) float32, x0 y0 x1 y1 in pixels; and (N,) int64, which rows of the labels these are. What is
        smaller than a pixel, outside the frame, or no number is left out.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        boxes = (labels.boxes * scale).astype(np.float32)
        boxes = np.clip(boxes, 0, np.array([*size, *size], np.float32))
        # What is not a number compares as false.
        seen = np.all(boxes[:, 2:] - boxes[:, :2] >= _SMALLEST_SIDE, axis=1)
    seen &= np.isin(labels.types, list(known))
    # One object has one box in a picture; where a damaged file has two, the first counts.
    rows = {labels.objects[row]: row for row in reversed(np.flatnonzero(seen).tolist())}
    kept = np.array(sorted(rows.values()), np.int64)
    return boxes[kept], kept
