"""Tests of live cameras over HTTP; RTSP is in ``test_rtsp.py``."""

import os
import subprocess
import sys
import time

import pytest
from mjpeg_camera import MjpegCamera
from pydantic import ValidationError

from ekya.core.errors import UserError
from ekya.streams.ingest import camera as camera_module
from ekya.streams.ingest.camera import ASSUMED_FPS, CameraSpec
from ekya.streams.ingest.feed import Feed, LiveSample
from ekya.streams.ingest.frame import Silence
from ekya.streams.ingest.process import SourceProcess


def watched(feed, seconds, pause_s=0.0, until=lambda arrived: False):
    """Returns the frames that arrived within ``seconds``, and the successive values of ``feed.lost``."""
    arrived, said = [], []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and not until(arrived):
        arrived += feed.poll(0.05)
        if not said or said[-1] != feed.lost:
            said.append(feed.lost)
        time.sleep(pause_s)
    return arrived, said


@pytest.fixture
def camera():
    with MjpegCamera(fps=40.0) as camera:
        yield camera


@pytest.fixture
def feed():
    """Opens feeds and closes them after the test."""
    feeds = []

    def open_(spec):
        feeds.append(Feed(spec, ()))
        return feeds[-1]

    yield open_
    for one in feeds:
        one.close()


@pytest.mark.parametrize(
    "url", ["rtsp://10.0.0.5/live", "http://cam:8080/video", "/dev/video12", "${CAMERA}", "rtsps://a/b"]
)
def test_camera_spec_accepts_camera_urls(url):
    assert CameraSpec(url=url).url == url


@pytest.mark.parametrize("own", [None, "rtsp_transport;udp"])
def test_camera_is_opened_with_the_options_of_the_environment(monkeypatch, own):
    """OpenCV reads them from there only."""
    key, seen = "OPENCV_FFMPEG_CAPTURE_OPTIONS", []
    # So that what is set here goes with the test.
    monkeypatch.setenv(key, "")
    monkeypatch.delenv(key) if own is None else monkeypatch.setenv(key, own)
    monkeypatch.setattr(camera_module, "_why_unreachable", lambda *_: None)
    monkeypatch.setattr(
        camera_module.cv2, "VideoCapture", lambda *_: seen.append(os.environ[key]) or Closed()
    )
    CameraSpec(url="rtsp://10.0.0.5/live").open(())
    assert seen == ["rtsp_flags;prefer_tcp|fpsprobesize;0" if own is None else own]


class Closed:
    """Capture of a camera that gives no video."""

    def isOpened(self):  # noqa: N802
        return False

    def release(self):
        pass


@pytest.mark.parametrize("url", ["gate.mp4", "ftp://u:secret@cam/x", "/dev/sda1", "rtsp:/cam", ""])
def test_camera_spec_other_url_is_refused_unrepeated(url):
    with pytest.raises(ValidationError, match="this is no camera; write rtsp://") as refused:
        CameraSpec(url=url)
    assert "secret" not in refused.value.errors()[0]["msg"]


def test_camera_unset_variable_is_user_error(monkeypatch):
    monkeypatch.delenv("CAM_PASSWORD", raising=False)
    with (
        SourceProcess(CameraSpec(url="rtsp://u:${CAM_PASSWORD}@cam/"), ()) as process,
        pytest.raises(UserError, match="CAM_PASSWORD is not set"),
    ):
        process.wait_open()


def test_feed_slow_reader_gets_newest_of_numbered_frames(camera, feed):
    watching = feed(CameraSpec(url=camera.url, fps=40))
    assert watching.wait_open() == 40
    started_ns = time.monotonic_ns()
    watching.begin(started_ns, from_index=7)
    arrived, said = watched(watching, 8.0, pause_s=0.2, until=lambda seen: len(seen) > 40)
    assert [one.index for one in arrived] == list(range(7, 7 + len(arrived)))
    times = [one.t_us for one in arrived]
    assert times == sorted(set(times))
    assert all(0 <= one.released_ns - started_ns - 1000 * one.t_us < 1e9 for one in arrived)
    with_pixels = [one for one in arrived if one.frame is not None]
    assert 2 <= len(with_pixels) < len(arrived) / 2
    assert with_pixels[0].frame.image.shape == (48, 64, 3)
    assert said == [None]


def test_feed_frames_before_the_run_are_dropped(camera, feed):
    watching = feed(CameraSpec(url=camera.url, fps=40))
    watching.wait_open()
    time.sleep(0.5)
    begins_ns = time.monotonic_ns() + 300_000_000
    watching.begin(begins_ns)
    arrived, _ = watched(watching, 8.0, until=lambda seen: len(seen) > 5)
    assert arrived[0].index == 0
    assert 0 <= arrived[0].t_us < 1_000_000


def test_feed_wrong_declared_rate_is_measured(camera, feed):
    camera.fps = 10.0
    # FFmpeg assumes 25 frames a second for every MJPEG stream.
    assert feed(CameraSpec(url=camera.url)).wait_open() == pytest.approx(10.0, rel=0.2)


def test_feed_camera_disconnects_and_is_found_again(camera, feed):
    watching = feed(CameraSpec(url=camera.url, fps=40))
    watching.wait_open()
    watching.begin(time.monotonic_ns())
    before, _ = watched(watching, 8.0, until=lambda seen: len(seen) > 5)
    camera.stop()
    _, said = watched(watching, 8.0, until=lambda _: watching.lost is not None)
    assert said[-1] == "the camera ended the connection"
    camera.start()
    after, _ = watched(watching, 5.0, until=lambda seen: len(seen) > 5)
    assert watching.lost is None
    indices = [one.index for one in before + after]
    assert indices[-1] >= len(before) + 5
    assert indices == sorted(set(indices))


def test_feed_silent_camera_is_lost(camera, feed):
    watching = feed(CameraSpec(url=camera.url, fps=40, stall_s=0.5))
    watching.wait_open()
    watching.begin(time.monotonic_ns())
    watched(watching, 8.0, until=lambda seen: len(seen) > 5)
    camera.frozen = True
    _, said = watched(watching, 8.0, until=lambda _: watching.lost is not None)
    assert said[-1] == "no frame for 0.5 s"


def test_feed_unreachable_camera_is_retried(camera, feed):
    camera.stop()
    watching = feed(CameraSpec(url=camera.url))
    assert watching.wait_open() == ASSUMED_FPS
    watching.begin(time.monotonic_ns())
    _, said = watched(watching, 8.0, until=lambda _: watching.lost is not None)
    assert said[-1] == "no connection: Connection refused"
    camera.start()
    arrived, _ = watched(watching, 5.0, until=bool)
    assert arrived
    assert arrived[0].index == 0


def test_feed_refused_login_is_masked(camera, feed, monkeypatch):
    camera.login = "admin:tops3cret"
    monkeypatch.setenv("CAM_LOGIN", "admin:wr0ngone")
    watching = feed(CameraSpec(url=camera.url.replace("//", "//${CAM_LOGIN}@")))
    watching.wait_open()
    watching.begin(time.monotonic_ns())
    _, said = watched(watching, 8.0, until=lambda _: watching.lost is not None)
    assert said[-1] == "the camera answers and gives no video; check login, path and codec"
    monkeypatch.setenv("CAM_LOGIN", "admin:tops3cret")
    again = feed(CameraSpec(url=camera.url.replace("//", "//${CAM_LOGIN}@"), fps=40))
    again.wait_open()
    again.begin(time.monotonic_ns())
    assert watched(again, 8.0, until=bool)[0]


def test_feed_missing_device_is_lost(feed):
    watching = feed(CameraSpec(url="/dev/video97"))
    watching.wait_open()
    watching.begin(time.monotonic_ns())
    assert (
        watched(watching, 8.0, until=lambda _: watching.lost is not None)[1][-1] == "there is no such device"
    )


def test_feed_dead_process_is_replaced_without_double_frames(camera, feed, kill_decoder):
    watching = feed(CameraSpec(url=camera.url, fps=40))
    watching.wait_open()
    watching.begin(time.monotonic_ns())
    before, _ = watched(watching, 8.0, until=lambda seen: len(seen) > 5)
    kill_decoder()
    between, said = watched(watching, 8.0, until=lambda _: watching.lost is not None)
    assert said[-1] == "its process died (killed by signal SIGKILL)"
    after, said = watched(watching, 8.0, until=lambda seen: len(seen) > 5)
    assert said[-1] is None
    assert [one.index for one in before + between + after] == list(range(len(before + between + after)))
    assert not watching.ended


def test_camera_source_reconnects_with_back_off(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    source = CameraSpec(url="/dev/video97", fps=5).open(())
    seen = source.watch()
    assert [type(next(seen)) for _ in range(6)] == [Silence] * 6
    assert slept == [0.5, 1.0, 2.0, 2.0, 2.0]


def test_live_sample_ends_after_its_time(camera):
    with LiveSample(CameraSpec(url=camera.url, fps=40), 0.6) as look:
        frames = list(look.frames())
    assert 5 < len(frames) < 30
    assert [frame.index for frame, _ in frames] == sorted({frame.index for frame, _ in frames})
    camera.stop()
    with LiveSample(CameraSpec(url=camera.url, fps=40), 0.2) as look:
        assert list(look.frames()) == []


def test_process_child_imports_neither_ray_nor_torch():
    code = (
        "import sys, ekya.streams.ingest.process_child; "
        "import ekya.streams.ingest.camera, ekya.streams.ingest.feed; "
        "sys.exit(bool({'ray', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
