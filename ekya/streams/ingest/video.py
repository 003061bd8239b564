"""Recorded video: files that play in sequence as one camera; and writing of one, as Motion JPEG in AVI.

Every OpenCV build supports that.
"""

import logging
import math
import shutil
from bisect import bisect_right
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.streams.ingest.frame import Frame, StreamSource, Truth
from ekya.streams.ingest.pictures import next_picture, shrink_frame

_log = logging.getLogger(__name__)

_FALLBACK_FPS = 25.0
# Containers without a rate report 0, 1000 or 90000, their clock's ticks.
_SANE_FPS = (0.1, 480.0)
# A header's rate is a hint: if the stamps of the first frames differ by more than a tenth, they count.
_STAMPED_FRAMES, _SAME_RATE = 9, 0.1
# A failed read means damage or the end, and the decoder does not say which. Past the end every further try
# fails immediately, so the tries only limit the length of a damaged stretch.
_TRIES_AFTER_A_FAILED_READ = 50


class VideoSpec(BaseModel):
    """A list of video files as a camera in a fleet file.

    Attributes:
        files: video files, in the order in which they play; the scene changes from one to the next.
        max_side: longer frames are scaled down, in proportion, until no side is longer; pixels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gives_truth: ClassVar[bool] = False
    live: ClassVar[bool] = False

    kind: Literal["video"] = "video"
    files: tuple[Path, ...] = Field(min_length=1)
    max_side: int = Field(default=640, ge=32)

    def open(self, classes: tuple[str, ...]) -> "VideoSource":
        """Opens the video; ``classes`` is not used, since a video has no truth.

        Decodes the first frame of every file, so that an unreadable file is reported immediately. A broken
        file can abort the process: call this in one that may die (``SourceProcess``).

        Raises:
            UserError: a file is missing or not a video.
        """
        rates = tuple(check_video(file) for file in self.files)
        lengths_s = [read_length_s(file, rate) for file, rate in zip(self.files, rates, strict=True)]
        known_s = [length_s for length_s in lengths_s if length_s is not None]
        length_s = sum(known_s) if len(known_s) == len(lengths_s) else None
        return VideoSource(self.files, rates, self.max_side, length_s)


@dataclass(eq=False)
class VideoSource:
    """``StreamSource`` of video files, without truth and without proposed boxes.

    Attributes:
        files: video files, in the order in which they play.
        rates: frames a second of each file.
        max_side: longest side of a frame, pixels; larger frames are scaled down.
        length_s: of all files by their headers, seconds; None if one does not say it.
        damaged: number of frames of the current pass that could not be decoded.
    """

    files: tuple[Path, ...]
    rates: tuple[float, ...]
    max_side: int
    length_s: float | None = None
    damaged: int = field(default=0, init=False)

    @property
    def fps(self) -> float:
        """Frames a second of the first file: a hint, as other files may have another rate."""
        return self.rates[0]

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields all frames that decode. Stream time continues across files and damaged frames."""
        self.damaged = 0
        index = 0
        file_start_us = 0
        for file, rate in zip(self.files, self.rates, strict=True):
            position, damaged_before = 0, self.damaged
            for image in video_images(file):
                if image is None:
                    self.damaged += 1
                else:
                    t_us = file_start_us + round(position * US_PER_S / rate)
                    yield Frame(index, t_us, shrink_frame(image, self.max_side), None), None
                    index += 1
                position += 1
            file_start_us += round(position * US_PER_S / rate)
            if self.damaged > damaged_before:
                _log.warning("%s: %d frames cannot be decoded", file, self.damaged - damaged_before)


class SpreadVideoSpec(BaseModel):
    """Runs of consecutive frames from all over a video of any length, which is not read as a whole.

    Attributes:
        video: the video.
        runs: their number; fewer of a video that is too short for them.
        run_frames: frames of each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gives_truth: ClassVar[bool] = False
    live: ClassVar[bool] = False

    video: VideoSpec
    runs: int = Field(ge=1)
    run_frames: int = Field(ge=1)

    def open(self, classes: tuple[str, ...]) -> StreamSource:
        """Opens the video as ``VideoSpec`` does; ``classes`` is not used."""
        return SpreadVideoSource(self.video.open(classes), self.runs, self.run_frames)


@dataclass(eq=False)
class SpreadVideoSource:
    """``StreamSource`` of a ``SpreadVideoSpec``; an index counts from the video's begin.

    Attributes:
        video: the whole.
        runs, run_frames: as in the specification.
        damaged: 0, as what does not decode is left out.
    """

    video: VideoSource
    runs: int
    run_frames: int
    damaged: int = field(default=0, init=False)

    @property
    def fps(self) -> float:
        """Frames a second of the first file."""
        return self.video.fps

    @property
    def length_s(self) -> float | None:
        """Seconds of the whole video, by its files' headers."""
        return self.video.length_s

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields the runs so that the first few are from all over the video, too."""
        files = list(zip(self.video.files, self.video.rates, strict=True))
        # A header's length is a hint, and may be missing: then there is one run, at the begin.
        counts = [round((read_length_s(file, rate) or 0.0) * rate) for file, rate in files]
        starts = list(accumulate(counts, initial=0))
        runs = max(1, min(self.runs, sum(counts) // self.run_frames))
        yielded = False
        for run in (run for first in (0, 2, 1, 3) for run in range(first, runs, 4)):
            at = max((2 * run + 1) * sum(counts) // (2 * runs) - self.run_frames // 2, 0)
            place = max(bisect_right(starts, at, hi=len(files)) - 1, 0)
            for frame in self._read_run(*files[place], at - starts[place], starts[place]):
                yielded = True
                yield frame, None
        if not yielded:
            yield from ((frame, None) for frame in self._read_run(*files[0], 0, 0))

    def _read_run(self, file: Path, rate: float, begin: int, before: int) -> Iterator[Frame]:
        """Yields frames from a position in a file on; ``before`` counts those of earlier files."""
        capture = _capture(file)
        try:
            if begin:
                capture.set(cv2.CAP_PROP_POS_FRAMES, begin)
            for at in range(before + begin, before + begin + self.run_frames):
                image = next_picture(capture)
                if image is None:
                    return
                image = shrink_frame(image, self.video.max_side)
                yield Frame(at, round(at * US_PER_S / rate), image, None)
        finally:
            capture.release()


def check_video(file: Path) -> float:
    """Decodes a file's first frame and returns its frame rate.

    Raises:
        UserError: the file is missing, or not a video.
    """
    if not file.is_file():
        raise UserError(f"{file}: no such file, named by the key 'files'; correct the path.")
    capture = _capture(file)
    try:
        first = next_picture(capture) if capture.isOpened() else None
        fps = _rate(capture) if first is not None else math.nan
    finally:
        capture.release()
    if first is None:
        raise UserError(
            f"{file}: cannot be decoded as video, named by the key 'files'; convert it to H.264 in MP4, "
            "for example with ffmpeg, or remove it."
        )
    if math.isfinite(fps) and _SANE_FPS[0] <= fps <= _SANE_FPS[1]:
        return fps
    _log.warning("%s gives no usable frame rate (%s); %g is assumed", file, fps, _FALLBACK_FPS)
    return _FALLBACK_FPS


def read_length_s(file: Path, fps: float) -> float | None:
    """Returns the length of a video in seconds by its header; None if that does not say it."""
    capture = _capture(file)
    try:
        frames = float(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    finally:
        capture.release()
    return frames / fps if math.isfinite(frames) and frames > 0 else None


def _rate(capture: cv2.VideoCapture) -> float:
    """Returns frames a second: the header's rate, unless the stamps of the first frames differ."""
    said = float(capture.get(cv2.CAP_PROP_FPS))
    stamps_ms = [capture.get(cv2.CAP_PROP_POS_MSEC)]
    while len(stamps_ms) < _STAMPED_FRAMES and next_picture(capture) is not None:
        stamps_ms.append(capture.get(cv2.CAP_PROP_POS_MSEC))
    step_ms = float(np.median(np.diff(stamps_ms))) if len(stamps_ms) > 2 else 0.0
    agrees = math.isfinite(said) and abs(said * step_ms / 1000 - 1) < _SAME_RATE
    return said if agrees or step_ms <= 0 else 1000 / step_ms


def video_images(file: Path) -> Generator[NDArray[np.uint8] | None, None, None]:
    """Yields every frame of a file; None for one that does not decode while later ones do."""
    capture = _capture(file)
    try:
        failed = 0
        while failed < _TRIES_AFTER_A_FAILED_READ:
            image = next_picture(capture)
            if image is None:
                failed += 1
                continue
            yield from [None] * failed
            failed = 0
            yield image
    finally:
        capture.release()


def _capture(file: Path) -> cv2.VideoCapture:
    """Opens a file for decoding on one thread, so that one camera does not occupy all cores."""
    capture = cv2.VideoCapture(str(file), cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
    # OpenCV may be built without FFmpeg, and other backends read what it does not.
    return capture if capture.isOpened() else cv2.VideoCapture(str(file))


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

    def write_picture(self, image: NDArray[np.uint8]) -> None:
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
            # From the start again, since the seek has moved the position.
            capture.open(str(path))
        readable = 0
        while next_picture(capture) is not None:
            readable += 1
        return readable
    finally:
        capture.release()
