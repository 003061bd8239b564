"""Reads version 1 of the data set: a TFRecord file a segment, with a record for each frame.

The protobuf messages are made from ``frames.proto``, which lists the fields that are read.
"""

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from ekya.core.errors import UserError
from ekya.streams.datasets.waymo.shots import (
    NO_LABELS,
    LostShot,
    SegmentFacts,
    SegmentFiles,
    Shot,
    ShotLabels,
    WaymoCamera,
    box_edges,
)
from ekya.system.files import user_errors

_PACKAGE = "ekya.waymo"


def _frame_type() -> type[Any]:
    """Creates the class of ``Frame``, in a separate pool so that it cannot conflict with other messages."""
    text = Path(__file__).with_name("frames.proto").read_text(encoding="utf-8")
    messages = dict(re.findall(r"message (\w+) \{([^}]*)\}", text))
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="frames.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in messages.items():
        described = file.message_type.add(name=name)
        for label, kind, field, number in re.findall(r"(\w+) (\w+) (\w+) = (\d+);", fields):
            new = described.field.add(name=field, number=int(number))
            new.label = kinds.Label.Value(f"LABEL_{label.upper()}")
            if kind in messages:
                new.type = kinds.TYPE_MESSAGE
                new.type_name = f".{_PACKAGE}.{kind}"
            else:
                new.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Frame"))
    return made


FrameMessage = _frame_type()
"""Message class of a frame; tests and samples also write with it."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameV1:
    """Content of one record.

    Attributes:
        segment, location, time_of_day, weather: values of its context; empty if not set.
        timestamp_us: microseconds since 1970.
    """

    segment: str
    location: str
    time_of_day: str
    weather: str
    timestamp_us: int
    _message: Any

    def image(self, camera: WaymoCamera) -> bytes:
        """Returns the camera's picture as JPEG; empty if there is none."""
        found = (bytes(one.image) for one in self._message.images if one.name == camera.number)
        return next(found, b"")

    def labels(self, camera: WaymoCamera) -> ShotLabels | None:
        """Returns the labels of the camera's picture; None if the picture was not labelled."""
        of_camera = (one.labels for one in self._message.camera_labels if one.name == camera.number)
        found = next(of_camera, None)
        if found is None:
            return None
        if not len(found):
            return NO_LABELS
        boxes = [one.box for one in found]
        return ShotLabels(
            box_edges(
                np.array([(box.center_x, box.center_y) for box in boxes]),
                np.array([(box.length, box.width) for box in boxes]),
            ),
            np.array([one.type for one in found], np.int64),
            tuple(_text(one.id) for one in found),
        )


def parse_frame(record: bytes) -> FrameV1 | None:
    """Parses a record of a ``.tfrecord`` file; returns None if it is no ``Frame`` message."""
    frame = FrameMessage()
    try:
        frame.ParseFromString(record)
    except message.DecodeError:
        return None
    context = frame.context
    return FrameV1(
        segment=_text(context.name),
        location=_text(context.stats.location),
        time_of_day=_text(context.stats.time_of_day),
        weather=_text(context.stats.weather),
        timestamp_us=frame.timestamp_micros,
        _message=frame,
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


_HEAD = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_MOVED_BY = 0xA282EAD8
# A frame of all cameras and lidars is about 5 MB. A much longer record is skipped unread.
_LONGEST_RECORD_BYTES = 256 * 1024 * 1024


def masked_crc(data: bytes) -> int:
    """Returns the checksum of data in the form that the file stores."""
    crc: int = google_crc32c.value(data)
    # A rotation: the mask also drops the bits that were shifted out of 32.
    return ((crc >> 15 | crc << 17) + _MOVED_BY) & 0xFFFFFFFF


def read_records(file: BinaryIO) -> Iterator[bytes | LostShot]:
    """Yields the records of a file, one at a time; memory is that of the longest.

    A record whose data do not match their checksum is lost. If a length does not match its checksum, or the
    file ends within a record, the next record cannot be found and the rest of the file is lost.

    Raises:
        OSError: the file cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    number, at = 0, 0
    while at < size:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            yield LostShot(f"record {number} and all behind it: the file ends within the record's length")
            return
        length, checksum = _HEAD.unpack(head)
        if masked_crc(head[:8]) != checksum:
            yield LostShot(f"record {number} and all behind it: the checksum of its length is wrong")
            return
        at += _HEAD.size + length + _CHECKSUM.size
        if at > size:
            yield LostShot(f"record {number} and all behind it: the file ends within the record")
            return
        if length > _LONGEST_RECORD_BYTES:
            file.seek(at)
            yield LostShot(f"record {number}: {length} bytes are too many for a frame")
        else:
            data, checksum = file.read(length), file.read(_CHECKSUM.size)
            if len(checksum) < _CHECKSUM.size:
                yield LostShot(
                    f"record {number} and all behind it: the file became shorter while it was read"
                )
                return
            if masked_crc(data) == _CHECKSUM.unpack(checksum)[0]:
                yield data
            else:
                yield LostShot(f"record {number}: its checksum is wrong")
        number += 1


@dataclass(frozen=True, slots=True)
class RecordsReader:
    """Reads one segment of version 1."""

    files: SegmentFiles

    def read_facts(self) -> SegmentFacts:
        """Reads the facts of a segment from its first readable record.

        Raises:
            UserError: no record can be read, or it belongs to another segment.
        """
        first = self._first()
        return SegmentFacts(
            first.location,
            first.time_of_day,
            first.timestamp_us,
            weather=first.weather,
            cameras=tuple(camera for camera in WaymoCamera if first.image(camera)),
        )

    def read_cameras(self) -> tuple[WaymoCamera, ...]:
        """Returns the cameras with a picture in the first readable record.

        Raises:
            UserError: as ``read_facts``.
        """
        return self.read_facts().cameras

    def require_camera(self, camera: WaymoCamera) -> None:
        """Checks that the first readable record has a picture and labels of the camera.

        Raises:
            UserError: one of them is missing, or no record can be read.
        """
        first = self._first()
        if not first.image(camera):
            raise UserError(
                f"{self.files.images}: has no images of camera {camera}; choose another or leave it out."
            )
        if first.labels(camera) is None:
            raise UserError(
                f"{self.files.images}: has no labels of camera {camera}; fetch the segment's file whose name "
                "ends in _with_camera_labels, or leave the segment out."
            )

    def read_shots(self, camera: WaymoCamera) -> Iterator[Shot | LostShot]:
        """Yields the camera's pictures in file order, which is chronological.

        Raises:
            OSError: the file cannot be read.
        """
        for number, frame in self._frames():
            if isinstance(frame, LostShot):
                yield frame
                continue
            jpeg, labels = frame.image(camera), frame.labels(camera)
            if frame.segment != self.files.name:
                yield LostShot(f"record {number}: is of segment '{frame.segment}'")
            elif not jpeg:
                yield LostShot(f"record {number}: has no image of camera {camera}")
            elif labels is None:
                yield LostShot(f"record {number}: has no labels of camera {camera}")
            else:
                yield Shot(frame.timestamp_us, jpeg, labels)

    def _first(self) -> FrameV1:
        why = "it is empty"
        with user_errors(self.files.images):
            for _, frame in self._frames():
                if isinstance(frame, LostShot):
                    why = frame.why
                elif frame.segment != self.files.name:
                    raise UserError(
                        f"{self.files.images}: holds segment '{frame.segment}' and not the one of its name; "
                        "rename it."
                    )
                else:
                    return frame
        raise UserError(
            f"{self.files.images}: no frame can be read ({why}); fetch the file again or leave it out."
        )

    def _frames(self) -> Iterator[tuple[int, FrameV1 | LostShot]]:
        with self.files.images.open("rb") as file:
            for number, record in enumerate(read_records(file)):
                if isinstance(record, LostShot):
                    yield number, record
                else:
                    yield number, parse_frame(record) or LostShot(f"record {number}: is no Frame message")
