"""Writes video files picture by picture: Motion JPEG in AVI, which every OpenCV build supports."""

import math
import shutil
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.streams.ingest.pictures import next_picture

SUFFIX = ".avi"

# OpenCV does not report a failed write: the file just stops growing. FFmpeg buffers 256 KiB; a file that has
# not grown after pictures of at least twice that size will not grow any more.
_SURELY_WRITTEN_BYTES = 1 << 19
# Lower bound on a JPEG's size, that of one colour: tables and headers, and half a byte for each of the six
# blocks of 16 x 16 pixels.
_LEAST_BYTES, _PIXELS_A_BYTE = 150, 85

_CHECKED_EVERY = 32
_RESERVE_BYTES = 16 << 20
"""Free disk space to keep for the files' indices and other files that are written at the end."""

_LIMITS = "check permissions, quota and the limit on the size of files, or choose another folder"


class VideoFile:
    """Writes pictures of one size at one rate. ``close`` must be called, also after an error.

    Attributes:
        size: width and height, pixels.
    """

    def __init__(self, path: Path, image: NDArray[np.uint8], fps: float) -> None:
        """Creates a file.

        Args:
            path: path that ends in ``SUFFIX``.
            image: (H, W, 3) uint8; a picture that gives the size and is not written.
            fps: frames a second, with at most two decimals, which the container stores exactly.

        Raises:
            UserError: the file cannot be written.
        """
        self._path = path
        self.size = (image.shape[1], image.shape[0])
        self._written = 0
        self._bytes = 0
        self._grown_at = 0
        least_bytes = _LEAST_BYTES + image.shape[0] * image.shape[1] // _PIXELS_A_BYTE
        self._grace = math.ceil(_SURELY_WRITTEN_BYTES / least_bytes)
        codec = cv2.VideoWriter.fourcc(*"MJPG")
        self._writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, codec, fps, self.size)
        if not self._writer.isOpened():
            self._writer = cv2.VideoWriter(str(path), codec, fps, self.size)
        if not self._writer.isOpened():
            path.unlink(missing_ok=True)
            raise UserError(f"{path.parent}: no video can be written there; {_LIMITS}")

    def write(self, image: NDArray[np.uint8]) -> None:
        """Writes a picture, scaled if its size differs from the first.

        Raises:
            UserError: the disk is full, or the file does not grow any more.
        """
        if (image.shape[1], image.shape[0]) != self.size:
            image = np.asarray(cv2.resize(image, self.size, interpolation=cv2.INTER_AREA), np.uint8)
        self._writer.write(image)
        self._written += 1
        if self._written % _CHECKED_EVERY == 0:
            self._require_room()

    def close(self) -> int:
        """Closes the file; returns the number of its readable pictures."""
        self._writer.release()
        return _readable(self._path, self._written)

    def _require_room(self) -> None:
        folder = self._path.parent
        if shutil.disk_usage(folder).free < _RESERVE_BYTES:
            raise UserError(f"{folder}: the disk is full; free some space or choose another folder")
        size_bytes = self._path.stat().st_size
        if size_bytes > self._bytes:
            self._bytes, self._grown_at = size_bytes, self._written
        elif self._written - self._grown_at > self._grace:
            raise UserError(f"{folder}: the video cannot be written any further; {_LIMITS}")


def _readable(path: Path, frames: int) -> int:
    """Returns ``frames`` if the file's index has as many pictures and the last of them can be read.

    Otherwise counts the pictures before the first that does not decode.
    """
    capture = cv2.VideoCapture(str(path))
    try:
        if frames and round(capture.get(cv2.CAP_PROP_FRAME_COUNT)) == frames:
            capture.set(cv2.CAP_PROP_POS_FRAMES, frames - 1)
            if next_picture(capture) is not None:
                return frames
            capture.open(str(path))
        readable = 0
        while next_picture(capture) is not None:
            readable += 1
        return readable
    finally:
        capture.release()
