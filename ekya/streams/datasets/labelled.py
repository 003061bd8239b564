"""Labelled pictures as a stream: the source that every data set of pictures with labels becomes."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import FiniteFloat, PositiveInt

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.streams.datasets.dataset import OnFrame, StreamFindings
from ekya.streams.ingest.frame import Frame, Truth
from ekya.streams.ingest.pictures import UnreadableError, read_picture, shrink_frame

_log = logging.getLogger(__name__)

WHOLE = (0.0, 0.0, 65536.0, 65536.0)
"""Box of an object that fills a picture of any size: boxes are cut to the picture."""


class LabelledObject(NamedTuple):
    """An object of one frame: its class, and its box in pixels of the labelled picture."""

    name: str
    x0: FiniteFloat
    y0: FiniteFloat
    x1: FiniteFloat
    y1: FiniteFloat


@dataclass(frozen=True, slots=True)
class LabelledFrame:
    """A frame with its labels, without its pixels.

    Attributes:
        place: location of the picture: a path relative to the data set's root, or a number in a video or
            segment.
        objects: objects of all classes of the data set.
        size: width and height of the picture that was labelled; None if it is the stored picture itself.
        problem: why the frame cannot be shown, after the file's name and a colon; empty if it can.
        tracks: names of the objects, which last from frame to frame; empty if objects are not tracked.
        lasts: stream time until the next frame, as a part of the usual time of the data set.
    """

    place: str | int
    objects: tuple[LabelledObject, ...] = ()
    size: tuple[PositiveInt, PositiveInt] | None = None
    problem: str = ""
    tracks: tuple[str, ...] = ()
    lasts: float = 1.0


Frames = Callable[[], Iterator[LabelledFrame]]
"""Returns all frames of a stream in order, from the start at each call."""


@dataclass(frozen=True, slots=True, eq=False)
class ShownFrame:
    """A labelled frame with its picture.

    Attributes:
        frame: the labelled frame.
        t_us: stream time, microseconds.
        image: (H, W, 3) uint8 BGR; None if the frame has a problem.
        count: number of frames that a frame with a problem stands for.
    """

    frame: LabelledFrame
    t_us: int
    image: NDArray[np.uint8] | None
    count: int = 1


def show_files(root: Path, fps: float, frames: Frames) -> Iterator[ShownFrame]:
    """Yields each frame with its picture file, also those that cannot be shown.

    They are equally spaced in time, ``fps`` a second, but for those that last less or longer.
    """
    at = 0.0
    for frame in frames():
        t_us = round(at * US_PER_S / fps)
        at += frame.lasts
        path = root / str(frame.place)
        problem = frame.problem
        if not problem:
            try:
                yield ShownFrame(frame, t_us, read_picture(path))
                continue
            except UnreadableError as error:
                problem = f"{path}: {error}"
        yield ShownFrame(LabelledFrame(frame.place, problem=problem, lasts=frame.lasts), t_us, None)


@dataclass(eq=False)
class LabelledSource:
    """A ``StreamSource`` of labelled frames that proposes their objects and gives the truth.

    Each object of a frame without track names has a track of its own.

    Attributes:
        show: returns all frames in order, from the start at each call.
        fps: frames a second of stream time.
        class_of: number of each class of the fleet that the data set has; other objects are left out.
        max_side: longest side of a frame, pixels; larger pictures are scaled down.
        min_side: objects with a shorter side than this, in pixels of the labelled picture, are left out.
        damaged: number of frames of the current pass that could not be shown.
    """

    show: Callable[[], Iterator[ShownFrame]]
    fps: float
    class_of: Mapping[str, int]
    max_side: int
    min_side: float = 0.0
    damaged: int = field(default=0, init=False)
    _logged: set[str] = field(default_factory=set, init=False)

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields all frames that can be shown; logs the first problem of each file once."""
        self.damaged = 0
        index = tracked = 0
        numbers: dict[str, int] = {}
        for shown in self.show():
            if shown.image is None:
                self.damaged += shown.count
                self._log(shown.frame.problem)
                continue
            image = shrink_frame(shown.image, self.max_side)
            boxes, classes, rows = self.select_objects(shown.frame, shown.image, image)
            tracks = np.arange(tracked, tracked + len(rows), dtype=np.int64)
            if shown.frame.tracks:
                names = [shown.frame.tracks[row] for row in rows]
                new = dict.fromkeys(name for name in names if name not in numbers)
                numbers |= zip(new, tracks.tolist(), strict=False)
                tracks = np.array([numbers[name] for name in names], np.int64)
                tracked += len(new)
            else:
                tracked += len(rows)
            # A copy, so that nothing that is done to the frame changes its truth.
            yield Frame(index, shown.t_us, image, boxes.copy()), Truth(boxes, classes, tracks)
            index += 1

    def select_objects(
        self, frame: LabelledFrame, stored: NDArray[np.uint8], image: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], list[int]]:
        """Returns the objects that count: of the fleet's classes, large enough and in the frame.

        Args:
            frame: frame with its labels.
            stored, image: picture as it was read, and as it is shown.

        Returns:
            Boxes (N, 4) in pixels of ``image``, cut to it; classes (N,); their N rows in ``frame.objects``.
        """
        rows = [row for row, one in enumerate(frame.objects) if self.counts_object(one)]
        labelled = np.array(frame.size or stored.shape[1::-1], np.float64)
        size = np.array(image.shape[1::-1], np.float64)
        boxes = np.array([frame.objects[row][1:] for row in rows], np.float64).reshape(-1, 4)
        # A label may be a number that float32 does not hold.
        with np.errstate(over="ignore", invalid="ignore"):
            cut = np.clip(boxes * np.tile(size / labelled, 2), 0.0, np.tile(size, 2)).astype(np.float32)
            # NaN compares as false.
            kept = np.flatnonzero(np.all(cut[:, 2:] - cut[:, :2] >= 1.0, axis=1)).tolist()
        if frame.tracks:
            # A tracked object has one box in a picture; where a damaged file has two, the first counts.
            kept = sorted({frame.tracks[rows[at]]: at for at in reversed(kept)}.values())
        rows = [rows[at] for at in kept]
        classes = np.array([self.class_of[frame.objects[row].name] for row in rows], np.int64)
        return cut[kept], classes, rows

    def counts_object(self, one: LabelledObject) -> bool:
        """Returns whether an object is of the fleet's classes and large enough."""
        return one.name in self.class_of and min(one.x1 - one.x0, one.y1 - one.y0) >= self.min_side

    def _log(self, problem: str) -> None:
        file = problem.partition(": ")[0]
        if file not in self._logged:
            self._logged.add(file)
            _log.warning("%s; its frame is left out", problem)


def examine_source(
    source: LabelledSource,
    classes: tuple[str, ...],
    on_frame: OnFrame,
    record: Callable[[LabelledFrame], None] = lambda frame: None,
) -> StreamFindings:
    """Reads every picture and label of a stream.

    Args:
        source: the stream.
        classes: the fleet's classes.
        on_frame: called after each frame with its objects.
        record: takes each frame, with its problem if it has one.

    Raises:
        UserError: most boxes are outside of their pictures.
    """
    objects: Counter[str] = Counter()
    problems: list[str] = []
    good, duration_us, listed = 0, 0.0, 0
    for shown in source.show():
        record(shown.frame)
        duration_us = shown.t_us + US_PER_S / source.fps
        if shown.image is None:
            problems.append(shown.frame.problem)
            on_frame(None)
            continue
        good += 1
        image = shrink_frame(shown.image, source.max_side)
        listed += sum(map(source.counts_object, shown.frame.objects))
        boxes, numbers, _ = source.select_objects(shown.frame, shown.image, image)
        objects.update(classes[number] for number in numbers)
        on_frame((boxes, numbers))
    if objects.total() * 2 < listed:
        raise UserError(
            f"{listed - objects.total()} of {listed} boxes lie outside of their pictures, or are smaller "
            "than a pixel; write x0, y0, x1, y1 in pixels of the pictures"
        )
    return StreamFindings(
        good, round(duration_us / US_PER_S, 6), dict(sorted(objects.items())), tuple(problems)
    )
