"""Live run with real Ray and real processes: workers die, and the run is interrupted and resumed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid

import psutil
import pytest
import yaml

from ekya.config.shipped import shipped_path
from ekya.control.journal_replay import replay
from ekya.core import events as ev
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions

pytestmark = pytest.mark.live

WINDOW_S, FPS = 8, 5


@pytest.fixture
def fleet_file(processes, tmp_path):
    """Two cameras of the shipped fleet, in shorter windows."""
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"name": "two", "window_s": WINDOW_S, "windows": 3, "gpus": 1.0}
    raw["preparation"] = {"share_milli": 600, "fraction": 0.15}
    raw["processes"] = processes
    raw["streams"] = raw["streams"][:2]
    for stream in raw["streams"]:
        stream["source"]["fps"] = FPS
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def events_of(folder, kind):
    _, _, turns = read_journal(folder.journal)
    return [event for turn in turns for event in turn.events if isinstance(event, kind)]


def an_actor(mark, kind):
    """Returns the process of an actor, found by the mark that all processes of a run inherit."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if mark in process.environ() and process.cmdline()[0].startswith(f"ray::{kind}"):
                return process
    return pytest.fail(f"there is no {kind}")


def kill_an_actor(mark, kind):
    """Kills an actor's process, as in a crash."""
    an_actor(mark, kind).kill()


def has_torch(process):
    return any("libtorch" in mapped.path for mapped in process.memory_maps())


def has_opened(folder, windows):
    """Returns whether this many windows have opened in complete steps, from which a run can be resumed."""
    if not folder.journal.is_file() or '"WindowOpened"' not in folder.journal.read_text():
        return False
    return len(events_of(folder, ev.WindowOpened)) >= windows


@pytest.mark.parametrize(
    ("processes", "dying"), [("gpu", 2), pytest.param("stream", 1, marks=pytest.mark.long)]
)
def test_run_survives_dead_workers_and_resumes_after_ctrl_c(fleet_file, dying, tmp_path):
    runs, mark = tmp_path / "runs", f"EKYA_TEST_{uuid.uuid4().hex}"
    command = [sys.executable, "-c", "import sys; from ekya.cli import main; sys.exit(main())", "run"]
    said = tmp_path / "said"
    with said.open("w") as stderr:
        process = subprocess.Popen(
            [*command, str(fleet_file), "--runs", str(runs), "--no-dashboard"],
            env=os.environ | {mark: "1"},
            stderr=stderr,
            start_new_session=True,
        )
    folder = RunFolder(runs / "two")
    wait_for(lambda: has_opened(folder, 1))
    assert has_torch(an_actor(mark, "InferenceActor"))
    assert not has_torch(an_actor(mark, "SchedulerActor"))
    # The plan after the death of the inference is made without the scheduler.
    kill_an_actor(mark, "SchedulerActor")
    kill_an_actor(mark, "InferenceActor")
    wait_for(lambda: len(events_of(folder, ev.WorkerBack)) == dying)
    kill_an_actor(mark, "RetrainingActor")
    wait_for(lambda: len(events_of(folder, ev.WorkerBack)) == 2 * dying)
    # Restarting can take more than a window on a busy machine; let frames arrive after it before Ctrl-C.
    time.sleep(0.75 * WINDOW_S)
    wait_for(lambda: has_opened(folder, 2))
    assert not has_torch(psutil.Process(process.pid)), "the driver computes nothing"
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(120) == 130
    assert "the scheduler died" in said.read_text()
    assert "Traceback" not in said.read_text()

    interrupted = json.loads(folder.summary.read_text())
    assert interrupted["frames"]["lost"] == 0
    assert folder.report.is_file()
    workers = {(event.stream, event.role) for event in events_of(folder, ev.WorkerDied)}
    assert len(workers) == 2 * dying
    assert {(event.stream, event.role) for event in events_of(folder, ev.WorkerBack)} == workers
    died = {stream for stream, role in workers if role is ev.Role.INFERENCE}
    for name in interrupted["streams"]:
        frames = len(read_predictions(folder.predictions(name)).frame)
        if name in died:
            assert frames > WINDOW_S * FPS / 2, "some of them arrived after its death"
        else:
            assert frames >= WINDOW_S * FPS, "the other camera's did not wait for it"

    resumed = subprocess.run(
        [*command, "--resume", str(folder.path), "--no-dashboard"],
        check=False,
        timeout=240,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert "Traceback" not in resumed.stderr
    assert "has none of its labels" not in resumed.stderr
    summary = json.loads(folder.summary.read_text())
    assert summary["frames"]["lost"] == 0
    assert summary["frames"]["arrived"] > interrupted["frames"]["arrived"]
    # The interrupted part is not checked: on a busy machine a process can be away for a whole window.
    arrived, analysed = (summary["frames"][k] - interrupted["frames"][k] for k in ("arrived", "analysed"))
    assert analysed > arrived / 3
    assert [window["index"] for window in summary["streams"]["cam-1"]["windows"]] == [0, 1, 2]
    assert {event.stream for event in events_of(folder, ev.LabelsReady)} >= {"cam-1"}
    assert (folder.figures / "timeline.png").is_file()

    name, constants, turns = read_journal(folder.journal)
    scheduler = make_scheduler(name)
    replayed = list(replay(turns, constants, scheduler.needs, scheduler.plan))
    assert len(replayed) == len(turns) > 5
    assert all(turn.same for turn in replayed)


def wait_for(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.3)
