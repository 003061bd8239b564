"""Live run in which the micro-profiler hangs: it does not release its share, so it is ended."""

import json
import os
import signal
import threading
from dataclasses import replace

import psutil
import pytest
import ray
import yaml
from live_runs import events_of
from rich.console import Console
from waiting import LONG_GUARD_S, wait_until

from ekya.config.fleet_reading import load_fleet
from ekya.config.run_options import RunOptions
from ekya.config.shipped import shipped_path
from ekya.core import events as ev
from ekya.core.shares import Work
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.driver.live import run_live
from ekya.runtime.shares import share_changes

pytestmark = [pytest.mark.live, pytest.mark.long]

LIMIT_US = 2_000_000


@pytest.fixture
def fleet(tmp_path):
    """One camera of the shipped fleet, in shorter windows."""
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"name": "one", "window_s": 8, "windows": 3, "gpus": 1.0}
    raw["preparation"] = {"share_milli": 600, "fraction": 0.15}
    raw["streams"] = raw["streams"][:1]
    raw["streams"][0]["source"]["fps"] = 5
    path = tmp_path / "one.yaml"
    path.write_text(yaml.safe_dump(raw))
    return load_fleet(path)


def stop_the_micro_profiler(folder, stopped):
    wait_until(
        lambda: folder.journal.is_file() and len(events_of(folder, ev.WindowOpened)) >= 2,
        guard_s=LONG_GUARD_S,
    )
    stopped.append(ray.get(ray.get_actor("micro-profiler").process_id.remote()))
    os.kill(stopped[0], signal.SIGSTOP)


def test_overdue_micro_profiler_is_ended_and_the_run_continues(fleet, tmp_path, monkeypatch):
    patience = replace(share_changes.TIMEOUTS, limits_us=dict.fromkeys(Work, LIMIT_US))
    # The same on every machine: a run adds the time of a hundred batches.
    monkeypatch.setattr(share_changes, "release_timeouts", lambda batch_s: patience)
    stopped = []
    folder = RunFolder(tmp_path / "runs" / "one")
    threading.Thread(target=stop_the_micro_profiler, args=(folder, stopped), daemon=True).start()
    run_live(fleet, RunOptions(runs=tmp_path / "runs", dashboard=False), Console(stderr=True))

    # Its successor is overdue as well if loading its model takes longer than the limit.
    overdue = events_of(folder, ev.ShareOverdue)[0]
    assert overdue.holder.work is Work.PREPARATION
    assert LIMIT_US <= overdue.waited_us < 2 * LIMIT_US
    assert not psutil.pid_exists(stopped[0])
    assert [event.t_us for event in events_of(folder, ev.WindowClosed)] == [8_000_000, 16_000_000, 24_000_000]
    summary = json.loads(folder.summary.read_text())
    assert summary["frames"]["lost"] == 0
    assert summary["frames"]["arrived"] == pytest.approx(3 * 8 * 5, abs=5)

    resized = events_of(folder, ev.ShareResized)
    assert {event.holder.work for event in resized} >= {Work.INFERENCE, Work.PREPARATION}
    assert all(event.epoch > 0 for event in resized)
