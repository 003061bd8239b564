"""RTSP camera on this machine that plays a video file in a loop, to try live cameras with.

Needs GStreamer's RTSP server and Debian's own Python (packages gir1.2-gst-rtsp-server-1.0,
gstreamer1.0-plugins-good, python3-gi), and nothing of Ekya:

    /usr/bin/python3 experiments/rtsp_server.py street.mp4 --port 8554
    ekya run --camera rtsp://127.0.0.1:8554/live --golden yolo11x.onnx

The file's pictures are sent as they are encoded (H.264 or MPEG-4 in MP4, or JPEG in AVI), at its rate;
nothing is encoded again. All clients of a camera share one broadcast: a late client joins at its current
position. If the environment variables RTSP_USER and RTSP_PASSWORD are set, the server asks for them. From
SIGUSR1 until SIGUSR2 it sends ten times as many pictures a second.
"""

import argparse
import importlib
import os
import signal
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

NANOSECONDS = 1_000_000_000
_DEMUXERS = {".mp4": "qtdemux", ".avi": "avidemux"}
_PAYLOADERS = {
    "video/x-h264": "rtph264pay config-interval=-1",
    "video/mpeg": "rtpmp4vpay config-interval=-1",
    "image/jpeg": "rtpjpegpay",
}
_FLOOD = 10


@dataclass(frozen=True)
class Recording:
    """Encoded pictures of a file.

    Attributes:
        caps: their format, as GStreamer's caps.
        pictures: in decoding order.
        gap_ns: from one to the next.
    """

    caps: str
    pictures: tuple[bytes, ...]
    gap_ns: int

    @property
    def payloader(self) -> str:
        """GStreamer element that cuts the pictures into packets."""
        for kind, element in _PAYLOADERS.items():
            if self.caps.startswith(kind):
                return element
        raise SystemExit(f"cannot send {self.caps.split(',')[0]}; use H.264 or MPEG-4 in MP4, or JPEG in AVI")


class Broadcast:
    """Feeds one running camera, picture after picture, at their rate, while it has clients.

    Attributes:
        times: as many times the rate.
    """

    def __init__(self, gst: ModuleType, glib: ModuleType, recording: Recording, source: Any) -> None:
        self._gst = gst
        self._glib = glib
        self._recording = recording
        self._source = source
        self._sent = 0
        self._due_us = glib.get_monotonic_time()
        self.times = 1
        self._feed()

    def _feed(self) -> bool:
        pictures = self._recording.pictures
        buffer = self._gst.Buffer.new_wrapped(pictures[self._sent % len(pictures)])
        if self._source.emit("push-buffer", buffer) != self._gst.FlowReturn.OK:
            return False
        self._sent += 1
        self._due_us += self._recording.gap_ns // 1000 // self.times
        wait_ms = max(0, self._due_us - self._glib.get_monotonic_time()) // 1000
        self._glib.timeout_add(wait_ms, self._feed)
        return False


def read_recording(gst: ModuleType, video: Path) -> Recording:
    """Reads every encoded picture of a file, without decoding any."""
    demuxer = _DEMUXERS.get(video.suffix.lower())
    if demuxer is None or not video.is_file():
        raise SystemExit(f"{video}: use an .mp4 or .avi file that is there")
    pipeline = gst.parse_launch(f"filesrc name=file ! {demuxer} ! appsink name=out sync=false")
    pipeline.get_by_name("file").set_property("location", str(video))
    out = pipeline.get_by_name("out")
    pipeline.set_state(gst.State.PLAYING)
    pictures, times_ns, caps = [], [], ""
    while (sample := out.emit("pull-sample")) is not None:
        buffer = sample.get_buffer()
        caps = caps or sample.get_caps().to_string()
        pictures.append(bytes(buffer.extract_dup(0, buffer.get_size())))
        # With another decoding than display order, only the decoding times rise.
        times_ns.append(buffer.dts if buffer.dts != gst.CLOCK_TIME_NONE else buffer.pts)
    pipeline.set_state(gst.State.NULL)
    if len(pictures) < 2:
        raise SystemExit(f"{video}: no video in it that GStreamer can read")
    gap_ns = round(median(later - earlier for earlier, later in pairwise(times_ns)))
    return Recording(caps, tuple(pictures), gap_ns)


def main() -> int:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("video", type=Path)
    parser.add_argument("--port", type=int, default=8554)
    parser.add_argument("--name", default="live", help="the last part of the URL")
    said = parser.parse_args()
    gi = importlib.import_module("gi")
    gi.require_version("Gst", "1.0")
    gi.require_version("GstRtspServer", "1.0")
    gst, rtsp, glib = (
        importlib.import_module(f"gi.repository.{n}") for n in ("Gst", "GstRtspServer", "GLib")
    )
    gst.init([])
    recording = read_recording(gst, said.video)
    factory = rtsp.RTSPMediaFactory()
    factory.set_launch(
        "( appsrc name=pictures is-live=true do-timestamp=true format=time ! "
        f"{recording.payloader} name=pay0 pt=96 )"
    )
    factory.set_shared(True)
    broadcasts: list[Broadcast] = []

    def configure(_: object, media: Any) -> None:
        source = media.get_element().get_by_name("pictures")
        source.set_property("caps", gst.Caps.from_string(recording.caps))
        broadcasts[:] = [Broadcast(gst, glib, recording, source)]

    def set_times(times: int) -> bool:
        for broadcast in broadcasts:
            broadcast.times = times
        return True

    factory.connect("media-configure", configure)
    for number, times in ((signal.SIGUSR1, _FLOOD), (signal.SIGUSR2, 1)):
        glib.unix_signal_add(glib.PRIORITY_DEFAULT, number, set_times, times)
    server = rtsp.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service(str(said.port))
    if "RTSP_PASSWORD" in os.environ:
        _ask_for_password(rtsp, server, factory)
    server.get_mount_points().add_factory(f"/{said.name}", factory)
    if not server.attach(None):
        raise SystemExit(f"port {said.port} is taken; name another with --port")
    sys.stdout.write(f"rtsp://127.0.0.1:{server.get_bound_port()}/{said.name}\n")
    sys.stdout.flush()
    glib.MainLoop().run()
    return 0


def _ask_for_password(rtsp: ModuleType, server: Any, factory: Any) -> None:
    auth = rtsp.RTSPAuth()
    token = rtsp.RTSPToken()
    token.set_string(rtsp.RTSP_TOKEN_MEDIA_FACTORY_ROLE, "viewer")
    basic = rtsp.RTSPAuth.make_basic(os.environ["RTSP_USER"], os.environ["RTSP_PASSWORD"])
    auth.add_basic(basic, token)
    server.set_auth(auth)
    permissions = rtsp.RTSPPermissions()
    for allowed in ("media.factory.access", "media.factory.construct"):
        permissions.add_permission_for_role("viewer", allowed, True)
    factory.set_permissions(permissions)


if __name__ == "__main__":
    sys.exit(main())
