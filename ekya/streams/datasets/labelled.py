"""Camera of labelled pictures, which every data set of pictures with labels is turned into."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import US_PER_S
from ekya.streams.ingest.frame import Frame, Truth
from ekya.streams.ingest.pictures import UnreadableError, read_picture, shrink

_log = logging.getLogger(__name__)

WHOLE = (0.0, 0.0, 65536.0, 65536.0)
"""Box of an object that fills a picture of any size: boxes are cut to the picture."""


class LabelledObject(NamedTuple):
    """An object of one frame: its class, and its box in pixels of the labelled picture."""

    name: str
    x0: float
    y0: float
    x1: float
    y1: float


@dataclass(frozen=True, slots=True)
class LabelledFrame:
    """A frame with its labels, without its pixels.

    Attributes:
        place: location of the picture: a path relative to the data set's root, or a frame number in a video,
            from 0.
        objects: objects of all classes of the data set.
        size: width and height of the picture that was labelled; None if it is the stored picture itself.
        problem: why the frame cannot be shown, with the file's name; empty if no problem was found.
    """

    place: str | int
    objects: tuple[LabelledObject, ...] = ()
    size: tuple[int, int] | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A labelled frame with its picture.

    Attributes:
        frame: the labelled frame.
        t_us: stream time, microseconds.
        image: (H, W, 3) uint8 BGR; None if it was not read or cannot be shown.
        problem: why the frame cannot be shown; empty if it can.
    """

    frame: LabelledFrame
    t_us: int
    image: NDArray[np.uint8] | None
    problem: str = ""


class Pictures(Protocol):
    """Reads the pictures of labelled frames."""

    @property
    def fps(self) -> float:
        """Frames a second of stream time."""

    def show(self, frames: Iterator[LabelledFrame]) -> Iterator[Shown]:
        """Yields each frame with its picture, in order, one at a time."""


@dataclass(frozen=True, slots=True)
class PictureFiles:
    """Reads one file for each frame, equally spaced in time; frames that cannot be shown keep their time.

    Attributes:
        root: folder that the frames' paths are relative to.
        fps: frames a second.
    """

    root: Path
    fps: float

    def show(self, frames: Iterator[LabelledFrame]) -> Iterator[Shown]:
        """Yields each frame with its picture."""
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
    """A ``StreamSource`` of labelled frames that proposes their objects and gives the truth.

    Objects are not tracked: each object of each frame has a separate track.

    Attributes:
        described: returns all frames in order, from the start at each call.
        pictures: reader of the frames' pictures.
        class_of: number of each class of the fleet that the data set has; other objects are left out.
        max_side: longest side of a frame, pixels; larger pictures are scaled down.
        min_side: objects with a shorter side than this, in pixels of the labelled picture, are left out.
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
        """Number of frames of the current pass that could not be shown."""
        return self._damaged

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields all frames that can be shown; logs each of the others once."""
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
        """Returns boxes (N, 4), cut to the shown picture, and classes (N,) of the objects that count.

        Args:
            frame: frame with its objects.
            labelled, shown: width and height of the labelled picture, and of the shown one.
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
    """Returns the shorter side of a box, pixels."""
    return min(one.x1 - one.x0, one.y1 - one.y0)


def _size(image: NDArray[np.uint8]) -> tuple[int, int]:
    return image.shape[1], image.shape[0]
