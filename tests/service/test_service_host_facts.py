"""Tests of what a service takes of its machine."""

import os
import subprocess
import sys

import psutil
from kept_status import Sink

from ekya.service.host_facts import HostMeter, folder_bytes, memory_bytes

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
