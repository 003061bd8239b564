"""Recorded video: files that play in sequence as one camera; and writing of one, as Motion JPEG in AVI."""

import logging
import math
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, islice
from pathlib import Path
from typing import ClassVar, Literal

import av
import cv2
import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.streams.ingest.decoding import FrameClock, VideoInput
from ekya.streams.ingest.frame import Frame, StreamSource, Truth
from ekya.streams.ingest.hardware import DecoderName, HardwareDecoder
from ekya.streams.ingest.pictures import UnreadableError

_log = logging.getLogger(__name__)

_FALLBACK_FPS = 25.0
# Containers without a rate report 0, 1000 or 90000, their clock's ticks.
_SANE_FPS = (0.1, 480.0)
# A header's rate is a hint: if the stamps of the first frames differ by more than a tenth, they count.
_STAMPED_FRAMES, _SAME_RATE = 9, 0.1
_REMEDY = ", named by the key 'files'; convert it to H.264 in MP4, for example with ffmpeg, or remove it."


class VideoSpec(BaseModel):
    """A list of video files as a camera in a fleet file.

    Attributes:
        files: video files, in the order in which they play; the scene changes from one to the next.
        max_side: longer frames are scaled down, in proportion, until no side is longer; pixels.
        square_pixels: stretch pictures whose pixels are not square, as players do; without it boxes are in
            the pixels that are stored.
        decoder: as of a camera. With another than ``cpu`` two runs need not be the same bit by bit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gives_truth: ClassVar[bool] = False
    live: ClassVar[bool] = False

    kind: Literal["video"] = "video"
    files: tuple[Path, ...] = Field(min_length=1)
    max_side: int = Field(default=640, ge=32)
    square_pixels: bool = True
    decoder: DecoderName = "cpu"

    def open(self, classes: tuple[str, ...]) -> "VideoSource":
        """Opens the video; ``classes`` is not used, since a video has no truth.

        Decodes the first frame of every file, so that an unreadable file is reported immediately. A broken
        file can abort the process: call this in one that may die (``SourceProcess``).

        Raises:
            UserError: a file is missing or not a video.
        """
        facts, hardware = (
            tuple(self._examine_file(file) for file in self.files),
            HardwareDecoder(self.decoder),
        )
        if self.decoder != "cpu":
            # Tried now: what that takes is no part of what a frame takes.
            self.open_file(self.files[0], hardware).close()
        return VideoSource(self, facts, hardware)

    def open_file(self, file: Path, hardware: HardwareDecoder | None = None) -> VideoInput:
        """Opens one of the files, for seeking unless ``hardware`` may decode it.

        Raises:
            UserError: it is missing or not a video.
        """
        if not file.is_file():
            raise UserError(f"{file}: no such file, named by the key 'files'; correct the path.")
        try:
            return VideoInput(
                f"file:{file}", self.max_side, square_pixels=self.square_pixels, hardware=hardware
            )
        except UnreadableError as error:
            raise UserError(f"{file}: {error}{_REMEDY}") from None

    def _examine_file(self, file: Path) -> "FileFacts":
        """Decodes first frames; logs what may surprise."""
        with closing(self.open_file(file)) as video:
            first = [(stamp_s, frame.dts) for stamp_s, frame in islice(video.frames(), _STAMPED_FRAMES)]
            if not first:
                raise UserError(f"{file}: has no frame that can be decoded{_REMEDY}")
            if len(video.sizes) > 1:
                sizes = ", ".join(f"{width}x{height}" for width, height in video.sizes)
                _log.warning("%s: has several video tracks (%s); the largest is taken", file, sizes)
            steps_s, decoding_steps = (_steps_between(stamps) for stamps in zip(*first, strict=True))
            # AVI has no place for the order in which frames are shown, and encoders may change it.
            mixed_up = bool((steps_s <= 0).any() and len(decoding_steps) and (decoding_steps > 0).all())
            if mixed_up:
                steps_s = decoding_steps * float(video.track.time_base or 1)
            step_s = float(np.median(steps_s)) if len(steps_s) else math.nan
            by_stamps = 1 / step_s if step_s > 0 else math.nan
            agrees = video.is_counted or abs(video.rate * step_s - 1) < _SAME_RATE
            rates = (video.rate, by_stamps) if agrees else (by_stamps, video.rate)
            sane = [rate for rate in rates if _SANE_FPS[0] <= rate <= _SANE_FPS[1]]
            if not sane:
                _log.warning("%s gives no usable frame rate (%s); 25 is assumed", file, rates[0])
            rate = sane[0] if sane else _FALLBACK_FPS
            return FileFacts(rate, by_stamps in sane, video.track.frames, video.length_s, mixed_up)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the header of a file promises, as far as it can be believed.

    Attributes:
        rate: frames a second, on average where that is known.
        stamped: whether frames have the times of their stamps; otherwise they are equally spaced.
        frames: their number; 0 if it is not said.
        length_s: seconds; None if they are not said.
        mixed_up: the stamps are those of other frames; only those of decoding rise.
    """

    rate: float
    stamped: bool
    frames: int
    length_s: float | None
    mixed_up: bool = False


@dataclass(eq=False)
class VideoSource:
    """``StreamSource`` of video files, without truth and without proposed boxes.

    Attributes:
        spec: files, and how large their pictures are.
        facts: of each file.
        hardware: that may decode them.
        damaged: number of frames of the current pass that could not be decoded.
    """

    spec: VideoSpec
    facts: tuple[FileFacts, ...]
    hardware: HardwareDecoder
    damaged: int = field(default=0, init=False)

    @property
    def fps(self) -> float:
        """Frames a second of the first file: a hint, as other files may have another rate."""
        return self.facts[0].rate

    @property
    def length_s(self) -> float | None:
        """Seconds of all files by their headers; None if one does not say it."""
        known_s = [one.length_s for one in self.facts if one.length_s is not None]
        return sum(known_s) if len(known_s) == len(self.facts) else None

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields all frames that decode. Stream time continues across files."""
        self.damaged = 0
        index = file_start_us = 0
        for file, facts in zip(self.spec.files, self.facts, strict=True):
            clock, came, damaged_before = FrameClock(facts.rate, facts.stamped), 0, self.damaged
            with closing(self.spec.open_file(file, self.hardware)) as video:
                for stamp_s, frame in video.frames(facts.mixed_up):
                    self.damaged = damaged_before + video.damaged
                    t_us = file_start_us + clock.next_us(stamp_s)
                    yield Frame(index + came, t_us, video.picture_of(frame), None), None
                    came += 1
            length_us = clock.next_us(None)
            index, file_start_us = index + came, file_start_us + length_us
            for problem in _find_problems(facts, came, length_us, video.damaged, clock.jumps):
                _log.warning("%s: %s", file, problem)


def _steps_between(stamps: Sequence[float | None]) -> NDArray[np.float64]:
    """Returns the differences of stamps, without those that are not known."""
    return np.diff(np.array([stamp for stamp in stamps if stamp is not None], np.float64))


def _find_problems(facts: FileFacts, came: int, length_us: int, damaged: int, jumps: int) -> Iterator[str]:
    """Yields a sentence for whatever a file that was read to its end did not keep."""
    if damaged:
        yield f"{damaged} frames cannot be decoded"
    if jumps:
        yield f"its time stamps go back or leap {jumps} times, as in joined files; it is left out"
    promised = facts.frames
    if not promised and came and facts.length_s and facts.stamped and not jumps:
        promised = round(came * facts.length_s * US_PER_S / length_us)
    # A sound track may be a little longer, and writers count differently.
    if came < 0.9 * promised - 2:
        yield f"{came} of the {promised} frames that its header promises came; copy or export it again"


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
        """Opens the video as ``VideoSpec`` does, for the CPU; ``classes`` is not used."""
        video = self.video.model_copy(update={"decoder": "cpu"})
        return SpreadVideoSource(video.open(classes), self.runs, self.run_frames)


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
        files = list(zip(self.video.spec.files, self.video.facts, strict=True))
        # A header's length is a hint, and may be missing: then there is one run, at the begin.
        counts = [round((one.length_s or 0.0) * one.rate) if one.stamped else 0 for _, one in files]
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

    def _read_run(self, file: Path, facts: FileFacts, begin: int, before: int) -> Iterator[Frame]:
        """Yields frames from a position in a file on; ``before`` counts those of earlier files."""
        with closing(self.video.spec.open_file(file)) as video:
            if begin:
                video.seek_before(begin / facts.rate)
            at, clock = before + begin, FrameClock(facts.rate, facts.stamped)
            for stamp_s, frame in video.frames(facts.mixed_up):
                if begin and stamp_s is not None and stamp_s < (begin - 0.5) / facts.rate:
                    continue
                t_us = round((before + begin) * US_PER_S / facts.rate) + clock.next_us(stamp_s)
                yield Frame(at, t_us, video.picture_of(frame), None)
                at += 1
                if at == before + begin + self.run_frames:
                    return


SUFFIX = ".avi"

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
        self._written, self._scaler = 0, VideoReformatter()
        try:
            self._file = av.open(str(path), "w", format="avi")
            rate = Fraction(fps).limit_denominator(100)
            # Tables made for each picture would cost a sixth of its time, and save a hundredth of its size.
            self._track = self._file.add_stream("mjpeg", rate, {"qmin": "3", "huffman": "default"})
            self._track.width, self._track.height = self.size
            self._track.pix_fmt, self._track.codec_context.thread_count = "yuvj420p", 1
            self._track.bit_rate = round(3 * fps * self.size[0] * self.size[1])
            self._file.start_encoding()
        except av.FFmpegError:
            raise UserError(f"{path.parent}: no video can be written there; {_LIMITS}") from None

    def write_picture(self, image: NDArray[np.uint8]) -> None:
        """Writes a picture; one of another size than the first is scaled in proportion, with black borders.

        Raises:
            UserError: the disk is full, or the file cannot grow any more.
        """
        scale = min(self.size[0] / image.shape[1], self.size[1] / image.shape[0])
        if (image.shape[1], image.shape[0]) != self.size:
            image = np.asarray(
                cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8
            )
            right, under = self.size[0] - image.shape[1], self.size[1] - image.shape[0]
            sides = under // 2, under - under // 2, right // 2, right - right // 2
            image = np.asarray(cv2.copyMakeBorder(image, *sides, cv2.BORDER_CONSTANT), np.uint8)
        folder = self._path.parent
        frame = VideoFrame.from_numpy_buffer(np.ascontiguousarray(image), "bgr24")
        frame = self._scaler.reformat(frame, format="yuvj420p", threads=1)
        frame.pts = self._written
        try:
            self._file.mux(self._track.encode(frame))
        except av.FFmpegError:
            raise UserError(f"{folder}: the video cannot be written any further; {_LIMITS}") from None
        self._written += 1
        if self._written % _CHECKED_EVERY == 0 and shutil.disk_usage(folder).free < _RESERVE_BYTES:
            raise UserError(f"{folder}: the disk is full; free some space or choose another folder")

    def close(self) -> int:
        """Closes the file; returns the number of its readable pictures."""
        with suppress(av.FFmpegError):
            self._file.mux(self._track.encode())
        with suppress(av.FFmpegError):
            self._file.close()
        return _readable(self._path, self._written)


def _readable(path: Path, frames: int) -> int:
    """Returns ``frames`` if the index has as many and the last can be read; otherwise counts what decodes."""
    with suppress(UnreadableError), closing(VideoInput(f"file:{path}")) as video:
        if frames and video.track.frames == frames and video.length_s:
            video.seek_before((frames - 1) * video.length_s / frames)
            if video.next_frame() is not None:
                return frames
            video.seek_before(0)
        return sum(1 for _ in iter(video.next_frame, None))
    return 0
