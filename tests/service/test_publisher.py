"""Tests of the publisher with sinks that are told what to do."""

import json
import math
import shutil
import threading
from functools import partial
from threading import get_ident

import pyarrow.parquet as pq
import pytest
from answering import CLASSES, FRAME_US, STARTED_US, Camera, Cameras, a_service, row
from waiting import HANG_GUARD_S, wait_until

from ekya.config.answer_sinks import JsonlSpec
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.results.storage.hour_tables import HourWriter
from ekya.service.answers import publisher, registry
from ekya.service.answers.messages import NotDeliveredError
from ekya.service.answers.publisher import Publisher

CAMS = ("cam-1", "cam-2")
NOW_UNIX_S = 1.8e9
ONE, TWO = JsonlSpec(name="one"), JsonlSpec(name="two")


class Told:
    """Sink that confirms messages while ``fails`` is None."""

    batch = 3

    def __init__(self):
        self.ids, self.reports, self.tried = [], [], 0
        self.fails = None
        self.closed = False
        self.waits = threading.Event()
        self.waits.set()

    def send_messages(self, messages):
        self.tried += 1
        self.waits.wait()
        if self.fails is not None:
            raise self.fails
        assert len(messages) <= self.batch
        self.ids += [message["id"] for message in messages]

    def report_cameras(self, cameras):
        self.reports.append([camera.id for camera in cameras])

    def close(self):
        self.closed = True


@pytest.fixture
def sinks(monkeypatch):
    """The sinks by name, made on first use."""
    made = {"one": Told(), "two": Told()}
    monkeypatch.setitem(registry.SINKS, "jsonl", lambda spec, _folder: made[spec.name])
    monkeypatch.setattr(publisher, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(publisher, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(publisher, "LONGEST_DELAY_S", 0.04)
    monkeypatch.setattr(publisher, "REPORT_EVERY_S", math.inf)
    return made


@pytest.fixture
def folder(tmp_path):
    return a_service(tmp_path)


@pytest.fixture
def publish(folder):
    """Starts a publisher to these sinks."""
    running = []

    def start(*specs):
        cameras = [Camera("cam-1"), Camera("cam-2")]
        running.append(Publisher(folder, specs, CLASSES, lambda: cameras, lambda: NOW_UNIX_S))
        running[-1].close = partial(running[-1].close, within_s=HANG_GUARD_S)
        running[-1].start()
        return running[-1]

    yield start
    for one in running:
        one.close()


def cursor_of(folder, name="one"):
    return json.loads((folder.answers_folder / f"{name}.cursor.json").read_text())


def test_publisher_delivers_every_message_once_and_in_order(sinks, folder, publish):
    running = publish(ONE)
    cameras, ids = Cameras(folder, *CAMS), []
    for _ in range(4):
        ids += cameras.see(11)
    running.close()
    sink = sinks["one"]
    assert sorted(sink.ids) == sorted(ids)
    for cam in CAMS:
        assert [one for one in sink.ids if one.startswith(cam)] == [one for one in ids if one.startswith(cam)]
    assert sink.closed
    assert sink.reports == [["cam-1", "cam-2"]]
    assert cursor_of(folder) == {"frames": {"cam-1": 43, "cam-2": 43}}


def test_publisher_repeats_what_was_not_confirmed(sinks, folder, publish, caplog):
    sink = sinks["one"]
    sink.fails = NotDeliveredError("the broker is away")
    running, ids = publish(ONE), Cameras(folder, *CAMS).see(20)
    wait_until(lambda: sink.tried >= 3)
    (state,) = running.sink_states()
    assert (state.name, state.kind, state.delivered, state.error) == ("one", "jsonl", 0, "the broker is away")
    assert state.waiting_frames == 40
    assert state.waiting_s > 1e6
    sink.fails = None
    running.close()
    assert sorted(sink.ids) == sorted(ids)
    assert caplog.text.count("the broker is away") == 1
    (state,) = running.sink_states()
    assert (state.delivered, state.waiting_frames, state.waiting_s, state.error) == (20, 0, 0.0, "")


def test_state_of_a_sink_that_is_away_reads_nothing_of_what_waits(sinks, folder, publish, monkeypatch):
    sink, cameras = sinks["one"], Cameras(folder, "cam-1")
    first, ids = publish(ONE), cameras.see(20)
    wait_until(lambda: sink.ids == ids)
    sink.fails = NotDeliveredError("the server is away")
    first.close()
    hour = 0
    writer = HourWriter(folder.hours(StreamId("cam-2")), unix_s=lambda: hour * 3600.0)
    for hour in range(1, 6):
        for frame in range(4 * hour, 4 * hour + 4):
            writer.add_row(row(frame))
        writer.flush()
    writer.close()
    cameras.see(30)
    running, tried = publish(ONE), sink.tried
    wait_until(lambda: sink.tried >= tried + 3)
    opened = []
    for name in ("read_metadata", "ParquetFile"):
        usual = getattr(pq, name)
        monkeypatch.setattr(
            pq, name, lambda path, name=name, usual=usual: opened.append((get_ident(), path)) or usual(path)
        )
    (state,) = running.sink_states()
    mine = {path.stem for thread, path in opened if thread == get_ident() and path.parent.name == "cam-2"}
    assert mine == {"1970-01-01T05"}, "the newest hour, for the number of frames"
    assert state.waiting_frames == 30 + 24
    oldest_s = NOW_UNIX_S - (STARTED_US + 4 * FRAME_US) / 1e6
    assert state.waiting_s == pytest.approx(oldest_s), "of cam-2, whose turn has not come"
    sink.fails = None
    wait_until(lambda: len(sink.ids) == len(ids) + 15 + 20)
    wait_until(lambda: running.sink_states()[0].waiting_s == 0)


def test_new_sink_begins_with_new_frames_and_new_cameras_with_their_first(sinks, folder, publish):
    Cameras(folder, "cam-1").see(6)
    running = publish(TWO)
    later = Cameras(folder, *CAMS).see(4)
    running.close()
    assert sorted(sinks["two"].ids) == sorted(later)
    assert later == ["cam-1/6", "cam-1/8", "cam-2/0", "cam-2/2"]


def test_slow_sink_delays_no_other_and_no_stop(sinks, folder, publish):
    sinks["one"].waits.clear()
    running, ids = publish(ONE, TWO), Cameras(folder, *CAMS).see(10)
    wait_until(lambda: sorted(sinks["two"].ids) == sorted(ids))
    assert sinks["one"].ids == []
    running.close(within_s=0.2)
    assert not sinks["one"].closed, "it still waits"
    sinks["one"].waits.set()


def test_failure_of_an_unknown_kind_ends_no_thread_and_shows_no_secret(sinks, folder, monkeypatch, caplog):
    monkeypatch.setenv("HOOK", "tops3cret")
    spec = registry.WebhookSpec(name="one", url="http://${HOOK}/")
    monkeypatch.setitem(registry.SINKS, "webhook", lambda spec, _folder: sinks[spec.name])
    sinks["one"].fails = ValueError("no host called tops3cret")
    running = Publisher(folder, [spec], CLASSES, lambda: [])
    running.start()
    ids = Cameras(folder, "cam-1").see(4)
    wait_until(lambda: sinks["one"].tried >= 2)
    assert "no host called ***" in running.sink_states()[0].error
    sinks["one"].fails = None
    running.close(HANG_GUARD_S)
    assert sinks["one"].ids == ids
    assert "tops3cret" not in caplog.text


def test_frames_that_were_removed_are_counted_as_lost(sinks, folder, publish, caplog):
    cameras = Cameras(folder, "cam-1")
    first = publish(ONE)
    cameras.see(4)
    first.close()
    cameras.see(10)
    cameras.see(6)
    (parts,) = folder.hours(StreamId("cam-1")).glob("*.parts")
    for part in sorted(parts.iterdir())[:2]:
        part.unlink()
    running = publish(ONE)
    running.close()
    assert sinks["one"].ids == ["cam-1/0", "cam-1/2", "cam-1/14", "cam-1/16", "cam-1/18"]
    assert running.sink_states()[0].lost_frames == 10
    assert "10 frames of cam-1 were removed before they were delivered" in caplog.text


def test_counters_begin_at_zero_with_each_process(sinks, folder, publish):
    cameras = Cameras(folder, "cam-1")
    folder.answers_folder.mkdir()
    saved = {"frames": {"cam-1": -1}, "delivered": 900, "lost_frames": 7}  # by an earlier version
    (folder.answers_folder / "one.cursor.json").write_text(json.dumps(saved))
    for frames in (8, 4):
        running = publish(ONE)
        cameras.see(frames)
        running.close()
        (state,) = running.sink_states()
        assert (state.delivered, state.lost_frames) == (frames // 2, 0)


def test_camera_that_begins_late_has_lost_nothing(sinks, folder, publish):
    Cameras(folder, "cam-1").see(4)
    running = publish(ONE)
    late = Cameras(folder, "cam-2")
    late.next[StreamId("cam-2")] = 500
    ids = late.see(4)
    wait_until(lambda: sinks["one"].ids == ids == ["cam-2/500", "cam-2/502"])
    running.close()
    assert running.sink_states()[0].lost_frames == 0


def test_camera_that_was_removed_and_begins_anew_is_delivered_from_its_first_frame(sinks, folder, publish):
    Cameras(folder, *CAMS).see(0)
    running = publish(ONE)
    ids = Cameras(folder, *CAMS).see(4)
    wait_until(lambda: sorted(sinks["one"].ids) == sorted(ids))
    shutil.rmtree(folder.hours(StreamId("cam-2")))
    running.close()
    assert list(cursor_of(folder)["frames"]) == ["cam-1"]
    running = publish(ONE)
    again = Cameras(folder, "cam-2").see(2)
    running.close()
    assert again == ["cam-2/0"]
    assert sinks["one"].ids[len(ids) :] == again


def test_damaged_cursor_is_named(sinks, folder):
    folder.answers_folder.mkdir()
    (folder.answers_folder / "one.cursor.json").write_text("{}")
    with pytest.raises(UserError, match=r"one\.cursor\.json: the file is damaged; remove it"):
        Publisher(folder, [ONE], CLASSES, lambda: [])
