"""A video file that grows while a camera is watched: Motion JPEG in AVI, which every OpenCV knows."""

import math
import shutil
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from ekya.errors import UserError
from ekya.streams.capture import read_picture

SUFFIX = ".avi"

# OpenCV does not say that a write has failed: the file just stops growing. FFmpeg holds back 256 KiB; a file
# that has not grown by the time at which twice that must have been written will not grow any more.
_SURELY_WRITTEN_BYTES = 1 << 19
# A JPEG of one colour: tables and headers, and half a byte for each of the six blocks of 16 x 16 pixels.
_LEAST_BYTES, _PIXELS_A_BYTE = 150, 85

_LOOKED_AT_EVERY = 32
_RESERVE_BYTES = 16 << 20
"""Of the disk, for the indices of the files and what else is to be written in the end."""

_LIMITS = "look at permissions, quota and the limit on the size of files, or choose another folder"


class VideoFile:
    """Pictures of one size at one rate. Write, then ``close``, whatever happened."""

    def __init__(self, path: Path, image: NDArray[np.uint8], fps: float) -> None:
        """Begin a file.

        Args:
            path: ends in ``SUFFIX``.
            image: (H, W, 3) uint8; the first picture, which is not written yet.
            fps: with two decimals at most, which the container holds exactly.

        Raises:
            UserError: it cannot be written.
        """
        self._path = path
        self._size = (image.shape[1], image.shape[0])
        self._written = 0
        self._bytes = 0
        self._grown_at = 0
        least_bytes = _LEAST_BYTES + image.shape[0] * image.shape[1] // _PIXELS_A_BYTE
        self._patience = math.ceil(_SURELY_WRITTEN_BYTES / least_bytes)
        codec = cv2.VideoWriter.fourcc(*"MJPG")
        self._writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, codec, fps, self._size)
        if not self._writer.isOpened():
            self._writer = cv2.VideoWriter(str(path), codec, fps, self._size)
        if not self._writer.isOpened():
            path.unlink(missing_ok=True)
            raise UserError(f"{path.parent}: no video can be written there; {_LIMITS}")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, pixels."""
        return self._size

    def write(self, image: NDArray[np.uint8]) -> None:
        """One more picture, scaled where it is of another size than the first.

        Raises:
            UserError: the disk is full, or the file does not grow any more.
        """
        if (image.shape[1], image.shape[0]) != self._size:
            image = np.asarray(cv2.resize(image, self._size, interpolation=cv2.INTER_AREA), np.uint8)
        self._writer.write(image)
        self._written += 1
        if self._written % _LOOKED_AT_EVERY == 0:
            self._require_room()

    def close(self) -> int:
        """End the file; returns how many of its pictures can be read."""
        self._writer.release()
        return self._written if _is_whole(self._path, self._written) else _readable(self._path)

    def _require_room(self) -> None:
        folder = self._path.parent
        if shutil.disk_usage(folder).free < _RESERVE_BYTES:
            raise UserError(f"{folder}: the disk is full; free some space or choose another folder")
        size_bytes = self._path.stat().st_size
        if size_bytes > self._bytes:
            self._bytes, self._grown_at = size_bytes, self._written
        elif self._written - self._grown_at > self._patience:
            raise UserError(f"{folder}: the video cannot be written any further; {_LIMITS}")


def _is_whole(path: Path, frames: int) -> bool:
    """Whether the last of so many pictures is where the file's index says."""
    capture = cv2.VideoCapture(str(path))
    try:
        if not frames or round(capture.get(cv2.CAP_PROP_FRAME_COUNT)) != frames:
            return False
        capture.set(cv2.CAP_PROP_POS_FRAMES, frames - 1)
        return read_picture(capture) is not None
    finally:
        capture.release()


def _readable(path: Path) -> int:
    """Pictures up to the first that does not decode."""
    capture = cv2.VideoCapture(str(path))
    try:
        count = 0
        while read_picture(capture) is not None:
            count += 1
        return count
    finally:
        capture.release()
