"""What a service takes of its machine, and how its loop is held while the disk is full."""

import os
import subprocess
import sys

import psutil
import pytest
from kept_status import Sink

from ekya.service.host_facts import HostMeter, folder_bytes, memory_bytes
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
