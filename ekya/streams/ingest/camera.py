"""Live cameras: RTSP, MJPEG over HTTP, or a device of this machine.

FFmpeg has timeouts for opening and reading, so a camera that falls silent cannot block its process.
"""

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ekya.core.errors import UserError
from ekya.streams.ingest.credentials import fill_in_url, mask_passwords
from ekya.streams.ingest.decoding import VideoInput
from ekya.streams.ingest.frame import LiveSource, Sight, Silence
from ekya.streams.ingest.hardware import DecoderName, HardwareDecoder
from ekya.streams.ingest.pictures import UnreadableError

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 2.0
"""Back-off between attempts to reach a lost camera, doubled each time. A repaired one should be back within
five seconds, and an attempt at one that is away is a TCP connection."""

ASSUMED_FPS = 25.0
_SANE_FPS = (0.1, 240.0)
_PORTS = {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443}
_DEVICE = re.compile(r"/dev/video\d+")
_UNKNOWN = re.compile(r"\$\{")
_OPTIONS_KEY, _OPTIONS = "OPENCV_FFMPEG_CAPTURE_OPTIONS", "rtsp_flags;prefer_tcp|fpsprobesize;0"
"""FFmpeg's options, in the variable that OpenCV has for them. By default no wait for twenty frames that tell
the rate, two seconds at 10 fps: it is measured here."""
# The decoder delivers the frames that it buffered while it probed the stream in one burst.
_BACKLOG_S = 0.5
_MEASURED_S = 1.5
_RATE_TOLERANCE = 0.2


class CameraSpec(BaseModel):
    """A live camera in a fleet file.

    Attributes:
        url: an ``rtsp://``, ``rtsps://``, ``http://`` or ``https://`` URL, or ``/dev/videoN``.
            ``${NAME}`` stands for the environment variable of that name.
        url_detect: URL of the camera's substream of low resolution. With it that one is opened for all that
            Ekya does, analysis, labels and recording, and ``url`` is only noted.
        decoder: what decodes the video: ``cpu``, or NVDEC by ``cuda``, or ``vaapi``; ``auto`` is the one of
            these that this machine has. Hardware has to show on the first frames that it gives the same
            pictures for less processor time; otherwise the CPU decodes, and a warning says why.
        fps: frames a second; None measures the rate, and assumes ``ASSUMED_FPS`` if the camera cannot be
            reached at the start.
        stall_s: seconds without a frame after which the camera counts as lost.
        max_side: longer frames are scaled down, in proportion, until no side is longer; pixels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gives_truth: ClassVar[bool] = False
    live: ClassVar[bool] = True

    kind: Literal["camera"] = "camera"
    url: str
    url_detect: str | None = None
    decoder: DecoderName = "cpu"
    fps: float | None = Field(default=None, gt=0, le=_SANE_FPS[1])
    stall_s: float = Field(default=5.0, ge=0.5, le=60.0)
    max_side: int = Field(default=640, ge=32)

    @field_validator("url", "url_detect")
    @classmethod
    def _is_a_camera(cls, url: str | None) -> str | None:
        if url is not None and not _UNKNOWN.match(url):
            _check(url)
        return url

    @property
    def urls(self) -> dict[str, str]:
        """The URLs by their keys."""
        return {"url": self.url} | ({} if self.url_detect is None else {"url_detect": self.url_detect})

    @property
    def analysed_url(self) -> str:
        """Key of the URL that is opened."""
        return "url" if self.url_detect is None else "url_detect"

    def open(self, classes: tuple[str, ...]) -> LiveSource:
        """Opens the camera; ``classes`` is not used, since a camera has no truth.

        A camera that cannot be reached is no error: the source keeps trying.

        Raises:
            UserError: the URL names an environment variable that is not set.
        """
        key = self.analysed_url
        address = fill_in_url(url := self.urls[key])
        try:
            _check(address)
        except ValueError as error:
            raise UserError(f"key '{key}': {mask_passwords(str(error), url)}") from None
        hardware = HardwareDecoder(self.decoder)
        source = CameraSource(address, self.fps, self.stall_s, self.max_side, hardware=hardware)
        source.connect_camera()
        return source


class CameraReconnect:
    """When a lost camera is tried again: after a delay that doubles with each attempt, until a picture."""

    def __init__(self) -> None:
        self._delay_s = FIRST_DELAY_S

    def next_delay_s(self) -> float:
        """Returns the seconds to wait before the next attempt."""
        delay_s, self._delay_s = self._delay_s, min(2.0 * self._delay_s, LONGEST_DELAY_S)
        return delay_s


@dataclass(eq=False)
class CameraSource:
    """A ``LiveSource`` over FFmpeg.

    Attributes:
        address: URL with credentials; must not be logged or shown.
        declared_fps, stall_s, max_side: as in ``CameraSpec``.
        now_s: monotonic clock; tests pass their own.
        hardware: that may decode it.
    """

    address: str = field(repr=False)
    declared_fps: float | None
    stall_s: float
    max_side: int
    now_s: Callable[[], float] = field(default=time.monotonic, repr=False)
    hardware: HardwareDecoder | None = field(default=None, repr=False)
    _video: VideoInput | None = field(default=None, init=False, repr=False)
    _measured_fps: float | None = field(default=None, init=False)
    _reason: str = field(default="no connection was tried yet", init=False)

    @property
    def fps(self) -> float:
        """Frames a second: declared, else measured, else assumed."""
        return self.declared_fps or self._measured_fps or ASSUMED_FPS

    def connect_camera(self) -> None:
        """Tries once to reach the camera, and measures its rate unless that is declared."""
        self._video = self._opened()
        if self._video is not None and self.declared_fps is None:
            self._measured_fps = _rate(self._video, self.now_s)

    def watch_pictures(self) -> Iterator[Sight | Silence]:
        """Yields frames and silences as ``LiveSource.watch_pictures``; never ends."""
        reconnect = CameraReconnect()
        try:
            while True:
                if self._video is None:
                    yield Silence(self._reason)
                    time.sleep(reconnect.next_delay_s())
                    self._video = self._opened()
                    continue
                asked_s = self.now_s()
                frame = self._video.next_frame()
                if frame is None:
                    self.close()
                    waited_s = self.now_s() - asked_s
                    # FFmpeg reports a time-out and a closed connection alike; the time tells them apart.
                    stalled = waited_s > 0.9 * self.stall_s
                    self._reason = (
                        f"no frame for {waited_s:.1f} s" if stalled else "the camera ended the connection"
                    )
                    continue
                reconnect = CameraReconnect()
                arrived_ns = time.monotonic_ns()
                yield Sight(arrived_ns, self._video.picture_of(frame))
        finally:
            self.close()

    def close(self) -> None:
        """Closes the connection. May be called twice."""
        if self._video is not None:
            self._video.close()
            self._video = None

    def _opened(self) -> VideoInput | None:
        self._reason = _why_unreachable(self.address, self.stall_s) or ""
        if self._reason:
            return None
        is_device = _DEVICE.fullmatch(self.address)
        # A device that falls silent would block for ever.
        given = "fflags;nonblock" if is_device else os.environ.get(_OPTIONS_KEY, _OPTIONS)
        options = dict(one.split(";", 1) for one in given.split("|") if ";" in one)
        try:
            kind = "v4l2" if is_device else None
            return VideoInput(
                self.address,
                self.max_side,
                timeout_s=self.stall_s,
                options=options,
                kind=kind,
                hardware=self.hardware,
            )
        except UnreadableError:
            self._reason = "the camera answers and gives no video; check login, path and codec"
            return None


def _check(url: str) -> None:
    """Raises ValueError for a URL that is no camera; the message leaves it out, as it may hold a password."""
    scheme = url.partition("://")[0].lower()
    if not (_DEVICE.fullmatch(url) or ("://" in url and scheme in _PORTS)):
        raise ValueError("this is no camera; write rtsp://, rtsps://, http://, https:// or /dev/videoN")
    try:
        hosted = _DEVICE.fullmatch(url) or urlsplit(url).hostname
    except ValueError:  # its message repeats the login
        hosted = None
    # Without a host the connection that is tried would be one to this machine.
    if not hosted:
        raise ValueError(f"this camera has no valid host; write {scheme}://HOST/path")


def _why_unreachable(address: str, timeout_s: float) -> str | None:
    """Returns why the address does not answer, in words; None if it answers."""
    if _DEVICE.fullmatch(address):
        return None if Path(address).exists() else "there is no such device"
    try:
        parts = urlsplit(address)
        where = (parts.hostname or "", parts.port or _PORTS[parts.scheme])
        socket.create_connection(where, timeout_s).close()
    except (OSError, ValueError) as error:
        return f"no connection: {getattr(error, 'strerror', None) or type(error).__name__}"
    return None


def _rate(video: VideoInput, now_s: Callable[[], float]) -> float | None:
    """Returns frames a second: the declared rate if frames arrive at about that, else the measured one."""
    said = video.rate
    sane = _SANE_FPS[0] <= said <= _SANE_FPS[1]
    began_s = now_s()
    came_s = []
    while now_s() < began_s + _BACKLOG_S + _MEASURED_S and video.next_frame() is not None:
        came_s.append(now_s())
    came_s = [at_s for at_s in came_s if at_s >= began_s + _BACKLOG_S]
    if len(came_s) < 3:
        return said if sane else None
    counted = (len(came_s) - 1) / (came_s[-1] - came_s[0])
    return said if sane and abs(said / counted - 1.0) <= _RATE_TOLERANCE else counted
