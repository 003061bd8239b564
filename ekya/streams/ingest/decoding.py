"""Decodes video with FFmpeg, through PyAV: files, devices and live cameras alike."""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from fractions import Fraction

import av
import cv2
import numpy as np
from av.error import EOFError as EndError
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from ekya.core.units import US_PER_S
from ekya.streams.ingest.pictures import UnreadableError, size_within

# A damaged stretch of a file may give one error after another; past its end every further try fails at once.
_TRIES_AFTER_A_FAILED_READ = 50
_TURNS = {90: cv2.ROTATE_90_COUNTERCLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_CLOCKWISE}
# Pixels of video are at most about twice as wide as high; anything else is a damaged header.
_SANE_RATIO = (Fraction(1, 4), Fraction(4))
_SAME_RATE = 0.1
_LONGEST_GAP_S, _LONGEST_GAP_FRAMES = 10.0, 10


class VideoInput:
    """The largest track of a video, opened for decoding on one thread: one camera must not occupy all cores.

    Attributes:
        track: its facts, as the header has them.
        sizes: width and height of all real tracks, pixels; cover pictures are none.
        damaged: number of packets so far that did not decode.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float | None = None,
        options: Mapping[str, str] | None = None,
        kind: str | None = None,
    ) -> None:
        """Opens a video.

        Args:
            address: URL or device; ``file:`` and a path for a file.
            timeout_s: seconds without a frame after which it is taken to have ended; None waits for ever.
            options: FFmpeg's, of the container.
            kind: FFmpeg's name of the format; None finds it out.

        Raises:
            UnreadableError: it cannot be opened, or has no video.
        """
        try:
            self._container = av.open(
                address,
                format=kind,
                options=dict(options or {}),
                timeout=timeout_s,
                metadata_errors="replace",
            )
        except av.FFmpegError as error:
            raise UnreadableError(
                f"cannot be decoded as video ({getattr(error, 'strerror', None) or error})"
            ) from error
        tracks = [one for one in self._container.streams.video if _is_real(one)]
        if not tracks:
            covers = "but a cover picture" if self._container.streams.video else "at all"
            self._container.close()
            raise UnreadableError(f"has no video {covers}")
        self.sizes = tuple((one.codec_context.width, one.codec_context.height) for one in tracks)
        self.track = max(tracks, key=lambda one: one.codec_context.width * one.codec_context.height)
        self.track.codec_context.thread_count = 1
        self.damaged = 0
        self._tick_s = float(self.track.time_base or Fraction(1, US_PER_S))
        self._timeout_s = timeout_s
        self._packets = self._container.demux(self.track)
        self._decoded: deque[VideoFrame] = deque()
        self._scaler = VideoReformatter()
        self._first_ratio: Fraction | None = None

    @property
    def rate(self) -> float:
        """Frames a second by the header, NaN if it does not say them; the average if it counts the frames."""
        said = self.track.guessed_rate or self.track.average_rate
        rate, length_s = float(said) if said else float("nan"), self.length_s
        average = self.track.frames / length_s if self.is_counted and length_s else rate
        return average if abs(average / rate - 1) > _SAME_RATE else rate

    @property
    def is_counted(self) -> bool:
        """Whether the header says the number of frames and their length."""
        return bool(self.track.frames and self.track.duration)

    @property
    def length_s(self) -> float | None:
        """Seconds by the header; None if it does not say them."""
        if self.track.duration:
            return self.track.duration * self._tick_s
        whole = self._container.duration
        return whole / av.time_base if whole is not None and whole > 0 else None

    def frames(self) -> Iterator[tuple[float | None, VideoFrame]]:
        """Yields all frames that decode, in order, each after its stamp: seconds since the begin, or None."""
        start = self.track.start_time or 0
        while (frame := self.next_frame()) is not None:
            stamp = None if frame.pts is None else (frame.pts - start) * self._tick_s
            yield stamp, frame

    def next_frame(self) -> VideoFrame | None:
        """Waits for the next frame; None at the end, or if none comes in time. Damage is passed over."""
        began_s, failed = time.monotonic(), 0
        while not self._decoded:
            if self._timeout_s is not None and time.monotonic() - began_s > self._timeout_s:
                return None
            try:
                packet = next(self._packets)
            except StopIteration:
                return None
            except av.FFmpegError:
                failed += 1
                if self._timeout_s is not None or failed > _TRIES_AFTER_A_FAILED_READ:
                    return None
                self._packets = self._container.demux(self.track)
                continue
            try:
                self._decoded.extend(packet.decode())
            except EndError:
                return None
            except av.FFmpegError:
                self.damaged += 1
        return self._decoded.popleft()

    def seek_before(self, stamp_s: float) -> None:
        """Goes on at the last frame before this stamp that decodes alone; stays where it is if it cannot."""
        try:
            offset = round(stamp_s / self._tick_s) + (self.track.start_time or 0)
            self._container.seek(offset, stream=self.track)
        except av.FFmpegError:
            return
        self._packets = self._container.demux(self.track)
        self._decoded.clear()

    def picture_of(
        self, frame: VideoFrame, max_side: int, *, square_pixels: bool = True
    ) -> NDArray[np.uint8]:
        """Returns a frame as (H, W, 3) uint8 BGR, upright, of the size that the stream has there.

        Args:
            frame: of this video.
            max_side: longest side of the result, pixels.
            square_pixels: whether a picture whose pixels are not square is stretched until they are.
        """
        width, height = frame.width, frame.height
        ratio = self._pixel_ratio() if square_pixels else 1
        if ratio > 1:
            width = round(width * ratio)
        else:
            height = round(height / ratio)
        width, height = size_within(width, height, max_side)
        # One pass converts and scales. By area, as other pictures are scaled down.
        made = self._scaler.reformat(frame, width, height, "bgr24", interpolation="AREA", threads=1)
        image = np.asarray(made.to_ndarray(), dtype=np.uint8)
        turn = _TURNS.get(frame.rotation % 360)
        return image if turn is None else np.asarray(cv2.rotate(image, turn), dtype=np.uint8)

    def close(self) -> None:
        """Closes file or connection. May be called twice."""
        self._container.close()

    def _pixel_ratio(self) -> Fraction:
        """Returns the width of a pixel over its height: the container's, unless the stream itself changes."""
        now = self.track.codec_context.sample_aspect_ratio
        if self._first_ratio is None:
            self._first_ratio = now
        ratio = self.track.sample_aspect_ratio if now == self._first_ratio else now
        return ratio if ratio and _SANE_RATIO[0] <= ratio <= _SANE_RATIO[1] else Fraction(1)


def _is_real(track: VideoStream) -> bool:
    # A track whose codec is not known has no decoder.
    return not track.disposition & Disposition.attached_pic and track.codec_context is not None


class FrameClock:
    """Makes the time of each frame of a file from its stamp. Times rise, whatever the stamps do.

    Attributes:
        jumps: number of stamps so far that went back, or ahead by more than ten seconds and ten frames, as
            in files that were joined: such a frame follows the one before as others do.
        end_us: end of the last frame, microseconds since the first.
    """

    def __init__(self, rate: float, stamped: bool = True) -> None:
        """Creates a clock; ``rate`` is of frames without a stamp, and of all unless ``stamped``."""
        self._period_us = US_PER_S / rate
        self._longest_us = max(_LONGEST_GAP_S * US_PER_S, _LONGEST_GAP_FRAMES * self._period_us)
        self._stamped = stamped
        self._begin_us: float | None = None
        self._last_us = self._next_us = 0.0
        self.jumps = 0

    @property
    def end_us(self) -> int:
        return round(self._next_us)

    def next_us(self, stamp_s: float | None) -> int:
        """Returns the time of the next frame, microseconds since the first."""
        t_us = self._next_us
        if stamp_s is not None and self._stamped:
            stamp_us = stamp_s * US_PER_S
            if self._begin_us is None:
                self._begin_us = stamp_us - t_us
            step_us = stamp_us - self._begin_us - self._last_us
            if 1 <= step_us <= self._longest_us:
                t_us = stamp_us - self._begin_us
            elif t_us:
                self.jumps += 1
                self._begin_us = stamp_us - t_us
        self._last_us, self._next_us = t_us, t_us + self._period_us
        return round(t_us)
