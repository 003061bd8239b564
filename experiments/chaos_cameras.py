"""RTSP cameras that ``chaos.py`` floods, stalls, cuts off and brings back with another size or codec.

Each is a server process of its own (``rtsp_server.py``) that plays a rendered street in a loop, so each can
be killed alone, as by a power cut.
"""

import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.streams.synthetic.source import CitySpec

SERVER = Path(__file__).resolve().parent / "rtsp_server.py"
SYSTEM_PYTHON = "/usr/bin/python3"
"""Debian's packages of GStreamer belong to Debian's own Python."""

PACKAGES = "gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-good python3-gi"
SHOWS = ("plain", "size", "codec")
"""What a camera can show; all are the same street."""

_PICTURES = 120
_SMALLER = 0.8


@dataclass(slots=True, eq=False)
class Camera:
    """An RTSP server that keeps its port.

    Attributes:
        id: of its stream.
        videos: what it can show, by name in ``SHOWS``.
        port: 0 before its first start.
        shows: what it shows.
    """

    id: str
    videos: Mapping[str, Path]
    port: int = 0
    shows: str = "plain"
    _process: subprocess.Popen[str] | None = None

    @property
    def stream(self) -> Mapping[str, Any]:
        """Its stream in a fleet file."""
        source = {"kind": "camera", "url": f"rtsp://127.0.0.1:{self.port}/live"}
        return {"id": self.id, "source": source}

    def start(self, shows: str = "plain") -> None:
        """Starts the server; returns when it answers.

        Raises:
            UserError: it does not start.
        """
        command = [SYSTEM_PYTHON, str(SERVER), str(self.videos[shows]), "--port", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        url = self._process.stdout.readline().strip() if self._process.stdout else ""
        if not url:
            raise UserError(f"{SERVER.name}: it does not start")
        self.port = int(url.rsplit(":", 1)[1].split("/")[0])
        self.shows = shows

    def kill(self) -> None:
        """Kills the server, as a power cut would. May be called twice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def flood(self, on: bool) -> None:
        """Sends ten times as many pictures a second, or as many as it should."""
        self._signal(signal.SIGUSR1 if on else signal.SIGUSR2)

    def stall(self, on: bool) -> None:
        """Sends nothing, with the connection open, or goes on."""
        self._signal(signal.SIGSTOP if on else signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


def why_no_cameras() -> str:
    """Returns why there can be no RTSP cameras here; empty if there can."""
    code = "import gi; gi.require_version('GstRtspServer', '1.0'); from gi.repository import GstRtspServer"
    try:
        done = subprocess.run([SYSTEM_PYTHON, "-c", code], check=False, capture_output=True)
    except FileNotFoundError:
        return f"there is no {SYSTEM_PYTHON}"
    return f"apt-get install {PACKAGES}" if done.returncode else ""


def write_videos(source: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Renders some seconds of a street, and returns its video for each name in ``SHOWS``.

    Args:
        source: of a rendered camera, as in a fleet file.
        folder: for the videos; made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spec = CitySpec.model_validate(source)
    classes = tuple(spec.scenes[0].mix)
    frames = islice(spec.open(classes).frames(), _PICTURES)
    pictures = [frame.image for frame, _ in frames]
    smaller = [cv2.resize(one, None, fx=_SMALLER, fy=_SMALLER) for one in pictures]
    return {
        "plain": _written(folder / "plain.avi", "MJPG", pictures, spec.fps),
        "size": _written(folder / "size.avi", "MJPG", smaller, spec.fps),
        "codec": _written(folder / "codec.mp4", "mp4v", pictures, spec.fps),
    }


def _written(path: Path, codec: str, pictures: list[NDArray[np.uint8]], fps: float) -> Path:
    height, width = pictures[0].shape[:2]
    # JPEG over RTP has the standard Huffman tables, and FFmpeg's writer takes others.
    by = cv2.CAP_OPENCV_MJPEG if codec == "MJPG" else cv2.CAP_FFMPEG
    writer = cv2.VideoWriter(str(path), by, cv2.VideoWriter.fourcc(*codec), fps, (width, height))
    for picture in pictures:
        writer.write(picture)
    writer.release()
    return path
