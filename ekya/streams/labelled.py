"""Labelled pictures as a camera: what every data set of pictures with labels beside them becomes."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import US_PER_S
from ekya.streams.frame import Frame, Truth
from ekya.streams.picture_files import UnreadableError, read_picture
from ekya.streams.pictures import shrink

_log = logging.getLogger(__name__)

WHOLE = (0.0, 0.0, 65536.0, 65536.0)
"""The box of an object that fills its picture, however large that is: boxes are cut to the picture."""


class LabelledObject(NamedTuple):
    """An object of one frame: its class, and its box in pixels of the picture that was labelled."""

    name: str
    x0: float
    y0: float
    x1: float
    y1: float


@dataclass(frozen=True, slots=True)
class LabelledFrame:
    """One frame as its data set describes it.

    Attributes:
        place: where its picture is: a path that begins at the data set's root, or a number in a video,
            from 0.
        objects: of all classes that the data set knows.
        size: width and height of the picture that was labelled; None where it is the picture's own.
        problem: why it cannot be shown, with the name of the file; empty where nothing is known against it.
    """

    place: str | int
    objects: tuple[LabelledObject, ...] = ()
    size: tuple[int, int] | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A frame whose picture was looked for.

    Attributes:
        frame: as it was described.
        t_us: stream time.
        image: (H, W, 3) uint8 BGR; None where it cannot be shown.
        problem: why it cannot.
    """

    frame: LabelledFrame
    t_us: int
    image: NDArray[np.uint8] | None
    problem: str = ""


class Pictures(Protocol):
    """Where pictures come from."""

    @property
    def fps(self) -> float:
        """Frames a second of stream time."""

    def show(self, frames: Iterator[LabelledFrame]) -> Iterator[Shown]:
        """Each frame with its picture, in order, one at a time."""


@dataclass(frozen=True, slots=True)
class PictureFiles:
    """A file for each frame, at equal distances in time; also a frame that cannot be shown takes its time.

    Attributes:
        root: folder at which the frames' paths begin.
        fps: frames a second.
    """

    root: Path
    fps: float

    def show(self, frames: Iterator[LabelledFrame]) -> Iterator[Shown]:
        """Each frame with its picture."""
        for number, frame in enumerate(frames):
            t_us = round(number * US_PER_S / self.fps)
            path = self.root / str(frame.place)
            image, problem = None, frame.problem
            if not problem:
                try:
                    image = read_picture(path)
                except UnreadableError as error:
                    problem = f"{path}: {error}"
            yield Shown(frame, t_us, image, problem)


@dataclass(eq=False)
class LabelledSource:
    """A ``StreamSource`` of labelled frames, whose objects are given with their truth.

    No object is followed from frame to frame: each has a track of its own in each frame.

    Attributes:
        described: all frames in order, from the start at each call.
        pictures: where their pictures come from.
        class_of: number of each class of the fleet that the data set knows; other objects are left out.
        max_side: no side of a frame is longer, pixels.
        min_side: objects with a shorter side than this, in pixels of the picture that was labelled, are
            left out.
    """

    described: Callable[[], Iterator[LabelledFrame]]
    pictures: Pictures
    class_of: Mapping[str, int]
    max_side: int
    min_side: float = 0.0
    _damaged: int = field(default=0, init=False)
    _told: set[str] = field(default_factory=set, init=False)

    @property
    def fps(self) -> float:
        """Frames a second of stream time."""
        return self.pictures.fps

    @property
    def damaged(self) -> int:
        """Frames of the current pass that could not be shown."""
        return self._damaged

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """All frames that can be shown; each of the others is named in the log, once."""
        self._damaged = 0
        index = tracks = 0
        for shown in self.pictures.show(self.described()):
            if shown.image is None:
                self._damaged += 1
                self._tell(shown.problem)
                continue
            image = shrink(shown.image, self.max_side)
            labelled_size = shown.frame.size or _size(shown.image)
            boxes, classes = self._objects(shown.frame, labelled_size, _size(image))
            seen = np.all(boxes[:, 2:] - boxes[:, :2] >= 1.0, axis=1)
            boxes, classes = boxes[seen], classes[seen]
            truth = Truth(boxes, classes, np.arange(tracks, tracks + len(boxes), dtype=np.int64))
            yield Frame(index, shown.t_us, image, boxes.copy()), truth
            index += 1
            tracks += len(boxes)

    def _objects(
        self, frame: LabelledFrame, labelled: tuple[int, int], shown: tuple[int, int]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Boxes (N, 4), cut to the picture that is shown, and classes (N,) of the objects that count.

        Args:
            frame: what is to be seen.
            labelled, shown: width and height of the picture that was labelled, and of the one that is shown.
        """
        kept = [one for one in frame.objects if one.name in self.class_of and _side(one) >= self.min_side]
        boxes = np.array([one[1:] for one in kept], np.float64).reshape(-1, 4)
        scale = np.array((shown[0] / labelled[0], shown[1] / labelled[1]) * 2)
        cut = np.clip(boxes * scale, 0.0, np.array((*shown, *shown), np.float64)).astype(np.float32)
        return cut, np.array([self.class_of[one.name] for one in kept], np.int64)

    def _tell(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            _log.warning("%s; its frame is left out", problem)


def _side(one: LabelledObject) -> float:
    """The shorter side of a box, pixels."""
    return min(one.x1 - one.x0, one.y1 - one.y0)


def _size(image: NDArray[np.uint8]) -> tuple[int, int]:
    return image.shape[1], image.shape[0]
