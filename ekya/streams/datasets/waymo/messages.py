"""Protobuf messages of version 1; ``frames.proto`` beside this file lists the fields that are read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from ekya.streams.datasets.waymo.shots import NO_LABELS, Camera, Labels, edges

_PACKAGE = "ekya.waymo"

MESSAGES: Mapping[str, tuple[tuple[str, str, str, int], ...]] = {
    "Frame": (
        ("optional", "Context", "context", 1),
        ("optional", "int64", "timestamp_micros", 2),
        ("repeated", "CameraImage", "images", 4),
        ("repeated", "CameraLabels", "camera_labels", 8),
    ),
    "Context": (("optional", "bytes", "name", 1), ("optional", "Stats", "stats", 4)),
    "Stats": (("optional", "bytes", "time_of_day", 2), ("optional", "bytes", "location", 3)),
    "CameraImage": (("optional", "int32", "name", 1), ("optional", "bytes", "image", 2)),
    "CameraLabels": (("optional", "int32", "name", 1), ("repeated", "Label", "labels", 2)),
    "Label": (
        ("optional", "Box", "box", 1),
        ("optional", "int32", "type", 3),
        ("optional", "bytes", "id", 4),
    ),
    "Box": (
        ("optional", "double", "center_x", 1),
        ("optional", "double", "center_y", 2),
        ("optional", "double", "width", 4),
        ("optional", "double", "length", 5),
    ),
}
"""As in ``frames.proto``: label, type, name and number of each field of each message."""


def _frame_type() -> type[Any]:
    """Creates the class of ``Frame``, in a separate pool so that it cannot conflict with other messages."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="frames.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in MESSAGES.items():
        described = file.message_type.add(name=name)
        for label, kind, field, number in fields:
            new = described.field.add(name=field, number=number)
            new.label = kinds.Label.Value(f"LABEL_{label.upper()}")
            if kind in MESSAGES:
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
        segment, location, time_of_day: values of its context; empty if not set.
        timestamp_us: microseconds since 1970.
    """

    segment: str
    location: str
    time_of_day: str
    timestamp_us: int
    _message: Any

    def image(self, camera: Camera) -> bytes:
        """Returns the camera's picture as JPEG; empty if there is none."""
        found = (bytes(one.image) for one in self._message.images if one.name == camera.number)
        return next(found, b"")

    def labels(self, camera: Camera) -> Labels | None:
        """Returns the labels of the camera's picture; None if the picture was not labelled."""
        of_camera = (one.labels for one in self._message.camera_labels if one.name == camera.number)
        found = next(of_camera, None)
        if found is None:
            return None
        if not len(found):
            return NO_LABELS
        boxes = [one.box for one in found]
        return Labels(
            edges(
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
        timestamp_us=frame.timestamp_micros,
        _message=frame,
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
