"""Transport of frames from a source process to its reader: pixels in shared memory, the rest in a pipe.

Pixels lie in a ring buffer of a few slots in anonymous shared memory; each slot holds the index of its frame.
The pipe carries a small msgpack message a frame, so a frame whose pixels were overwritten is still counted.
"""

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from ekya.streams.ingest.frame import Frame, Truth
from ekya.system.files import user_errors

SLOTS = 4
_SLOT_HEADER = 64  # the frame's index, padded so that pixels are aligned
_NO_OWNER = -1


class MessageKind(IntEnum):
    """Kinds of message. All but FRAME carry text: a number, a human-readable reason, or nothing."""

    OPENED = 1
    FRAME = 2
    ENDED = 3
    REFUSED = 4
    FAILED = 5
    NOTED = 6
    LOST = 7
    BACK = 8
    ALIVE = 9


@dataclass(frozen=True, slots=True, eq=False)
class FrameHeader:
    """A frame without its pixels.

    Attributes:
        index, t_us: as in ``Frame``.
        released_ns: monotonic time at which the frame was handed over.
        damaged: number of frames so far that did not decode.
        offset: beginning of the frame's slot in the shared memory, bytes.
        height, width: of the picture, pixels.
        boxes: as in ``Frame``.
        truth: as the source gave it.
    """

    index: int
    t_us: int
    released_ns: int
    damaged: int
    offset: int
    height: int
    width: int
    boxes: NDArray[np.float32] | None
    truth: Truth | None


def pack_message(kind: MessageKind, body: str | FrameHeader) -> bytes:
    """Encodes a message; its body is a ``FrameHeader`` for FRAME, and text for the others."""
    message: bytes = msgpack.packb((kind, body), default=_plain)
    return message


def unpack_messages(received: msgpack.Unpacker) -> Iterator[tuple[MessageKind, str | FrameHeader]]:
    """Yields kind and body of all messages that have arrived completely, in order."""
    for kind, body in received:
        yield MessageKind(kind), body if isinstance(body, str) else _header(body)


def _plain(value: Any) -> tuple[object, ...]:
    """Returns what an array, a header or a truth consists of."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes()
    return tuple(getattr(value, name) for name in value.__slots__)


def _header(values: list[Any]) -> FrameHeader:
    """Rebuilds a header from its values, the last of which are boxes and truth."""
    boxes, truth = values[-2:]
    values[-2] = None if boxes is None else _boxes(boxes)
    values[-1] = None if truth is None else Truth(_boxes(truth[0]), _numbers(truth[1]), _numbers(truth[2]))
    return FrameHeader(*values)


def _boxes(array: tuple[str, bytes]) -> NDArray[np.float32]:
    kind, data = array
    return np.frombuffer(data, kind).reshape(-1, 4).astype(np.float32)


def _numbers(array: tuple[str, bytes]) -> NDArray[np.int64]:
    kind, data = array
    return np.frombuffer(data, kind).astype(np.int64)


class SlotWriter:
    """Writes pictures into one slot after another; never waits for the reader."""

    def __init__(self, memory_fd: int) -> None:
        self._fd = memory_fd
        self._map: mmap.mmap | None = None
        self._start = 0
        self._end = 0
        self._slot_bytes = 0
        self._slot = 0

    def write_frame(self, frame: Frame) -> int:
        """Stores a frame's pixels.

        Returns:
            Offset of the slot, bytes.

        Raises:
            UserError: there is no shared memory for it.
        """
        if self._map is None or frame.image.nbytes + _SLOT_HEADER > self._slot_bytes:
            self._map = self._grow(frame.image.nbytes)
        offset = self._start + self._slot * self._slot_bytes
        self._slot = (self._slot + 1) % SLOTS
        _put_owner(self._map, offset, _NO_OWNER)
        pixels = np.frombuffer(self._map, np.uint8, frame.image.nbytes, offset + _SLOT_HEADER)
        pixels.reshape(frame.image.shape)[...] = frame.image
        _put_owner(self._map, offset, frame.index)
        return offset

    def _grow(self, image_bytes: int) -> mmap.mmap:
        """Maps new, larger slots behind the old ones, which the reader may still be reading."""
        self._start = self._end
        page = mmap.PAGESIZE
        self._slot_bytes = -(-(image_bytes + _SLOT_HEADER) // page) * page
        self._end = self._start + SLOTS * self._slot_bytes
        self._slot = 0
        with user_errors(Path("shared memory for frames")):
            os.ftruncate(self._fd, self._end)
            return mmap.mmap(self._fd, self._end)


class SlotReader:
    """Copies pictures out of the slots unless they were overwritten."""

    def __init__(self, memory_fd: int) -> None:
        self._fd = memory_fd
        self._map: mmap.mmap | None = None

    def read_frame(self, header: FrameHeader) -> NDArray[np.uint8] | None:
        """Returns (H, W, 3) uint8, or None if a later frame has taken the slot."""
        count = header.height * header.width * 3
        end = header.offset + _SLOT_HEADER + count
        if self._map is None or len(self._map) < end:
            self._map = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        if _owner(self._map, header.offset) != header.index:
            return None
        pixels = np.frombuffer(self._map, np.uint8, count, header.offset + _SLOT_HEADER)
        image = pixels.reshape(header.height, header.width, 3).copy()
        # The writer clears the slot's index before it overwrites the pixels: unchanged means not torn.
        return image if _owner(self._map, header.offset) == header.index else None


def _owner(memory: mmap.mmap, offset: int) -> int:
    return int(np.frombuffer(memory, np.int64, 1, offset)[0])


def _put_owner(memory: mmap.mmap, offset: int, index: int) -> None:
    np.frombuffer(memory, np.int64, 1, offset)[0] = index
