"""Reads pictures: JPEGs, picture files and OpenCV's decoders, with the reason why one cannot be read."""

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

# A larger size is a damaged header: no camera of a data set takes such pictures.
_MOST_JPEG_PIXELS = 64_000_000

_REDUCED = {8: cv2.IMREAD_REDUCED_COLOR_8, 4: cv2.IMREAD_REDUCED_COLOR_4, 2: cv2.IMREAD_REDUCED_COLOR_2}

_START, _END, _SCAN = 0xD8, 0xD9, 0xDA
# Frame headers are C0 to CF, except C4, C8 and CC, which are other segments.
_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers that no length follows.
_ALONE = frozenset({0x01, *range(0xD0, 0xD8), _START, _END})


@dataclass(frozen=True, slots=True, eq=False)
class DecodedPicture:
    """A picture that may be smaller than the stored one.

    Attributes:
        image: (H, W, 3) uint8, BGR.
        stored: width and height of the stored picture, pixels.
    """

    image: NDArray[np.uint8]
    stored: tuple[int, int]


def shrink_frame(image: NDArray[np.uint8], max_side: int) -> NDArray[np.uint8]:
    """Scales a picture down, in proportion, to a maximum side; returns a smaller picture unchanged.

    Args:
        image: (H, W, 3) uint8.
        max_side: longest side of the result, pixels.
    """
    return _resized(image, size_within(image.shape[1], image.shape[0], max_side))


def shrink_by_area(image: NDArray[np.uint8], longest: int) -> NDArray[np.uint8]:
    """Returns an (H, W, 3) uint8 image, resized in proportion if a side is longer than ``longest`` pixels."""
    if max(image.shape[:2]) <= longest:
        return image
    size = size_within(image.shape[1], image.shape[0], longest)
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def decode_jpeg(data: bytes, max_side: int) -> DecodedPicture | None:
    """Decodes a JPEG so that no side is longer than ``max_side`` pixels; returns None if it does not decode.

    The decoder itself scales by 2, 4 or 8 where possible: half the size takes less than half the time.
    """
    size = jpeg_size(data)
    if size is None or size[0] * size[1] > _MOST_JPEG_PIXELS:
        return None
    width, height = size
    fits = (by for by in _REDUCED if max(width, height) >= by * max_side)
    flag = _REDUCED.get(next(fits, 1), cv2.IMREAD_COLOR)
    try:
        # Boxes were drawn on the stored pixels, so the EXIF orientation must not be applied.
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        return None
    if decoded is None or decoded.ndim != 3:
        return None
    image = _resized(np.asarray(decoded, dtype=np.uint8), size_within(width, height, max_side))
    return DecodedPicture(image, size)


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Returns width and height in pixels from a JPEG's header, or None if it has none."""
    if data[:2] != bytes((0xFF, _START)):
        return None
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        # Fill bytes may precede a marker.
        if marker == 0xFF:
            at += 1
        elif marker in _ALONE:
            at += 2
        elif marker in _SIZES:
            height = int.from_bytes(data[at + 5 : at + 7], "big")
            width = int.from_bytes(data[at + 7 : at + 9], "big")
            return (width, height) if width and height else None
        elif marker == _SCAN:
            return None
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def size_within(width: int, height: int, max_side: int) -> tuple[int, int]:
    """Returns width and height, scaled down in proportion until none is longer than ``max_side``."""
    scale = min(1.0, max_side / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _resized(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    height, width = image.shape[:2]
    if (width, height) == size:
        return image
    # Down to one half, linear interpolation uses every pixel and takes a third of the time of area averaging.
    how = cv2.INTER_LINEAR if 2 * max(size) >= max(width, height) else cv2.INTER_AREA
    return np.asarray(cv2.resize(image, size, interpolation=how), dtype=np.uint8)


_PNG = b"\x89PNG\r\n\x1a\n"
# A larger size is a damaged header, and decoding it would take gigabytes.
_MOST_FILE_PIXELS = 1 << 26


class UnreadableError(Exception):
    """A file that cannot be read; the message continues a sentence that begins with the file's name."""


def read_picture(path: Path) -> NDArray[np.uint8]:
    """Reads a picture as (H, W, 3) uint8 BGR.

    Raises:
        UnreadableError: the file is missing, cut off, damaged or no picture.
    """
    return np.asarray(_decode(path, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION), np.uint8)


def read_values(path: Path) -> NDArray[np.uint16]:
    """Reads a picture whose values are numbers, not colours, as (H, W) uint16.

    Raises:
        UnreadableError: as ``read_picture``, or the picture has colours.
    """
    values = _decode(path, cv2.IMREAD_UNCHANGED)
    if values.ndim != 2 or values.dtype not in {np.dtype(np.uint8), np.dtype(np.uint16)}:
        raise UnreadableError("has colours where numbers belong")
    return values.astype(np.uint16)


def read_bytes(path: Path) -> bytes:
    """Reads a file.

    Raises:
        UnreadableError: the file is missing, empty or cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise UnreadableError("is missing") from error
    except (OSError, ValueError) as error:
        raise UnreadableError(f"cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if not data:
        raise UnreadableError("is empty")
    return data


def _decode(path: Path, how: int) -> NDArray[np.generic]:
    data = read_bytes(path)
    # Four bytes: a transfer that converted line ends has damaged the rest of the signature.
    if data.startswith(_PNG[:4]):
        _check_png(data)
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), how)
    except (cv2.error, MemoryError) as error:
        raise UnreadableError("does not decode as a picture") from error
    if image is None or not image.size:
        raise UnreadableError("does not decode as a picture")
    return np.asarray(image)


def _check_png(data: bytes) -> None:
    """Checks size and chunk checksums of a PNG file, which not every decoder does or reports."""
    if not data.startswith(_PNG):
        raise UnreadableError("does not begin as a PNG file does")
    at, kind = len(_PNG), b""
    while kind != b"IEND":
        if at + 12 > len(data):
            raise UnreadableError("is cut off")
        (length,) = struct.unpack_from(">I", data, at)
        kind = data[at + 4 : at + 8]
        end = at + 8 + length
        if end + 4 > len(data):
            raise UnreadableError("is cut off")
        if struct.unpack_from(">I", data, end)[0] != zlib.crc32(memoryview(data)[at + 4 : end]):
            raise UnreadableError("is damaged (a checksum is wrong)")
        if kind == b"IHDR" and length >= 8:
            width, height = struct.unpack_from(">II", data, at + 8)
            if width * height > _MOST_FILE_PIXELS:
                raise UnreadableError(f"claims to be {width}x{height} pixels large")
        at = end + 4
