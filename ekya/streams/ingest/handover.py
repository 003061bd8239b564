"""Transport of frames from a source process to its reader: pixels in shared memory, the rest in a pipe.

Pixels lie in a ring buffer of a few slots in anonymous shared memory; each slot holds the index of its frame.
The pipe carries one small message a frame, so a frame whose pixels were overwritten is still counted.
"""

import mmap
import os
import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ekya.streams.ingest.frame import Frame, Truth

SLOTS = 4
_SLOT_HEADER = 64  # the frame's index, padded so that pixels are aligned
_NOBODYS = -1
_PREFIX = struct.Struct("<IB")
_HEADER = struct.Struct("<qqqqqHHii")


class MessageKind(IntEnum):
    """Kinds of message. All but FRAME carry UTF-8 text: a number, a human-readable reason, or nothing."""

    OPENED = 1
    FRAME = 2
    ENDED = 3
    REFUSED = 4
    FAILED = 5
    NOTED = 6
    LOST = 7
    BACK = 8


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


def pack_text(kind: MessageKind, text: str) -> bytes:
    """Encodes a message that carries text."""
    body = text.encode()
    return _PREFIX.pack(len(body), kind) + body


def pack_frame(header: FrameHeader) -> bytes:
    """Encodes a FRAME message."""
    boxes, truth = header.boxes, header.truth
    body = _HEADER.pack(
        header.index,
        header.t_us,
        header.released_ns,
        header.damaged,
        header.offset,
        header.height,
        header.width,
        -1 if boxes is None else len(boxes),
        -1 if truth is None else len(truth.boxes),
    )
    if boxes is not None:
        body += np.ascontiguousarray(boxes, dtype="<f4").tobytes()
    if truth is not None:
        body += np.ascontiguousarray(truth.boxes, dtype="<f4").tobytes()
        body += np.ascontiguousarray(truth.classes, dtype="<i8").tobytes()
        body += np.ascontiguousarray(truth.tracks, dtype="<i8").tobytes()
    return _PREFIX.pack(len(body), MessageKind.FRAME) + body


def unpack_frame(body: bytes) -> FrameHeader:
    """Decodes the body of a FRAME message; inverse of ``pack_frame`` without the prefix."""
    index, t_us, released_ns, damaged, offset, height, width, box_count, truth_count = _HEADER.unpack_from(
        body
    )
    at = _HEADER.size
    boxes = None
    if box_count >= 0:
        boxes = _array(body, at, box_count * 4, "<f4").reshape(-1, 4).astype(np.float32)
        at += box_count * 16
    truth = None
    if truth_count >= 0:
        truth_boxes = _array(body, at, truth_count * 4, "<f4").reshape(-1, 4).astype(np.float32)
        at += truth_count * 16
        classes = _array(body, at, truth_count, "<i8").astype(np.int64)
        tracks = _array(body, at + truth_count * 8, truth_count, "<i8").astype(np.int64)
        truth = Truth(truth_boxes, classes, tracks)
    return FrameHeader(index, t_us, released_ns, damaged, offset, height, width, boxes, truth)


def _array(body: bytes, at: int, count: int, dtype: str) -> NDArray[np.generic]:
    return np.frombuffer(body, dtype=dtype, count=count, offset=at)


class Unpacker:
    """Splits a byte stream into messages; the chunks may be of any size."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[tuple[MessageKind, bytes]]:
        """Adds a chunk and returns all messages that it completes, in order."""
        self._pending += data
        messages = []
        at = 0
        while len(self._pending) - at >= _PREFIX.size:
            length, kind = _PREFIX.unpack_from(self._pending, at)
            end = at + _PREFIX.size + length
            if len(self._pending) < end:
                break
            messages.append((MessageKind(kind), bytes(self._pending[at + _PREFIX.size : end])))
            at = end
        del self._pending[:at]
        return messages


class SlotWriter:
    """Writes pictures into the slots in turn; never waits for the reader."""

    def __init__(self, memory_fd: int) -> None:
        self._fd = memory_fd
        self._map: mmap.mmap | None = None
        self._start = 0
        self._end = 0
        self._slot_bytes = 0
        self._turn = 0

    def write(self, frame: Frame) -> int:
        """Stores a frame's pixels.

        Returns:
            Offset of the slot, bytes.
        """
        if self._map is None or frame.image.nbytes + _SLOT_HEADER > self._slot_bytes:
            self._map = self._grow(frame.image.nbytes)
        offset = self._start + self._turn * self._slot_bytes
        self._turn = (self._turn + 1) % SLOTS
        _put_owner(self._map, offset, _NOBODYS)
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
        self._turn = 0
        os.ftruncate(self._fd, self._end)
        return mmap.mmap(self._fd, self._end)


class SlotReader:
    """Copies pictures out of the slots unless they were overwritten."""

    def __init__(self, memory_fd: int) -> None:
        self._fd = memory_fd
        self._map: mmap.mmap | None = None

    def read(self, header: FrameHeader) -> NDArray[np.uint8] | None:
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
