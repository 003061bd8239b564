"""Real Ray, real processes: a small fleet, a worker that dies, an interruption and its resumption."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import ray
import yaml
from rich.console import Console

from ekya.config import RunOptions, load_fleet
from ekya.control.replay import replay
from ekya.core import events as ev
from ekya.journal import read_journal
from ekya.runfolder import RunFolder
from ekya.runtime.live import run_live
from ekya.scheduling.registry import make_scheduler
from ekya.shipped import shipped_path

pytestmark = pytest.mark.live


@pytest.fixture
def fleet_file(tmp_path):
    """Two cameras of the shipped fleet, in shorter windows."""
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"name": "two", "window_s": 8, "windows": 3, "gpus": 1.0}
    raw["preparation"] = {"share_milli": 600, "fraction": 0.15}
    raw["streams"] = raw["streams"][:2]
    for stream in raw["streams"]:
        stream["source"]["fps"] = 5
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def events_of(folder, kind):
    _, _, turns = read_journal(folder.journal)
    return [event for turn in turns for event in turn.events if isinstance(event, kind)]


def kill_in_the_run(name, folder):
    """Ends an actor's process once the first window is open, as a crash would."""

    def kill():
        wait_for(lambda: has_opened(folder, 1))
        time.sleep(2)
        os.kill(ray.get(ray.get_actor(name).process.remote()), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()


def has_opened(folder, windows):
    """Opened and decided on: a turn that is cut in its middle is no turn to go on from."""
    if not folder.journal.is_file() or '"WindowOpened"' not in folder.journal.read_text():
        return False
    return len(events_of(folder, ev.WindowOpened)) >= windows


def test_a_run_survives_a_dead_worker_and_its_journal_replays(fleet_file, tmp_path):
    kill_in_the_run("inference/cam-2", RunFolder(tmp_path / "runs" / "two"))
    options = RunOptions(runs=tmp_path / "runs", dashboard=False)
    folder = RunFolder(run_live(load_fleet(fleet_file), options, Console(stderr=True)))

    summary = json.loads(folder.summary.read_text())
    assert summary["frames"]["lost"] == 0
    whole_stream = 3 * 8 * 5
    assert summary["frames"]["arrived"] > whole_stream + 10  # cam-1's, and cam-2's around its death
    assert summary["frames"]["analysed"] > whole_stream / 3
    assert folder.report.is_file()
    assert (folder.figures / "timeline.png").is_file()

    assert [event.stream for event in events_of(folder, ev.WorkerDied)] == ["cam-2"]
    assert [event.stream for event in events_of(folder, ev.WorkerBack)] == ["cam-2"]
    assert {event.stream for event in events_of(folder, ev.LabelsReady)} >= {"cam-1"}

    name, constants, turns = read_journal(folder.journal)
    scheduler = make_scheduler(name)
    replayed = list(replay(turns, constants, scheduler.needs, scheduler.plan))
    assert len(replayed) == len(turns) > 5
    assert all(turn.same for turn in replayed)


def test_ctrl_c_leaves_a_whole_report_and_resume_goes_on(fleet_file, tmp_path):
    runs = tmp_path / "runs"
    command = [sys.executable, "-c", "import sys; from ekya.cli import main; sys.exit(main())", "run"]
    process = subprocess.Popen(
        [*command, str(fleet_file), "--runs", str(runs), "--no-dashboard"], start_new_session=True
    )
    folder = RunFolder(runs / "two")
    wait_for(lambda: has_opened(folder, 2))
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(120) == 130
    summary = json.loads(folder.summary.read_text())
    assert summary["frames"]["lost"] == 0
    assert folder.report.is_file()

    resumed = subprocess.run(
        [*command, "--resume", str(folder.path), "--no-dashboard"], check=False, timeout=240
    )
    assert resumed.returncode == 0
    after = json.loads(folder.summary.read_text())
    assert after["frames"]["lost"] == 0
    assert after["frames"]["arrived"] > summary["frames"]["arrived"]
    assert [window["index"] for window in after["streams"]["cam-1"]["windows"]] == [0, 1, 2]


def wait_for(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.3)
