"""Decoding of video by hardware, NVDEC or VAAPI, where FFmpeg's build and this machine have it.

A source's first frames are decoded by software and by hardware. The hardware goes on alone if it gives the
same pictures for less processor time; otherwise, and if it fails later, software does.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, cast

import av
import cv2
import numpy as np
from av.codec.context import CodecContext
from av.codec.hwaccel import HWAccel, hwdevices_available
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

_LOG = logging.getLogger(__name__)

DecoderName = Literal["cpu", "auto", "cuda", "vaapi"]
"""What decodes a source; ``auto`` is the first kind of hardware that can be opened."""

KINDS = ("cuda", "vaapi")
_TRIED_FRAMES = 12
_UNTIMED_FRAMES = 4
"""At the begin of a trial: on these the hardware makes its decoder."""
_ALIKE_LEVELS = 2.0
"""Greatest mean difference of two pictures that count as the same, of 255."""
_MOST_SILENT = 150
"""Packets without a picture, one after the other, after which a decoder is given up: more than are between
two pictures that decode alone."""


class HardwareDecoder:
    """What is known of the decoding of one source by hardware, however often it is opened.

    Attributes:
        proven: it gave the same pictures as software for less processor time.
        cpu_s: clock of the trial.
    """

    def __init__(self, wanted: DecoderName, cpu_s: Callable[[], float] = time.process_time) -> None:
        """Opens nothing yet; ``cpu_s`` returns this process's processor time."""
        self._kinds = tuple(kind for kind in KINDS if wanted in (kind, "auto"))
        self.cpu_s = cpu_s
        self.proven = False
        self._silent = 0

    def open_decoder(self, track: VideoStream) -> VideoCodecContext | None:
        """Opens a decoder of a track; None, and a warning at the first time, if there is none."""
        refused = []
        for kind in self._kinds:
            try:
                decoder = _open_kind(kind, track.codec_context.codec.name)
                decoder.extradata = track.codec_context.extradata
                decoder.sample_aspect_ratio = track.codec_context.sample_aspect_ratio
            except (av.FFmpegError, RuntimeError, ValueError) as error:
                refused.append(_in_words(kind, error))
            else:
                self._kinds = (kind,)
                return decoder
        self.give_up("; ".join(refused))
        return None

    def note_packet(self, shown: bool) -> None:
        """Notes whether it gave pictures for a packet; gives it up after many without."""
        self._silent = 0 if shown else self._silent + 1
        if self.proven and self._silent > _MOST_SILENT:
            self.give_up("it gives no more pictures")

    def give_up(self, why: str) -> None:
        """Leaves all decoding of the source to software, and logs why unless that was done before."""
        if self._kinds:
            _LOG.warning("video is decoded by the CPU, not by hardware: %s", why)
        self._kinds, self.proven = (), False


class DecoderTrial:
    """Decodes the first packets of a track by software and by hardware.

    Attributes:
        over: True once ``hardware`` is proven, or given up.
        ahead: frames that the hardware gave and software did not, once it is over.
        behind: number of frames that software gave and the hardware did not, once it is over.
    """

    def __init__(
        self,
        hardware: HardwareDecoder,
        decoder: VideoCodecContext,
        picture_of: Callable[[VideoFrame], NDArray[np.uint8]],
    ) -> None:
        """Begins; ``picture_of`` returns a frame's picture."""
        self._decoder, self._hardware, self._picture_of = decoder, hardware, picture_of
        self.over = False
        self.ahead: list[VideoFrame] = []
        self.behind = 0
        self._pairs = 0
        self._took_s = [0.0, 0.0]
        self._waiting = deque[NDArray[np.uint8]](), deque[tuple[VideoFrame, NDArray[np.uint8]]]()

    def decode_packet(self, packet: "Packet[VideoStream]") -> list[VideoFrame]:
        """Returns software's frames of a packet.

        Raises:
            av.FFmpegError: software cannot decode it.
        """
        by_software, by_hardware = self._waiting
        began_s = self._hardware.cpu_s()
        frames = [frame for frame in packet.decode() if isinstance(frame, VideoFrame)]
        by_software.extend(map(self._picture_of, frames))
        turned_s = self._hardware.cpu_s()
        try:
            other = self._decoder.decode(packet)
            by_hardware.extend((frame, self._picture_of(frame)) for frame in other)
        except (av.FFmpegError, RuntimeError, ValueError) as error:
            self._end(f"it fails ({getattr(error, 'strerror', None) or error})")
            return frames
        ended_s = self._hardware.cpu_s()
        if self._pairs >= _UNTIMED_FRAMES:
            self._took_s[0] += turned_s - began_s
            self._took_s[1] += ended_s - turned_s
        while by_software and by_hardware and not self.over:
            self._compare(by_software.popleft(), by_hardware.popleft()[1])
        if len(by_software) > _TRIED_FRAMES:
            self._end("it gives no pictures")
        return frames

    def _compare(self, picture: NDArray[np.uint8], other: NDArray[np.uint8]) -> None:
        differs = 255.0 if picture.shape != other.shape else float(cv2.absdiff(picture, other).mean())
        self._pairs += 1
        if differs > _ALIKE_LEVELS:
            self._end(f"its pictures differ from those of software by {differs:.0f} of 255 levels")
        elif self._pairs == _TRIED_FRAMES:
            software_ms, hardware_ms = (1e3 * one / (_TRIED_FRAMES - _UNTIMED_FRAMES) for one in self._took_s)
            dear = f"it takes {hardware_ms:.2g} ms of a core a frame, and software {software_ms:.2g} ms"
            self._end(dear if hardware_ms >= software_ms else "")

    def _end(self, refused: str) -> None:
        self.over = True
        if refused:
            self._hardware.give_up(refused)
            return
        self._hardware.proven = True
        self.behind = len(self._waiting[0])
        self.ahead = [frame for frame, _ in self._waiting[1]]


def probe_hardware() -> dict[str, str]:
    """Returns for each kind of hardware why it cannot decode H.264 here; nothing if its device opens."""
    found = dict.fromkeys(KINDS, "")
    for kind in KINDS:
        try:
            _open_kind(kind, "h264")
        except (av.FFmpegError, RuntimeError, ValueError) as error:
            found[kind] = _in_words(kind, error)
    return found


def _open_kind(kind: str, codec: str) -> VideoCodecContext:
    """Returns a decoder of one kind that does not fall back to software by itself.

    Raises:
        RuntimeError, ValueError: the build of FFmpeg has none for this codec.
        av.FFmpegError: its device cannot be opened.
    """
    if kind not in hwdevices_available():
        raise ValueError("this build of PyAV has none")
    accelerated = HWAccel(kind, allow_software_fallback=False)
    decoder = cast(VideoCodecContext, CodecContext.create(codec, "r", hwaccel=accelerated))
    if not decoder.is_hwaccel:
        raise ValueError(f"this build of PyAV has none for {codec}")
    decoder.thread_count = 1
    return decoder


def _in_words(kind: str, error: Exception) -> str:
    if isinstance(error, av.FFmpegError):
        return f"{kind}: driver or device does not open ({error.strerror})"
    return f"{kind}: {error}"
