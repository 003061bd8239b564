"""Reads picture files, and reports why one cannot be read."""

import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

_PNG = b"\x89PNG\r\n\x1a\n"
# A larger size is a damaged header, and decoding it would take gigabytes.
_MOST_PIXELS = 1 << 26


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
            if width * height > _MOST_PIXELS:
                raise UnreadableError(f"claims to be {width}x{height} pixels large")
        at = end + 4
