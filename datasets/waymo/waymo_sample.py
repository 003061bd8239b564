"""Writes segments in the layout of the Waymo Open Dataset, in both versions, and draws plain ones.

The sample beside this file shows plain ones; ``generate.py`` also renders streets.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ekya.streams.datasets.waymo.records import FrameMessage, masked_crc
from ekya.streams.datasets.waymo.shots import WaymoCamera
from ekya.system.files import atomic_path, user_errors, write_bytes_atomic

FRAME_US = 100_000
_DAY_US = 86_400_000_000
_FIRST_US = 1_550_000_000_000_000

VEHICLE, PEDESTRIAN, SIGN, CYCLIST = 1, 2, 3, 4
# Width and height as parts of the picture's, and a colour in BGR.
_LOOKS = {
    VEHICLE: (0.25, 0.25, (170, 60, 40)),
    PEDESTRIAN: (0.08, 0.4, (60, 160, 60)),
    SIGN: (0.1, 0.15, (40, 40, 200)),
    CYCLIST: (0.15, 0.3, (40, 170, 200)),
}


@dataclass(frozen=True, slots=True)
class Thing:
    """A labelled object in one picture; its box is x0 y0 x1 y1 in pixels."""

    name: str
    kind: int
    box: tuple[float, float, float, float]


class DrawnSegment(Protocol):
    """What is written of a segment: facts, and of each camera and frame the picture and its objects."""

    name: str
    location: str
    time_of_day: str
    weather: str
    frames: int
    cameras: tuple[WaymoCamera, ...]
    seed: int

    def time(self, frame: int) -> int: ...

    def things(self, camera: WaymoCamera, frame: int) -> tuple[Thing, ...]: ...

    def jpeg(self, camera: WaymoCamera, frame: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Segment:
    """A few seconds of driving to draw. ``size`` is width and height of the pictures."""

    name: str
    location: str = "location_sf"
    time_of_day: str = "Day"
    weather: str = "sunny"
    first_us: int = _FIRST_US
    frames: int = 3
    cameras: tuple[WaymoCamera, ...] = (WaymoCamera.FRONT, WaymoCamera.SIDE_LEFT)
    size: tuple[int, int] = (96, 64)
    seed: int = 0

    def time(self, frame: int) -> int:
        """Returns the time of a frame, in microseconds since 1970."""
        return self.first_us + frame * FRAME_US

    def things(self, camera: WaymoCamera, frame: int) -> tuple[Thing, ...]:
        """Returns one object of each kind, each in its own row; it drives along and wraps around."""
        width, height = self.size
        rng = np.random.default_rng((self.seed, camera.number))
        found = []
        for kind, (across, down, _) in _LOOKS.items():
            part = (rng.random() + frame * rng.uniform(0.01, 0.03)) % (1.0 - across)
            x0 = part * width
            y0 = (0.05 + (kind - 1) * 0.16) * height
            box = (x0, y0, x0 + across * width, y0 + down * height)
            found.append(Thing(f"{self.name[:4]}-{camera}-{kind}", kind, box))
        return tuple(found)

    def picture(self, camera: WaymoCamera, frame: int) -> NDArray[np.uint8]:
        """Returns the picture as (H, W, 3) uint8, BGR."""
        width, height = self.size
        grey = 90 if self.time_of_day == "Day" else 30
        image = np.full((height, width, 3), grey, np.uint8)
        image[height // 2 :] = grey // 2
        for thing in self.things(camera, frame):
            (x0, y0), (x1, y1) = ((int(thing.box[at]), int(thing.box[at + 1])) for at in (0, 2))
            colour = _LOOKS[thing.kind][2]
            if thing.kind in (SIGN, CYCLIST):
                middle, axes = ((x0 + x1) // 2, (y0 + y1) // 2), ((x1 - x0) // 2, (y1 - y0) // 2)
                cv2.ellipse(image, middle, axes, 0, 0, 360, colour, -1)
            else:
                cv2.rectangle(image, (x0, y0), (x1, y1), colour, -1)
        return image

    def jpeg(self, camera: WaymoCamera, frame: int) -> bytes:
        """Returns the encoded picture."""
        return bytes(cv2.imencode(".jpg", self.picture(camera, frame), [cv2.IMWRITE_JPEG_QUALITY, 70])[1])


def frame_record(segment: DrawnSegment, frame: int) -> bytes:
    """Returns a frame of version 1: a serialised message."""
    message = FrameMessage()
    message.context.name = segment.name.encode()
    message.context.stats.location = segment.location.encode()
    message.context.stats.time_of_day = segment.time_of_day.encode()
    message.context.stats.weather = segment.weather.encode()
    message.timestamp_micros = segment.time(frame)
    for camera in segment.cameras:
        message.images.add(name=camera.number, image=segment.jpeg(camera, frame))
        labels = message.camera_labels.add(name=camera.number).labels
        for thing in segment.things(camera, frame):
            x0, y0, x1, y1 = thing.box
            label = labels.add(type=thing.kind, id=thing.name.encode())
            label.box.center_x, label.box.center_y = (x0 + x1) / 2, (y0 + y1) / 2
            label.box.length, label.box.width = x1 - x0, y1 - y0
    return bytes(message.SerializeToString(deterministic=True))


def framed(record: bytes) -> bytes:
    """Returns a record as stored in a ``.tfrecord`` file: with its length, and both checksums."""
    length = struct.pack("<Q", len(record))
    return length + struct.pack("<I", masked_crc(length)) + record + struct.pack("<I", masked_crc(record))


def segment_files(root: Path, name: str, version: int) -> list[Path]:
    """Returns the files of a segment, that of the pictures first."""
    if version == 1:
        return [root / "training" / f"segment-{name}_with_camera_labels.tfrecord"]
    return [root / "training" / component / f"{name}.parquet" for component in _SCHEMAS]


def write_v1(root: Path, segment: DrawnSegment) -> Path:
    """Writes a segment's only file under ``root/training``; returns its path."""
    (file,) = segment_files(root, segment.name, 1)
    with user_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    content = b"".join(framed(frame_record(segment, frame)) for frame in range(segment.frames))
    write_bytes_atomic(file, content)
    return file


def write_v2(root: Path, segment: DrawnSegment, rows_a_group: int = 4) -> Path:
    """Writes a segment's three files under ``root/training``; returns the one of the pictures.

    Rows are in no order, as in the published data.
    """
    tables = (("camera_image", _images(segment)), ("camera_box", _boxes(segment)), ("stats", _stats(segment)))
    files = segment_files(root, segment.name, 2)
    for number, ((component, rows), file) in enumerate(zip(tables, files, strict=True)):
        shuffled = np.random.default_rng((segment.seed, number)).permutation(len(rows))
        table = pa.Table.from_pylist([rows[at] for at in shuffled], schema=_SCHEMAS[component])
        with user_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        size = rows_a_group if component == "camera_image" else None
        with atomic_path(file) as temporary:
            pq.write_table(table, temporary, row_group_size=size, compression="brotli")
    return files[0]


_KEYS = [("key.segment_context_name", pa.string()), ("key.frame_timestamp_micros", pa.int64())]
_CAMERA = ("key.camera_name", pa.int8())
_BOX = "[CameraBoxComponent].box"
_SCHEMAS = {
    "camera_image": pa.schema(
        [
            *_KEYS,
            _CAMERA,
            ("[CameraImageComponent].image", pa.binary()),
            ("[CameraImageComponent].pose_timestamp", pa.float64()),
        ]
    ),
    "camera_box": pa.schema(
        [*_KEYS, _CAMERA, ("key.camera_object_id", pa.string())]
        + [(f"{_BOX}.{part}.{axis}", pa.float64()) for part in ("center", "size") for axis in "xy"]
        + [("[CameraBoxComponent].type", pa.int8())]
        + [("[CameraBoxComponent].difficulty_level.detection", pa.int8())]
    ),
    "stats": pa.schema(
        [*_KEYS]
        + [(f"[StatsComponent].{name}", pa.string()) for name in ("time_of_day", "location", "weather")]
    ),
}


def _rows(segment: DrawnSegment) -> Iterator[tuple[int, dict[str, object]]]:
    for frame in range(segment.frames):
        keys = (segment.name, segment.time(frame))
        yield frame, {name: key for (name, _), key in zip(_KEYS, keys, strict=True)}


def _images(segment: DrawnSegment) -> list[dict[str, object]]:
    return [
        {
            **keys,
            "key.camera_name": camera.number,
            "[CameraImageComponent].image": segment.jpeg(camera, frame),
            "[CameraImageComponent].pose_timestamp": segment.time(frame) / 1e6,
        }
        for frame, keys in _rows(segment)
        for camera in segment.cameras
    ]


def _boxes(segment: DrawnSegment) -> list[dict[str, object]]:
    return [
        {
            **keys,
            "key.camera_name": camera.number,
            "key.camera_object_id": thing.name,
            f"{_BOX}.center.x": (thing.box[0] + thing.box[2]) / 2,
            f"{_BOX}.center.y": (thing.box[1] + thing.box[3]) / 2,
            f"{_BOX}.size.x": thing.box[2] - thing.box[0],
            f"{_BOX}.size.y": thing.box[3] - thing.box[1],
            "[CameraBoxComponent].type": thing.kind,
            "[CameraBoxComponent].difficulty_level.detection": 0,
        }
        for frame, keys in _rows(segment)
        for camera in segment.cameras
        for thing in segment.things(camera, frame)
    ]


def _stats(segment: DrawnSegment) -> list[dict[str, object]]:
    names = ("time_of_day", "location", "weather")
    values = (segment.time_of_day, segment.location, segment.weather)
    facts = {f"[StatsComponent].{name}": value for name, value in zip(names, values, strict=True)}
    return [{**keys, **facts} for _, keys in _rows(segment)]


def sample_segments(count: int, frames: int, size: tuple[int, int]) -> Sequence[Segment]:
    """Returns segments of a sample: two places, day and night, with names that are not in order of time."""
    return [
        Segment(
            name=f"{(7919 * (number + 1)) % 10007:05d}_1000_000_1020_000",
            location=("location_sf", "location_phx")[number % 2],
            time_of_day=("Day", "Night")[number // 2 % 2],
            first_us=_FIRST_US + number * _DAY_US,
            frames=frames,
            size=size,
            seed=number,
        )
        for number in range(count)
    ]
