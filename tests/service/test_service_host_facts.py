"""What a service takes of its machine and does around its run, and how a full disk holds its loop."""

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import ExitStack
from types import SimpleNamespace

import psutil
import pytest
from kept_status import Sink
from rich.console import Console
from service_folder import CAM, a_service, names, put
from waiting import HANG_GUARD_S

from ekya.config.fleet_reading import load_fleet
from ekya.config.run_options import RunOptions
from ekya.config.shipped import shipped_path
from ekya.control.protocols import Batch
from ekya.core import commands as cmd
from ekya.core.errors import FullDiskError
from ekya.service.host_facts import HostMeter, folder_bytes, memory_bytes
from ekya.service.process import FleetService, serve_fleet
from ekya.service.retention import RESERVE_BYTES, DiskRoom

HOLDS_BYTES = 50_000_000
HOLDER = f"held = b'x' * {HOLDS_BYTES}; print(1, flush=True); input()"


def test_folder_bytes_counts_a_file_with_two_names_once(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "1.safetensors").write_bytes(b"x" * 1000)
    (tmp_path / "journal.jsonl").write_bytes(b"x" * 234)
    (tmp_path / "link").symlink_to("nowhere")
    os.link(tmp_path / "models" / "1.safetensors", tmp_path / "kept")
    assert folder_bytes(tmp_path) == 1234 + len("nowhere")


def test_memory_bytes_counts_processes_below_this_one():
    before = memory_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        child.stdout.readline()
        held = memory_bytes() - before
        child.communicate("\n")
    assert HOLDS_BYTES <= held < 2 * HOLDS_BYTES
    assert memory_bytes() < psutil.Process().memory_info().rss + HOLDS_BYTES


def test_meter_walks_the_folder_once_a_minute(tmp_path):
    now_s = 100.0
    sinks = (Sink(),)
    meter = HostMeter(tmp_path, lambda: 7, lambda: sinks, lambda: {"cam-1": 5.0}, clock=lambda: now_s)
    (tmp_path / "a").write_bytes(b"x" * 10)
    assert meter.measure_host().folder_bytes == 10
    (tmp_path / "a").write_bytes(b"x" * 20)
    now_s = 159.0
    assert meter.measure_host().folder_bytes == 10
    now_s = 160.0
    facts = meter.measure_host()
    assert facts.folder_bytes == 20
    assert (facts.restarts, facts.sinks, facts.answered_unix_s) == (7, sinks, {"cam-1": 5.0})
    assert 0 < facts.disk_free_bytes < facts.disk_size_bytes


class Disk:
    """A disk and a clock; counts how often room was to be made."""

    def __init__(self, tmp_path):
        self.free, self.now_s, self.asked = 1 << 30, 0.0, 0
        self.room = DiskRoom(tmp_path, self.ask, self.look, lambda: self.now_s)

    def look(self, _folder):
        return self.free

    def ask(self):
        self.asked += 1

    def after(self, seconds):
        self.now_s += seconds
        return self.room()


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path)


def test_disk_that_fills_at_once_is_noticed_by_the_next_step(disk):
    assert disk.after(1)
    disk.free = 0
    assert not disk.after(0)


def test_full_disk_holds_the_loop_until_there_is_room_and_is_said_once(disk, caplog):
    assert disk.after(1)
    disk.free = RESERVE_BYTES - 1
    assert [disk.after(1) for _ in range(3)] == [False] * 3
    assert caplog.text.count("the disk is full") == 1
    disk.free = RESERVE_BYTES
    assert disk.after(1)
    assert "has room again" in caplog.text


def test_room_is_to_be_made_once_a_minute_while_the_disk_is_full(disk):
    assert disk.after(1)
    disk.free = 0
    for _ in range(130):
        disk.after(1)
    assert disk.asked == 3


@pytest.mark.parametrize(
    ("commands", "again"), [((cmd.StartAgain("a class was added"),), True), ((cmd.EndPreparation(1),), False)]
)
def test_service_ends_to_start_again_when_the_loop_says_so(commands, again):
    fleet, stop = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml")), threading.Event()
    service = FleetService(SimpleNamespace(fleet=fleet), True, ExitStack(), stop)
    service.observe_step(Batch(0, ()), SimpleNamespace(commands=commands))
    assert (service.starts_again, stop.is_set()) == (again, again)


def test_service_that_goes_on_removes_what_is_old_before_a_full_disk_ends_it(tmp_path, monkeypatch):
    def full(_shares):
        raise FullDiskError("rtsp://me:secret@10.0.0.5/live: the disk is full")

    folder = a_service(tmp_path)
    put(folder, f"predictions/{CAM}/2020-01-01T00.parquet", "old")
    options = RunOptions(name="yard", resume=folder.path, endless=True)
    monkeypatch.setattr("ekya.runtime.driver.ray_of_run.choose_backend", full)
    with pytest.raises(FullDiskError, match=r"rtsp://\*\*\*@10.0.0.5/live"):
        serve_fleet(load_fleet(folder.fleet), options, True, Console(quiet=True))
    answers = {name for name in names(folder.path) if name.startswith("predictions/")}
    assert f"predictions/{CAM}/2020-01-01T00.parquet" not in answers
    assert f"predictions/{CAM}/2026-11-25T17.parts/000000000000-000000000009.parquet" in answers


def test_service_removes_what_is_old_also_after_failures(tmp_path, monkeypatch, caplog):
    began = threading.Semaphore(0)

    def held(*_):
        raise sqlite3.OperationalError("database is locked")

    def collect_held(*_):
        began.release()
        held()

    folder = a_service(tmp_path, http={"port": 0})
    fleet = load_fleet(folder.fleet)
    monkeypatch.setattr("ekya.service.process.collect_or_warn", collect_held)
    monkeypatch.setattr("ekya.service.process.StatusKeeper.past", held)
    run = SimpleNamespace(folder=folder, fleet=fleet, options=SimpleNamespace(resume=None))
    with ExitStack() as stack:
        service = FleetService(run, False, stack, threading.Event())
        service.attach(SimpleNamespace(fleet=fleet, now_us=lambda: 0))
        for _ in range(2):
            service.collect()
            assert began.acquire(timeout=HANG_GUARD_S)
    assert "past is not kept (database is locked)" in caplog.text
    assert "the next window tries again" in caplog.text
