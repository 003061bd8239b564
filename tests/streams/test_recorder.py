"""Tests of recording one live camera to a video file: length, outages and early ends."""

import threading
import time

import numpy as np
import pytest
from mjpeg_camera import MjpegCamera

from ekya.core.errors import UserError
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.recorder import CameraRecorder
from ekya.streams.ingest.video import VideoSpec


@pytest.fixture
def camera():
    with MjpegCamera(fps=20.0) as camera:
        yield camera


@pytest.fixture
def recorder(camera):
    recorder = CameraRecorder("gate", CameraSpec(url=camera.url, fps=20, stall_s=0.5))
    yield recorder
    recorder.close()


def recorded(recorder, path, seconds, stop=None):
    return recorder.record(path, time.monotonic_ns() + 100_000_000, seconds, stop or threading.Event())


def brightnesses(path):
    return [int(frame.image.mean()) for frame, _ in VideoSpec(files=(path,)).open(()).frames()]


def later(seconds, *acts):
    """Calls the functions one after the other in a thread, each after ``seconds``."""

    def act():
        for one in acts:
            time.sleep(seconds)
            one()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_recorder_file_lasts_as_long_as_it_took(recorder, tmp_path):
    path = tmp_path / "gate.avi"
    assert recorder.wait_picture() is None
    one = recorded(recorder, path, 2.0)
    assert (one.file, one.fps, one.frames, one.duration_s) == (path, 20.0, 40, 2.0)
    assert (one.width, one.height, one.gaps, one.problem) == (64, 48, (), None)
    assert one.size_bytes == path.stat().st_size
    # Successive pictures of the camera differ by 8 in brightness.
    steps = np.diff(brightnesses(path)) % 240
    assert len(steps) == 39
    assert np.count_nonzero(steps > 4) >= 20
    assert sum(round(float(step) / 8) for step in steps) <= 42
    assert [file.name for file in tmp_path.iterdir()] == ["gate.avi"]


def test_recorder_lost_camera_repeats_last_picture(camera, recorder, tmp_path):
    path = tmp_path / "gate.avi"
    recorder.wait_picture()
    away = later(0.8, camera.stop, camera.start)
    one = recorded(recorder, path, 4.0)
    away.join()
    assert one.frames == 80
    (gap,) = one.gaps
    assert gap.reason == "the camera ended the connection"
    assert 8 <= gap.begin <= 24
    assert gap.end - gap.begin >= 10
    told = brightnesses(path)
    assert np.ptp(told[gap.begin - 1 : gap.end]) <= 2
    assert abs(told[gap.end] - told[gap.end - 1]) > 2


def test_recorder_late_camera_is_a_gap_at_the_start(camera, tmp_path):
    camera.stop()
    recorder = CameraRecorder("gate", CameraSpec(url=camera.url, fps=20))
    try:
        assert recorder.wait_picture() == "no connection: Connection refused"
        coming = later(0.5, camera.start)
        one = recorded(recorder, tmp_path / "gate.avi", 4.0)
        coming.join()
    finally:
        recorder.close()
    assert one.frames == 80
    assert one.gaps[0].begin == 0
    assert 10 <= one.gaps[0].end < 75


def test_recorder_absent_camera_leaves_no_file(camera, tmp_path):
    camera.stop()
    recorder = CameraRecorder("gate", CameraSpec(url=camera.url, fps=20))
    try:
        recorder.wait_picture()
        with pytest.raises(UserError, match="no connection: Connection refused"):
            recorded(recorder, tmp_path / "gate.avi", 0.3)
    finally:
        recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_recorder_stopped_early_keeps_the_file(recorder, tmp_path):
    stop = threading.Event()
    recorder.wait_picture()
    stopping = later(1.0, stop.set)
    one = recorded(recorder, tmp_path / "gate.avi", 600.0, stop)
    stopping.join()
    assert one.problem is None
    assert 5 <= one.frames < 60
    assert len(brightnesses(tmp_path / "gate.avi")) == one.frames


def test_recorder_full_disk_ends_the_file(recorder, tmp_path, monkeypatch):
    recorder.wait_picture()
    usage = type("Usage", (), {"free": 0})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    one = recorded(recorder, tmp_path / "gate.avi", 600.0)
    assert one.problem == f"{tmp_path}: the disk is full; free some space or choose another folder"
    assert len(brightnesses(tmp_path / "gate.avi")) == one.frames > 20


def test_recorder_unwritable_folder_is_user_error(recorder, tmp_path):
    recorder.wait_picture()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="a part of the path is a file"):
        recorded(recorder, tmp_path / "file" / "gate.avi", 1.0)
