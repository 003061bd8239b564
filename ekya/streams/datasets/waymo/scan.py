"""Reads the frames of segments for one camera ahead, each decoded or with the reason why it is lost."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.streams.datasets.waymo.catalogue import Segment, version_of
from ekya.streams.datasets.waymo.shots import Camera, Labels, Lost, Shot
from ekya.streams.ingest.pictures import Picture, decode_jpeg

_Item = TypeVar("_Item")


class _End:
    """Sentinel behind the last item."""


_END = _End()


def read_ahead(items: Generator[_Item, None, None], count: int) -> Generator[_Item, None, None]:
    """Yields the same items in the same order, up to ``count`` of them made in advance.

    An exception of the generator is raised where its item would have come. Closing this iterator also closes
    the generator, once the item in progress is made.
    """
    with ThreadPoolExecutor(1, "read-ahead") as pool:
        coming: deque[Future[_Item | _End]] = deque(pool.submit(next, items, _END) for _ in range(count))
        try:
            while not isinstance(item := coming.popleft().result(), _End):
                coming.append(pool.submit(next, items, _END))
                yield item
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            items.close()


FPS = 10.0
"""Frames a second of the data set's cameras."""

FRAME_US = round(US_PER_S / FPS)

# A segment is 20 seconds long; a step of over a minute is a damaged time, and would stop a paced stream.
_LONGEST_STEP_US = 60 * US_PER_S
_SMALLEST_SIDE = 1.0
# Two seconds of pictures, 7 MB: covers the time that unpacking the next row group of version 2 takes.
_READ_AHEAD = 20

_Shots = Generator[tuple[Segment, Shot | Lost], None, None]


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A frame that can be shown.

    Attributes:
        picture: decoded picture, at most of the requested size.
        labels: labels in pixels of the stored picture.
        step_us: stream time since the frame before it, microseconds; one frame for a segment's first.
    """

    picture: Picture
    labels: Labels
    step_us: int

    def boxes(self, known: Mapping[int, int]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Returns boxes in the picture and their rows in the labels; see ``fit``."""
        height, width = self.picture.image.shape[:2]
        return fit(self.labels, self.picture.scale, (width, height), known)


def shots_of(segments: Sequence[Segment], camera: Camera) -> _Shots:
    """Yields all pictures of a camera, segment by segment, from a thread that reads ahead.

    A file that disappeared or broke since its facts were read becomes a ``Lost``.
    """
    with closing(read_ahead(_shots_of(segments, camera), _READ_AHEAD)) as ahead:
        yield from ahead


def _shots_of(segments: Sequence[Segment], camera: Camera) -> _Shots:
    for segment in segments:
        try:
            for shot in version_of(segment.files).shots(segment.files, camera):
                yield segment, shot
        except (UserError, OSError) as error:
            yield segment, Lost(f"the rest of the segment: {error}")


def scan(shots: Iterable[Shot | Lost], max_side: int) -> Iterator[Shown | Lost]:
    """Yields every frame of one segment, decoded, or ``Lost`` if it cannot be shown."""
    last_us: int | None = None
    for shot in shots:
        if isinstance(shot, Lost):
            yield shot
            continue
        step_us = FRAME_US if last_us is None else shot.timestamp_us - last_us
        if not 0 < step_us <= _LONGEST_STEP_US:
            yield Lost(f"frame {shot.timestamp_us}: its time does not follow that of the one before")
        elif (picture := decode_jpeg(shot.jpeg, max_side)) is None:
            yield Lost(f"frame {shot.timestamp_us}: its image cannot be decoded")
        else:
            last_us = shot.timestamp_us
            yield Shown(picture, shot.labels, step_us)


def fit(
    labels: Labels, scale: NDArray[np.float64], size: tuple[int, int], known: Mapping[int, int]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Converts labels to boxes in a frame.

    Args:
        labels: labels in pixels of the stored picture.
        scale: (4,) factors from stored pixels to the frame's.
        size: the frame's width and height in pixels; boxes are cut at its edges.
        known: types to keep, as keys.

    Returns:
        (N, 4) float32, x0 y0 x1 y1 in pixels; and (N,) int64, their rows in the labels. Boxes that are
        smaller than a pixel, outside the frame, or NaN are left out.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        boxes = (labels.boxes * scale).astype(np.float32)
        boxes = np.clip(boxes, 0, np.array([*size, *size], np.float32))
        # NaN compares as false.
        seen = np.all(boxes[:, 2:] - boxes[:, :2] >= _SMALLEST_SIDE, axis=1)
    seen &= np.isin(labels.types, list(known))
    # One object has one box in a picture; where a damaged file has two, the first counts.
    rows = {labels.objects[row]: row for row in reversed(np.flatnonzero(seen).tolist())}
    kept = np.array(sorted(rows.values()), np.int64)
    return boxes[kept], kept
