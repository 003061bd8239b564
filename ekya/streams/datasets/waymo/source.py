"""Segments of the Waymo Open Dataset as the stream of one camera in a fleet file."""

import logging
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ekya.core.errors import UserError
from ekya.core.unique_tuple import require_distinct
from ekya.streams.datasets.labelled import LabelledSource
from ekya.streams.datasets.waymo.catalogue import (
    Segment,
    describe_all,
    describe_segments,
    find_segments,
    read_index,
    segment_reader,
    usable_segments,
)
from ekya.streams.datasets.waymo.scan import FPS, show_segments
from ekya.streams.datasets.waymo.shots import Camera, number_classes
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
    camera: Camera = Camera.FRONT
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
