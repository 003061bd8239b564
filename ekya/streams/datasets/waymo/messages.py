"""Protobuf messages of version 1, made from ``frames.proto``, which lists the fields that are read."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from ekya.streams.datasets.waymo.shots import NO_LABELS, Camera, Labels, edges

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
