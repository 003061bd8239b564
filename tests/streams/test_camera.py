"""Tests of live cameras over HTTP; RTSP is in ``test_rtsp.py``."""

import subprocess
import sys
import time
from itertools import islice

import numpy as np
import pytest
from mjpeg_camera import MjpegCamera
from pydantic import ValidationError
from waiting import call_at, wait_until

from ekya.core.errors import UserError
from ekya.streams.ingest import camera as camera_module
from ekya.streams.ingest import feed as feed_module
from ekya.streams.ingest.camera import ASSUMED_FPS, CameraSource, CameraSpec
from ekya.streams.ingest.feed import LiveSample
from ekya.streams.ingest.frame import Frame, Sight, Silence
from ekya.streams.ingest.pictures import UnreadableError
from ekya.streams.ingest.process import Arrived, SourceProcess


def watched(feed, until):
    """Returns the frames that arrived, and the successive values of ``feed.lost``."""
    arrived, said = [], []

    def look():
        arrived.extend(feed.poll_frames(0.05))
        if not said or said[-1] != feed.lost:
            said.append(feed.lost)
        return until(arrived)

    wait_until(look, lambda: f"lost: {said}, {len(arrived)} frames")
    return arrived, said


@pytest.fixture
def camera():
    with MjpegCamera(fps=40.0) as camera:
        yield camera


@pytest.mark.parametrize(
    "url", ["rtsp://10.0.0.5/live", "http://cam:8080/video", "/dev/video12", "${CAMERA}", "rtsps://a/b"]
)
def test_camera_spec_accepts_camera_urls(url):
    assert CameraSpec(url=url).url == url


@pytest.mark.parametrize(
    ("own", "options"),
    [
        (None, {"rtsp_flags": "prefer_tcp", "fpsprobesize": "0"}),
        ("rtsp_transport;udp", {"rtsp_transport": "udp"}),
        ("", {}),
    ],
)
def test_camera_is_opened_with_the_options_of_the_environment(monkeypatch, own, options):
    """In the form and the variable of OpenCV, which people know."""
    key, seen = "OPENCV_FFMPEG_CAPTURE_OPTIONS", []
    monkeypatch.delenv(key, raising=False)
    if own is not None:
        monkeypatch.setenv(key, own)

    def gives_nothing(_address, _max_side, **how):
        seen.append(how["options"])
        raise UnreadableError("gives nothing")

    monkeypatch.setattr(camera_module, "_why_unreachable", lambda *_: None)
    monkeypatch.setattr(camera_module, "VideoInput", gives_nothing)
    CameraSpec(url="rtsp://10.0.0.5/live").open(())
    assert seen == [options]


@pytest.mark.parametrize("url", ["gate.mp4", "ftp://u:secret@cam/x", "/dev/sda1", "rtsp:/cam", ""])
def test_camera_spec_other_url_is_refused_unrepeated(url):
    with pytest.raises(ValidationError, match="this is no camera; write rtsp://") as refused:
        CameraSpec(url=url)
    assert "secret" not in refused.value.errors()[0]["msg"]


@pytest.mark.parametrize(
    "url",
    [
        "rtsp:///live",
        "rtsp://u:secret@/live",
        "rtsp://:80/x",
        "rtsp://u:secret\u2100@cam/x",
        "rtsp://u:se[c@cam/",
    ],
)
def test_camera_spec_url_without_a_host_is_refused_unrepeated(url):
    with pytest.raises(
        ValidationError, match="this camera has no valid host; write rtsp://HOST/path"
    ) as refused:
        CameraSpec(url=url)
    assert "secret" not in refused.value.errors()[0]["msg"]


def test_camera_unset_variable_is_user_error(monkeypatch):
    monkeypatch.delenv("CAM_PASSWORD", raising=False)
    with (
        SourceProcess(CameraSpec(url="rtsp://u:${CAM_PASSWORD}@cam/"), ()) as process,
        pytest.raises(UserError, match="CAM_PASSWORD is not set"),
    ):
        process.wait_open()


def test_camera_with_a_substream_opens_that_alone(camera, feed):
    spec = CameraSpec(url="http://127.0.0.1:9/main", url_detect=camera.url, fps=40)
    watching = feed(spec)
    assert watching.wait_open() == 40
    call_at(watching.start_frames, 0)
    assert watched(watching, bool)[1] == [None]


def test_camera_names_the_key_of_the_url_that_a_variable_makes_no_camera(monkeypatch):
    monkeypatch.setenv("SUB", "ftp://cam/sub")
    with pytest.raises(UserError, match=r"^key 'url_detect': this is no "):
        CameraSpec(url="rtsp://cam/live", url_detect="${SUB}").open(())


def test_feed_numbers_frames_and_the_newest_has_pixels(camera, feed):
    watching = feed(CameraSpec(url=camera.url, fps=40))
    assert watching.wait_open() == 40
    call_at(watching.start_frames, 7)
    polled = []
    wait_until(lambda: polled.append(watching.poll_frames(0.2)) or sum(map(len, polled)) > 40)
    arrived = [one for some in polled for one in some]
    assert [one.index for one in arrived] == list(range(7, 7 + len(arrived)))
    times = [one.t_us for one in arrived]
    assert times == sorted(set(times))
    for some in filter(None, polled):
        assert [one.frame is not None for one in some] == [False] * (len(some) - 1) + [True]
        assert some[-1].frame.image.shape == (48, 64, 3)


class Virtual:
    """Clock, and video that takes time for each picture; without pictures left it times out."""

    def __init__(self, *takes_s, said_fps=25.0):
        self.now_s = 100.0
        self.takes_s, self.rate = list(takes_s), said_fps

    def next_frame(self):
        if not self.takes_s:
            self.now_s += STALL_S
            return None
        self.now_s += self.takes_s.pop(0)
        return np.zeros((48, 64, 3), np.uint8)

    def picture_of(self, frame):
        return frame

    def close(self):
        pass


STALL_S = 2.0


@pytest.fixture
def source_of(monkeypatch):
    def made(virtual, fps=None):
        monkeypatch.setattr(camera_module, "_why_unreachable", lambda *_: None)
        monkeypatch.setattr(camera_module, "VideoInput", lambda *_, **__: virtual)
        source = CameraSource("rtsp://10.0.0.5/live", fps, STALL_S, 640, lambda: virtual.now_s)
        source.connect_camera()
        return source

    return made


@pytest.mark.parametrize(
    ("declared", "said_fps", "every_s", "expected"),
    [
        (None, 25.0, 0.1, 10.0),  # FFmpeg assumes 25 frames a second for every MJPEG stream
        (None, 11.0, 0.1, 11.0),
        (None, float("nan"), 0.05, 20.0),
        (None, 25.0, 1.5, 25.0),  # too few to count
        (12.0, 25.0, 0.1, 12.0),
    ],
)
def test_camera_rate_is_declared_or_measured_after_the_backlog(
    source_of, declared, said_fps, every_s, expected
):
    backlog = [0.001] * 40
    source = source_of(Virtual(*backlog, *[every_s] * 200, said_fps=said_fps), declared)
    assert source.fps == pytest.approx(expected)


def test_camera_silence_names_its_cause(source_of):
    for stall_s, reason in ((STALL_S, "no frame for 2.0 s"), (3.0, "the camera ended the connection")):
        source = source_of(Virtual(0.1), 10.0)
        source.stall_s = stall_s
        shown, silent = islice(source.watch_pictures(), 2)
        assert isinstance(shown, Sight)
        assert silent == Silence(reason)


def test_feed_camera_disconnects_and_is_found_again(camera, playing):
    watching = playing(CameraSpec(url=camera.url, fps=40))
    before, _ = watched(watching, lambda seen: len(seen) > 5)
    camera.stop()
    _, said = watched(watching, lambda _: watching.lost is not None)
    assert said[-1] == "the camera ended the connection"
    camera.start()
    after, _ = watched(watching, lambda seen: len(seen) > 5)
    assert watching.lost is None
    indices = [one.index for one in before + after]
    assert indices[-1] >= len(before) + 5
    assert indices == sorted(set(indices))


def test_feed_camera_that_goes_wide_is_followed(camera, playing):
    watching = playing(CameraSpec(url=camera.url, fps=40))
    watched(watching, lambda seen: len(seen) > 5)
    camera.size = (128, 72)
    arrived, _ = watched(
        watching, lambda seen: any(one.frame and one.frame.size == (128, 72) for one in seen)
    )
    assert {one.frame.size for one in arrived if one.frame} <= {(64, 48), (128, 72)}


def test_feed_silent_camera_is_lost(camera, playing):
    watching = playing(CameraSpec(url=camera.url, fps=40, stall_s=0.5))
    watched(watching, lambda seen: len(seen) > 5)
    camera.frozen = True
    _, said = watched(watching, lambda _: watching.lost is not None)
    assert said[-1] == "no frame for 0.5 s"


def test_feed_unreachable_camera_is_retried(camera, feed):
    camera.stop()
    watching = feed(CameraSpec(url=camera.url))
    assert watching.wait_open() == ASSUMED_FPS
    call_at(watching.start_frames)
    _, said = watched(watching, lambda _: watching.lost is not None)
    assert said[-1] == "no connection: Connection refused"
    camera.start()
    arrived, _ = watched(watching, bool)
    assert arrived
    assert arrived[0].index == 0


def test_feed_refused_login_is_masked(camera, playing, monkeypatch):
    camera.login = "admin:tops3cret"
    monkeypatch.setenv("CAM_LOGIN", "admin:wr0ngone")
    watching = playing(CameraSpec(url=camera.url.replace("//", "//${CAM_LOGIN}@")))
    _, said = watched(watching, lambda _: watching.lost is not None)
    assert said[-1] == "the camera answers and gives no video; check login, path and codec"
    monkeypatch.setenv("CAM_LOGIN", "admin:tops3cret")
    again = playing(CameraSpec(url=camera.url.replace("//", "//${CAM_LOGIN}@"), fps=40))
    assert watched(again, bool)[0]


def test_feed_missing_device_is_lost(playing):
    watching = playing(CameraSpec(url="/dev/video97"))
    assert watched(watching, lambda _: watching.lost is not None)[1][-1] == "there is no such device"


def test_feed_dead_process_is_replaced_without_double_frames(camera, playing, kill_decoder):
    watching = playing(CameraSpec(url=camera.url, fps=40))
    before, _ = watched(watching, lambda seen: len(seen) > 5)
    kill_decoder()
    between, said = watched(watching, lambda _: watching.lost is not None)
    assert said[-1] == "its process died (killed by signal SIGKILL)"
    after, said = watched(watching, lambda seen: len(seen) > 5)
    assert said[-1] is None
    assert [one.index for one in before + between + after] == list(range(len(before + between + after)))
    assert not watching.ended


def test_camera_source_reconnects_with_back_off(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    source = CameraSpec(url="/dev/video97", fps=5).open(())
    seen = source.watch_pictures()
    assert [type(next(seen)) for _ in range(6)] == [Silence] * 6
    assert slept == [0.5, 1.0, 2.0, 2.0, 2.0]


def test_live_sample_ends_after_its_time(monkeypatch):
    now_ns, image = [3_000_000_000], np.zeros((4, 4, 3), np.uint8)

    class Fed:
        """Feed with a frame every 0.4 s, the first and every third one without pixels."""

        def __init__(self, *_):
            self.index, self.wait_open = 0, lambda: 10.0

        def start_frames(self, began_ns):
            assert began_ns == now_ns[0]

        def poll_frames(self, timeout_s):
            now_ns[0] += round(min(timeout_s, 0.4) * 1e9)
            if timeout_s < 0.4:
                return []
            self.index += 1
            frame = Frame(self.index, 0, image, None) if self.index % 3 != 1 else None
            return [Arrived(self.index, 0, now_ns[0], frame, None)]

        def close(self):
            pass

    monkeypatch.setattr(feed_module, "Feed", Fed)
    with LiveSample(CameraSpec(url="/dev/video97"), 2.1, lambda: now_ns[0]) as look:
        assert [frame.index for frame, _ in look.frames()] == [2, 3, 5]
    assert now_ns == [5_100_000_000]


def test_live_sample_of_absent_camera_is_empty(camera):
    camera.stop()
    with LiveSample(CameraSpec(url=camera.url, fps=40), 0.2) as look:
        assert list(look.frames()) == []


def test_process_child_imports_neither_ray_nor_torch():
    code = (
        "import sys, ekya.streams.ingest.process_child; "
        "import ekya.streams.ingest.camera, ekya.streams.ingest.feed, ekya.streams.ingest.video; "
        "sys.exit(bool({'ray', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
