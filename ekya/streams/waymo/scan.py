"""A segment read for one camera: each frame as it can be shown, or why it cannot."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import US_PER_S
from ekya.errors import UserError
from ekya.streams.ahead import read_ahead
from ekya.streams.pictures import Picture, decode_jpeg
from ekya.streams.waymo.catalogue import Segment, version_of
from ekya.streams.waymo.shots import Camera, Labels, Lost, Shot

FPS = 10.0
"""The data set's cameras take ten pictures a second."""

FRAME_US = round(US_PER_S / FPS)

# A segment is 20 seconds long; a step that is longer is a broken number, and would stop a paced stream.
_LONGEST_STEP_US = 60 * US_PER_S
_SMALLEST_SIDE = 1.0
# Two seconds of pictures, 7 MB: as long as the next row group of version 2 takes to be unpacked.
_READ_AHEAD = 20

_Shots = Generator[tuple[Segment, Shot | Lost], None, None]


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A frame that can be shown.

    Attributes:
        picture: no larger than was asked for.
        labels: in pixels of the picture as it was stored.
        step_us: stream time since the frame before it; of a segment's first, one frame.
    """

    picture: Picture
    labels: Labels
    step_us: int

    def boxes(self, known: Mapping[int, int]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Boxes in the picture, and which rows of the labels they are, as ``fit`` says."""
        height, width = self.picture.image.shape[:2]
        return fit(self.labels, self.picture.scale, (width, height), known)


def shots_of(segments: Sequence[Segment], camera: Camera) -> _Shots:
    """All that the segments hold of a camera, in their order, by a thread that reads ahead.

    A file that went away or broke since it was looked into is one more thing that is lost.
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
    """Every frame of one segment, as far as it can be shown."""
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
