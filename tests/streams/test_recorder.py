"""One live camera that is recorded: the picture of each slot, length, outages and early ends."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mjpeg_camera import MjpegCamera
from waiting import call_at

from ekya.core.errors import UserError
from ekya.streams.ingest import recorder as recorder_module
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.process import Arrived
from ekya.streams.ingest.recorder import CameraRecorder, FrameGrid, Gap
from ekya.streams.ingest.video import VideoSpec

FPS = 20.0
START_NS = 7_000_000_000_000


class Fed:
    """Feed of a camera on a virtual clock, which is unplugged in the given intervals of its own seconds.

    Successive pictures differ by 8 in brightness.
    """

    def __init__(self, clock, away=()):
        self.clock, self.away = clock, away
        self.shown = 0
        self.acts = {}

    def wait_open(self):
        return FPS

    def start_frames(self, began_ns):
        self.began_ns = began_ns

    @property
    def lost(self):
        return "the camera ended the connection" if self._is_away(self._now_s()) else None

    def poll_frames(self, timeout_s):
        """Passes the time until the next picture, or until it is over."""
        due_s = (self.shown + 1) / FPS
        until_s = self._now_s() + timeout_s
        self.clock.now_ns = self.began_ns + round(min(due_s, until_s) * 1e9)
        if due_s > until_s:
            return []
        self.shown += 1
        if self._is_away(due_s):
            return []
        for act in self.acts.pop(self.shown, ()):
            act()
        image = np.full((48, 64, 3), 8 * (self.shown % 30), np.uint8)
        frame = Frame(self.shown, round(due_s * 1e6), image, None)
        return [Arrived(frame.index, frame.t_us, self.clock.now_ns, frame, None)]

    def close(self):
        pass

    def _now_s(self):
        return (self.clock.now_ns - self.began_ns) / 1e9

    def _is_away(self, at_s):
        return any(begin_s <= at_s < end_s for begin_s, end_s in self.away)


@pytest.fixture
def recorder_of(monkeypatch):
    def made(*away):
        clock = SimpleNamespace(now_ns=START_NS)
        monkeypatch.setattr(recorder_module, "Feed", lambda *_: Fed(clock, away))
        return CameraRecorder("gate", CameraSpec(url="rtsp://10.0.0.5/live"), lambda: clock.now_ns)

    return made


def recorded(recorder, path, seconds, stop=None):
    return recorder.record_video(path, recorder._now_ns() + 100_000_000, seconds, stop or threading.Event())


def brightnesses(path):
    return [int(frame.image.mean()) for frame, _ in VideoSpec(files=(path,)).open(()).frames()]


def test_recorder_file_lasts_as_long_as_it_took(recorder_of, tmp_path):
    path, recorder = tmp_path / "gate.avi", recorder_of()
    assert recorder.wait_picture() is None
    one = recorded(recorder, path, 2.0)
    assert (one.file, one.fps, one.frames, one.duration_s) == (path, 20.0, 40, 2.0)
    assert (one.width, one.height, one.gaps, one.problem) == (64, 48, (), None)
    assert one.size_bytes == path.stat().st_size
    steps = np.diff(brightnesses(path)) % 240
    assert [round(float(step) / 8) for step in steps] == [1] * 39
    assert [file.name for file in tmp_path.iterdir()] == ["gate.avi"]


def test_recorder_of_a_camera_leaves_one_file(tmp_path):
    with MjpegCamera(fps=FPS) as camera:
        recorder = CameraRecorder("gate", CameraSpec(url=camera.url, fps=FPS))
        try:
            recorder.wait_picture()
            call_at(
                lambda at_ns: recorder.record_video(tmp_path / "gate.avi", at_ns, 1.0, threading.Event()),
                in_s=0.1,
            )
        finally:
            recorder.close()
    assert len(brightnesses(tmp_path / "gate.avi")) == 20
    assert [file.name for file in tmp_path.iterdir()] == ["gate.avi"]


def test_recorder_lost_camera_repeats_last_picture(recorder_of, tmp_path):
    path, recorder = tmp_path / "gate.avi", recorder_of((1.0, 2.0))
    recorder.wait_picture()
    one = recorded(recorder, path, 4.0)
    assert one.frames == 80
    (gap,) = one.gaps
    assert gap.reason == "the camera ended the connection"
    assert (gap.begin, gap.end) == (17, 37)
    told = brightnesses(path)
    assert np.ptp(told[gap.begin - 1 : gap.end]) <= 2
    assert abs(told[gap.end] - told[gap.end - 1]) > 2


def test_recorder_late_camera_is_a_gap_at_the_start(recorder_of, tmp_path):
    recorder = recorder_of((0.0, 1.0))
    assert recorder.wait_picture() == "the camera ended the connection"
    one = recorded(recorder, tmp_path / "gate.avi", 4.0)
    assert one.frames == 80
    assert one.gaps == (Gap(0, 19, "it was not there yet"),)


def test_recorder_absent_camera_leaves_no_file(recorder_of, tmp_path):
    recorder = recorder_of((0.0, 100.0))
    recorder.wait_picture()
    with pytest.raises(UserError, match="the camera ended the connection"):
        recorded(recorder, tmp_path / "gate.avi", 0.3)
    assert list(tmp_path.iterdir()) == []


def test_recorder_stopped_early_keeps_the_file(recorder_of, tmp_path):
    stop, recorder = threading.Event(), recorder_of()
    recorder.wait_picture()
    recorder._feed.acts[30] = [stop.set]
    one = recorded(recorder, tmp_path / "gate.avi", 600.0, stop)
    assert one.problem is None
    assert one.frames == 27
    assert len(brightnesses(tmp_path / "gate.avi")) == one.frames


def test_recorder_full_disk_ends_the_file(recorder_of, tmp_path, monkeypatch):
    recorder = recorder_of()
    recorder.wait_picture()
    usage = type("Usage", (), {"free": 0})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    one = recorded(recorder, tmp_path / "gate.avi", 600.0)
    assert one.problem == f"{tmp_path}: the disk is full; free some space or choose another folder"
    assert len(brightnesses(tmp_path / "gate.avi")) == one.frames > 20


def test_recorder_unwritable_folder_is_user_error(recorder_of, tmp_path):
    recorder = recorder_of()
    recorder.wait_picture()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="a part of the path is a file"):
        recorded(recorder, tmp_path / "file" / "gate.avi", 1.0)


S = 1_000_000


def picture(number):
    return np.full((2, 2, 3), number, np.uint8)


def grid(fps=10.0, limit=100):
    """Returns a grid, and the list of picture numbers that it has put."""
    put = []
    return FrameGrid(fps, limit, lambda image: put.append(int(image[0, 0, 0]))), put


def test_grid_slot_holds_newest_picture_by_its_time():
    slots, put = grid()
    for t_us, number in ((-50_000, 1), (0, 2), (90_000, 3), (100_001, 4), (310_000, 5)):
        slots.show_picture(t_us, picture(number))
    slots.fill_slots(400_000)
    assert put == [2, 3, 4, 4, 5]
    assert slots.repeated == 1
    assert slots.gaps == []


@given(
    st.lists(st.integers(1, 400_000), max_size=30),
    st.sampled_from([0.5, 7.0, 14.99, 25.0]),
)
def test_grid_any_arrivals_give_newest_earlier_picture(steps, fps):
    slots, put = grid(fps)
    times = [0, *np.cumsum(steps).tolist()]
    for number, t_us in enumerate(times):
        slots.show_picture(t_us, picture(number))
    slots.fill_slots(times[-1])
    due = [round(slot * S / fps) for slot in range(100)]
    assert put == [sum(t <= at for t in times) - 1 for at in due if at <= times[-1]]


def test_grid_loss_is_a_gap_from_last_to_next_picture():
    slots, put = grid()
    slots.show_picture(0, picture(1))
    slots.show_picture(100_000, picture(2))
    slots.fill_slots(500_000)
    slots.note_loss("it burnt")
    slots.show_picture(720_000, picture(3))
    slots.fill_slots(900_000)
    assert put == [1, 2, 2, 2, 2, 2, 2, 2, 3, 3]
    assert slots.gaps == [Gap(2, 8, "it burnt")]
    assert slots.repeated == 0
    slots.close_gap()
    assert slots.repeated == 1


def test_grid_loss_to_the_end_is_a_gap_to_the_end():
    slots, put = grid(limit=6)
    slots.show_picture(0, picture(1))
    slots.note_loss("it burnt")
    slots.fill_slots(9 * S)
    assert slots.full
    assert len(put) == 6
    slots.close_gap()
    assert slots.gaps == [Gap(1, 6, "it burnt")]


def test_grid_loss_between_slots_is_no_gap():
    slots, _ = grid()
    slots.show_picture(0, picture(1))
    slots.note_loss("for a moment")
    slots.show_picture(50_000, picture(2))
    slots.fill_slots(100_000)
    slots.close_gap()
    assert slots.gaps == []
