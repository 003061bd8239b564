"""RTSP server on this machine, from Debian packages, that streams a video like a camera."""

import os
import socket
import subprocess
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import pytest

SERVER = Path(__file__).resolve().parents[2] / "experiments" / "rtsp_server.py"
SYSTEM_PYTHON = "/usr/bin/python3"
PACKAGES = "gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-good python3-gi"


@cache
def _missing():
    code = "import gi; gi.require_version('GstRtspServer', '1.0'); from gi.repository import GstRtspServer"
    try:
        return subprocess.run([SYSTEM_PYTHON, "-c", code], check=False, capture_output=True).returncode != 0
    except FileNotFoundError:
        return True


def require_server():
    """Skips the test, with a reason, if there is no RTSP server."""
    if _missing():
        pytest.skip(f"no RTSP server on this machine; apt-get install {PACKAGES}")


class RtspCamera:
    """RTSP server on a free port, from ``start`` until ``kill``."""

    def __init__(self, video, login=None):
        self.video = video
        self.login = login
        self._process = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    @property
    def url(self):
        return f"rtsp://127.0.0.1:{self.port}/live"

    @property
    def connected(self):
        """Returns whether a client is connected."""
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return any(
            remote.endswith(f":{self.port:04X}") and state == "01" for _, _, remote, state, *_ in lines
        )

    def start(self):
        environment = dict(os.environ)
        if self.login is not None:
            environment["RTSP_USER"], environment["RTSP_PASSWORD"] = self.login.split(":")
        self._process = subprocess.Popen(
            [SYSTEM_PYTHON, str(SERVER), str(self.video), "--port", str(self.port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        assert self._process.stdout.readline(), "the RTSP server did not start"

    def kill(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()


def street_video(folder, data):
    """Returns a video of the shared data or, without it, creates one: bright boxes on a dark street."""
    if data is not None:
        return data / "videos" / "ahmetozlu_input_video.mp4"
    path = folder / "street.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 24, (640, 352))
    for index in range(240):
        picture = np.full((352, 640, 3), 60, np.uint8)
        for row in range(3):
            left = (index * (4 + row) + 200 * row) % 640
            cv2.rectangle(
                picture, (left, 80 + 80 * row), (left + 60, 130 + 80 * row), (200, 80 * row, 90), -1
            )
        writer.write(picture)
    writer.release()
    return path
