"""What both versions of the Waymo Open Dataset are read into: one camera's pictures with their labels."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class Camera(StrEnum):
    """A camera of the car."""

    FRONT = "FRONT"
    FRONT_LEFT = "FRONT_LEFT"
    FRONT_RIGHT = "FRONT_RIGHT"
    SIDE_LEFT = "SIDE_LEFT"
    SIDE_RIGHT = "SIDE_RIGHT"

    @property
    def number(self) -> int:
        """As the data set counts them."""
        return tuple(Camera).index(self) + 1


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """Where one segment, about 20 seconds of driving, lies.

    Attributes:
        name: as the data set calls it (``context.name``).
        version: 1 (one ``.tfrecord``) or 2 (Parquet, a file each for pictures, boxes and statistics).
        images: the file with the pictures; of version 1 the only one.
        boxes, stats: version 2's others; None where they are not there.
    """

    name: str
    version: int
    images: Path
    boxes: Path | None = None
    stats: Path | None = None


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What a segment says of itself.

    Attributes:
        location: such as ``location_sf``; empty where nothing says so.
        time_of_day: ``Day``, ``Dawn/Dusk`` or ``Night``; empty where nothing says so.
        first_us: when its first frame was taken, microseconds since 1970.
        frames: how many frames it has at most; None where only reading all of it would tell.
    """

    location: str
    time_of_day: str
    first_us: int
    frames: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """What people drew in one picture.

    Attributes:
        boxes: (N, 4) float64, x0 y0 x1 y1 in pixels of the picture; may reach beyond it.
        types: (N,) int64, the data set's number of what it is.
        objects: N names; an object keeps its name from frame to frame within its segment and camera.
    """

    boxes: NDArray[np.float64]
    types: NDArray[np.int64]
    objects: tuple[str, ...]


NO_LABELS = Labels(np.zeros((0, 4)), np.zeros(0, np.int64), ())


@dataclass(frozen=True, slots=True, eq=False)
class Shot:
    """One picture of one camera.

    Attributes:
        timestamp_us: of its frame, microseconds since 1970.
        jpeg: the picture as it was stored.
        labels: of this picture.
    """

    timestamp_us: int
    jpeg: bytes
    labels: Labels


@dataclass(frozen=True, slots=True)
class Lost:
    """A frame that cannot be shown.

    Attributes:
        why: which it is and what is wrong with it, as the end of a sentence.
        frames: how many; 1 where nobody can know, as of all that lies behind a broken place.
    """

    why: str
    frames: int = 1


def edges(centres: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Boxes (N, 4) x0 y0 x1 y1 from centres (N, 2) and sizes (N, 2), x first."""
    return np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)
