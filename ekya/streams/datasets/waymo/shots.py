"""Common types of both versions of the Waymo Open Dataset: one camera's pictures with labels, and classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.core.objects import BACKGROUND


class WaymoCamera(StrEnum):
    """A camera of the car."""

    FRONT = "FRONT"
    FRONT_LEFT = "FRONT_LEFT"
    FRONT_RIGHT = "FRONT_RIGHT"
    SIDE_LEFT = "SIDE_LEFT"
    SIDE_RIGHT = "SIDE_RIGHT"

    @property
    def number(self) -> int:
        """Number in the data set, from 1."""
        return tuple(WaymoCamera).index(self) + 1


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """Files of one segment, which is about 20 seconds of driving.

    Attributes:
        name: name in the data set (``context.name``).
        version: 1 (one ``.tfrecord``) or 2 (Parquet, a file each for pictures, boxes and statistics).
        images: file with the pictures; the only one in version 1.
        boxes, stats: the other files of version 2; None if missing.
    """

    name: str
    version: int
    images: Path
    boxes: Path | None = None
    stats: Path | None = None


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """Metadata of a segment.

    Attributes:
        location: location, such as ``location_sf``; empty if not given.
        time_of_day: ``Day``, ``Dawn/Dusk`` or ``Night``; empty if not given.
        first_us: time of the first frame, microseconds since 1970.
        frames: upper bound on the number of frames; None if that takes reading the whole segment.
        weather: ``sunny`` or ``rain``; empty if not given.
        cameras: with pictures; empty if that takes reading another file.
    """

    location: str
    time_of_day: str
    first_us: int
    frames: int | None = None
    weather: str = ""
    cameras: tuple[WaymoCamera, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ShotLabels:
    """Human labels of one picture.

    Attributes:
        boxes: (N, 4) float64, x0 y0 x1 y1 in pixels of the picture; may reach beyond it.
        types: (N,) int64, the data set's type numbers.
        objects: N names; an object keeps its name from frame to frame within its segment and camera.
    """

    boxes: NDArray[np.float64]
    types: NDArray[np.int64]
    objects: tuple[str, ...]


NO_LABELS = ShotLabels(np.zeros((0, 4)), np.zeros(0, np.int64), ())


@dataclass(frozen=True, slots=True, eq=False)
class Shot:
    """One picture of one camera.

    Attributes:
        timestamp_us: time of its frame, microseconds since 1970.
        jpeg: the picture as it was stored.
        labels: labels of this picture.
    """

    timestamp_us: int
    jpeg: bytes
    labels: ShotLabels


@dataclass(frozen=True, slots=True)
class LostShot:
    """A frame that cannot be shown.

    Attributes:
        why: the frame and its problem, as the end of a sentence.
        frames: number of frames; 1 if unknown, such as for all frames behind a damaged place.
    """

    why: str
    frames: int = 1


def box_edges(centres: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns boxes (N, 4) x0 y0 x1 y1 from centres (N, 2) and sizes (N, 2), x first."""
    return np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)


TYPES: Mapping[int, str] = {1: "vehicle", 2: "pedestrian", 3: "sign", 4: "cyclist"}
"""The data set's classes by their type numbers."""

NAMES: Mapping[str, str] = {
    "vehicle": "vehicle",
    "car": "vehicle",
    "pedestrian": "pedestrian",
    "person": "pedestrian",
    "cyclist": "cyclist",
    "bicycle": "cyclist",
    "sign": "sign",
}
"""The data set's classes by their own names, and by those that other sources and golden models use.

The data set does not distinguish vehicles: trucks and motorcycles are vehicles too, but most are cars. A
cyclist's box holds the bicycle and the rider.
"""

CLASSES = ("vehicle", "pedestrian", "cyclist", "sign")
"""Default classes of a fleet."""


def number_classes(classes: Sequence[str]) -> Mapping[str, int]:
    """Returns the number of each of the data set's classes that the fleet has, under any of its names.

    Raises:
        UserError: the data set does not have a class, or two classes are the same in it.
    """
    found: dict[str, int] = {}
    for index, name in enumerate(classes):
        if name == BACKGROUND:
            continue
        if name not in NAMES:
            raise UserError(
                f"key 'classes': the Waymo Open Dataset does not know '{name}'; its classes are "
                f"{', '.join(NAMES)}."
            )
        earlier = found.setdefault(NAMES[name], index)
        if earlier != index:
            raise UserError(
                f"key 'classes': '{classes[earlier]}' and '{name}' are the same in the Waymo Open Dataset; "
                "keep one of them."
            )
    return found
