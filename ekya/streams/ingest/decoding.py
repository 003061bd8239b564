"""Decodes video with FFmpeg, through PyAV: files, devices and live cameras alike."""

import time
from collections import deque
from collections.abc import Iterator
from fractions import Fraction

import av
import cv2
import numpy as np
from av.packet import Packet
from av.stream import Disposition
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from ekya.core.units import US_PER_S
from ekya.streams.ingest.hardware import DecoderTrial, HardwareDecoder
from ekya.streams.ingest.pictures import UnreadableError, size_within

# A damaged stretch gives one error after another, and so may the end: there every further try fails at once.
_MOST_FAILURES = 500
_TURNS = {90: cv2.ROTATE_90_COUNTERCLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_CLOCKWISE}
# Pixels of video are at most about twice as wide as high; anything else is a damaged header.
_SANE_RATIO = (0.25, 4.0)
_STILL = Disposition.attached_pic | Disposition.still_image | Disposition.timed_thumbnails
_LONGEST_GAP_S, _LONGEST_GAP_FRAMES = 10.0, 10
# Otherwise chroma that hardware gives interleaved would be scaled in another way than software's.
_PLANAR = {"nv12": "yuv420p", "p010le": "yuv420p10le"}


class VideoInput:
    """The largest track of a video, opened for decoding on one thread: one camera must not occupy all cores.

    Attributes:
        track: its facts, as the header has them.
        sizes: width and height of all real tracks, pixels; cover pictures are none.
        damaged: number of packets that did not decode, before one that did.
    """

    def __init__(
        self,
        address: str,
        max_side: int = 1 << 16,
        *,
        square_pixels: bool = True,
        timeout_s: float | None = None,
        options: dict[str, str] | None = None,
        kind: str | None = None,
        hardware: HardwareDecoder | None = None,
    ) -> None:
        """Opens a video.

        Args:
            address: URL or device; ``file:`` and a path for a file.
            max_side: longest side of a picture, pixels; larger ones are scaled down.
            square_pixels: whether pictures whose pixels are not square are stretched until they are.
            timeout_s: seconds without a frame after which it is taken to have ended; None waits for ever.
            options: FFmpeg's, of the container.
            kind: FFmpeg's name of the format; None finds it out.
            hardware: decodes it if that is proven, or proves so on the first frames; None for software. It
                cannot seek.

        Raises:
            UnreadableError: it cannot be opened, or has no video.
        """
        try:
            # Titles and the like may be in any encoding.
            self._file = av.open(
                address, format=kind, options=options, timeout=timeout_s, metadata_errors="replace"
            )
        except av.FFmpegError as error:
            raise UnreadableError(f"cannot be decoded as video ({error.strerror})") from error
        # A track whose codec is not known has no decoder.
        tracks = [of for of in self._file.streams.video if of.codec_context and not of.disposition & _STILL]
        if not tracks:
            self.close()
            raise UnreadableError("has no video; a cover picture is none")
        self.sizes = tuple((one.codec_context.width, one.codec_context.height) for one in tracks)
        pixels = [width * height for width, height in self.sizes]
        # A track of one frame is a cover that was not declared.
        self.track = max(zip(tracks, pixels, strict=True), key=lambda one: (one[0].frames != 1, one[1]))[0]
        self.track.codec_context.thread_count = 1
        self.damaged = 0
        self._max_side, self._square_pixels, self._timeout_s = max_side, square_pixels, timeout_s
        self._tick_s = float(self.track.time_base or 1)
        self._packets = self._file.demux(self.track)
        self._decoded: deque[VideoFrame] = deque()
        self._scaler, self._planar = VideoReformatter(), VideoReformatter()
        self._ratio: tuple[Fraction | None, float] | None = None
        self._decoder: VideoCodecContext = self.track.codec_context
        self._hardware, self._behind = hardware, 0
        self._trial: DecoderTrial | None = None
        decoder = hardware.open_decoder(self.track) if hardware is not None else None
        if hardware is not None and decoder is not None:
            self._choose_decoder(hardware, decoder)

    @property
    def rate(self) -> float:
        """Frames a second by the header, NaN if it does not say them."""
        return float(self.track.average_rate or self.track.guessed_rate or "nan")

    @property
    def is_counted(self) -> bool:
        """Whether the header times every frame, so that its rate is the average."""
        return "mp4" in self._file.format.name and self.track.frames > 0

    @property
    def length_s(self) -> float | None:
        """Seconds by the header; None if it does not say them."""
        if self.track.duration:
            return self.track.duration * self._tick_s
        # Matroska says the end, whatever time the file begins at.
        begin = self._file.start_time if "matroska" in self._file.format.name else 0
        length = (self._file.duration or 0) - (begin or 0)
        return float(length / av.time_base) if length > 0 else None

    def frames(self, by_decoding: bool = False) -> Iterator[tuple[float | None, VideoFrame]]:
        """Yields all frames that decode, in order, each after its stamp: seconds since the begin, or None.

        Args:
            by_decoding: take the stamps at which frames are decoded, for a file that mixes up the others.
        """
        start = self.track.start_time or 0
        while (frame := self.next_frame()) is not None:
            stamp = frame.dts if by_decoding else frame.pts
            yield None if stamp is None else (stamp - start) * self._tick_s, frame

    def next_frame(self) -> VideoFrame | None:
        """Waits for the next frame; None at the end, or if none comes in time. Damage is passed over."""
        began_s, failed = time.monotonic(), 0
        while not self._decoded:
            is_late = self._timeout_s is not None and time.monotonic() - began_s > self._timeout_s
            try:
                packet = None if is_late or failed > _MOST_FAILURES else next(self._packets, None)
                if packet is None:
                    return None
                self._decoded.extend(self._decode(packet))
            except av.FFmpegError as error:
                if isinstance(error, BlockingIOError):  # a device that has no frame yet
                    time.sleep(0.005)
                else:
                    failed += 1
                self._packets = self._file.demux(self.track)
        self.damaged += failed
        return self._decoded.popleft()

    def seek_before(self, stamp_s: float) -> None:
        """Goes on at the last frame before this stamp that decodes alone; stays where it is if it cannot."""
        try:
            offset = round(stamp_s / self._tick_s) + (self.track.start_time or 0)
            self._file.seek(offset, stream=self.track)
        except av.FFmpegError:
            return
        self._packets = self._file.demux(self.track)
        self._decoded.clear()

    def picture_of(self, frame: VideoFrame) -> NDArray[np.uint8]:
        """Returns a frame of this video as (H, W, 3) uint8 BGR, upright, in the size that it has there."""
        ratio = self._pixel_ratio() if self._square_pixels else 1.0
        width, height = round(frame.width * max(ratio, 1.0)), round(frame.height / min(ratio, 1.0))
        width, height = size_within(width, height, self._max_side)
        planar = _PLANAR.get(frame.format.name)
        if planar is not None:
            frame = self._planar.reformat(frame, format=planar, threads=1)
        # One pass converts and scales. By area, as other pictures are scaled down.
        made = self._scaler.reformat(frame, width, height, "bgr24", interpolation="AREA", threads=1)
        plane, strides = made.planes[0], (made.planes[0].line_size, 3, 1)
        # Not copied: the array keeps the frame's memory.
        image = np.ndarray((height, width, 3), np.uint8, memoryview(plane), strides=strides)
        turn = _TURNS.get(frame.rotation % 360)
        return image if turn is None else np.asarray(cv2.rotate(image, turn), dtype=np.uint8)

    def close(self) -> None:
        """Closes file or connection. May be called twice."""
        self._file.close()

    def _choose_decoder(self, hardware: HardwareDecoder, decoder: VideoCodecContext) -> None:
        """Decodes by hardware if that is proven; otherwise tries it on the first frames, and keeps them."""
        if hardware.proven:
            self._decoder = decoder
            return
        tried = self._trial = DecoderTrial(hardware, decoder, self.picture_of)
        shown = []
        while not tried.over and (frame := self.next_frame()) is not None:
            shown.append(frame)
        self._decoded.extendleft(reversed(shown))
        self._trial = None
        if hardware.proven:
            self._decoder, self._behind = decoder, tried.behind
            self._decoded.extend(tried.ahead)

    def _decode(self, packet: "Packet[VideoStream]") -> list[VideoFrame]:
        if self._trial is not None and not self._trial.over:
            return self._trial.decode_packet(packet)
        frames: list[VideoFrame] = []
        try:
            frames = self._decoder.decode(packet)
        finally:
            if self._hardware is not None and self._hardware.proven:
                self._hardware.note_packet(bool(frames))
                self._decoder = self._decoder if self._hardware.proven else self.track.codec_context
        passed_over = min(self._behind, len(frames))
        self._behind -= passed_over
        return frames[passed_over:]

    def _pixel_ratio(self) -> float:
        """Returns the width of a pixel over its height: the container's, until the stream itself changes."""
        now = self._decoder.sample_aspect_ratio
        if self._ratio is None or now != self._ratio[0]:
            ratio = float((now if self._ratio else self.track.sample_aspect_ratio) or 1)
            self._ratio = now, ratio if _SANE_RATIO[0] <= ratio <= _SANE_RATIO[1] else 1.0
        return self._ratio[1]


class FrameClock:
    """Makes the time of each frame of a file from its stamp, so that times rise whatever the stamps do.

    Attributes:
        jumps: number of stamps so far that went back, or ahead by more than ten seconds and ten frames, as in
            joined files: such a frame follows the one before as others do.
    """

    def __init__(self, rate: float, stamped: bool) -> None:
        """Creates a clock; ``rate`` is of frames without a stamp, and of all unless ``stamped``."""
        self._period_us, self._stamped = US_PER_S / rate, stamped
        self._longest_us = max(_LONGEST_GAP_S * US_PER_S, _LONGEST_GAP_FRAMES * self._period_us)
        self._begin_us: float | None = None
        self._last_us = -self._period_us
        self.jumps = 0

    def next_us(self, stamp_s: float | None) -> int:
        """Returns the time of the next frame, or of the end, microseconds since the first."""
        t_us = self._last_us + self._period_us
        if stamp_s is not None and self._stamped:
            stamp_us = stamp_s * US_PER_S
            if self._begin_us is None:
                self._begin_us = stamp_us - t_us
            if 1 <= stamp_us - self._begin_us - self._last_us <= self._longest_us:
                t_us = stamp_us - self._begin_us
            else:
                self.jumps += 1
                self._begin_us = stamp_us - t_us
        self._last_us = t_us
        return round(t_us)
