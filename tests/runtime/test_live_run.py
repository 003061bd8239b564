"""Live run with real Ray and real processes: workers die, and the run is interrupted and resumed."""

import contextlib
import json
import os
import signal
import subprocess
import uuid
from itertools import islice

import numpy as np
import psutil
import pytest
import yaml
from live_runs import EKYA, events_of, replayed
from waiting import LONG_GUARD_S, wait_until

from ekya.config.shipped import shipped_path
from ekya.core import events as ev
from ekya.models.golden.detections import Detections
from ekya.models.golden.label_file import LabelHead, LabelTable
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions
from ekya.streams.synthetic import KINDS, CitySpec

pytestmark = pytest.mark.live

WINDOW_S, FPS = 8, 5
WINDOWS = 30
"""Of a run: more than a busy machine needs to start workers again. Tests end it before, or ask for less."""


@pytest.fixture
def fleet_file(processes, task, tmp_path):
    """Two cameras of the shipped fleet, in shorter windows; their detectors start from the shipped base."""
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"name": "two", "window_s": WINDOW_S, "windows": WINDOWS, "gpus": 1.0}
    raw["preparation"] = {"share_milli": 600, "fraction": 0.15}
    raw["processes"] = processes
    raw["streams"] = raw["streams"][:2]
    for stream in raw["streams"]:
        stream["source"]["fps"] = FPS
    if task == "detect":
        raw["edge"] = {"task": task, "resolution": 224}
        raw["inference"] = {"every": [1, 2], "resolutions": [224]}
        raw["retraining"] = {"epochs": [10], "trainable_blocks": [0], "data_fractions": [1.0]}
        labels = drawn_labels(raw, tmp_path / "labels.parquet")
        raw["golden"] = {"model": "file", "weights": str(labels), "frames_per_window": 12}
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def drawn_labels(raw, path):
    """Writes labels of a detector that finds whatever the cameras show."""
    table = LabelTable(LabelHead(names=KINDS, finds=True))
    for stream in raw["streams"]:
        shown = CitySpec.model_validate(stream["source"]).open(KINDS).frames()
        table.frames[stream["id"]] = {
            frame.index: Detections(truth.boxes, truth.classes, np.ones(len(truth.boxes), np.float32))
            for frame, truth in islice(shown, (raw["windows"] + 1) * WINDOW_S * FPS)
        }
    table.save_table(path)
    return path


def an_actor(mark, kind):
    """Returns the process of an actor, found by the mark that all processes of a run inherit."""
    found = []

    def is_there():
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if mark in process.environ() and process.cmdline()[0].startswith(f"ray::{kind}"):
                    found.append(process)
        return found

    # A process has another name until it has loaded everything.
    wait_until(is_there, f"there is no {kind}")
    return found[0]


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


def analysed_since_death(folder):
    """Returns whether every stream whose inference came back has had frames analysed since."""
    back = {
        event.stream: event.t_us
        for event in events_of(folder, ev.WorkerBack)
        if event.role is ev.Role.INFERENCE
    }
    counted = events_of(folder, ev.FramesCounted)
    return all(
        any(event.stream == name and event.t_us > back_us and event.analysed for event in counted)
        for name, back_us in back.items()
    )


def labelled(folder):
    return {event.stream for event in events_of(folder, ev.LabelsReady)}


def wait_in_run(process, said, condition):
    """Waits for what a run does, and fails at once if it has ended before."""
    wait_until(lambda: process.poll() is not None or condition(), guard_s=LONG_GUARD_S)
    assert process.poll() is None, said.read_text()


@pytest.mark.parametrize(
    ("task", "processes", "dying"),
    [
        ("classify", "gpu", 2),
        pytest.param("classify", "stream", 1, marks=pytest.mark.long),
        pytest.param("detect", "gpu", 2, marks=pytest.mark.long),
    ],
)
def test_run_survives_dead_workers_and_resumes_after_ctrl_c(fleet_file, task, dying, tmp_path):
    runs, mark = tmp_path / "runs", f"EKYA_TEST_{uuid.uuid4().hex}"
    command = [*EKYA, "run"]
    said = tmp_path / "said"
    with said.open("w") as stderr:
        process = subprocess.Popen(
            [*command, str(fleet_file), "--runs", str(runs), "--no-dashboard"],
            env=os.environ | {mark: "1"},
            stderr=stderr,
            start_new_session=True,
        )
    folder = RunFolder(runs / "two")
    wait_in_run(process, said, lambda: has_opened(folder, 1))
    assert has_torch(an_actor(mark, "InferenceActor"))
    assert not has_torch(an_actor(mark, "SchedulerActor"))
    # The plan after the death of the inference is made without the scheduler.
    kill_an_actor(mark, "SchedulerActor")
    kill_an_actor(mark, "InferenceActor")
    wait_in_run(process, said, lambda: len(events_of(folder, ev.WorkerBack)) == dying)
    kill_an_actor(mark, "RetrainingActor")
    wait_in_run(process, said, lambda: len(events_of(folder, ev.WorkerBack)) == 2 * dying)
    # Restarting can take more than a window on a busy machine; frames are analysed after it, before Ctrl-C.
    wait_in_run(process, said, lambda: has_opened(folder, 2) and analysed_since_death(folder))
    assert not has_torch(psutil.Process(process.pid)), "the driver computes nothing"
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(LONG_GUARD_S) == 130
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
        assert frames >= WINDOW_S * FPS or name in died, "the other camera's did not wait for it"

    opened = len(events_of(folder, ev.WindowOpened))
    with said.open("w") as stderr:
        process = subprocess.Popen(
            [*command, "--resume", str(folder.path), "--no-dashboard"], stderr=stderr, start_new_session=True
        )
    wait_in_run(process, said, lambda: has_opened(folder, opened + 2) and labelled(folder) >= {"cam-1"})
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(LONG_GUARD_S) == 130
    summary = json.loads(folder.summary.read_text())
    assert "Traceback" not in said.read_text()
    assert "has none of its labels" not in said.read_text()
    assert (summary["task"], summary["frames"]["lost"]) == (task, 0)
    assert summary["frames"]["arrived"] > interrupted["frames"]["arrived"]
    assert summary["frames"]["analysed"] > interrupted["frames"]["analysed"]
    windows = [window["index"] for window in summary["streams"]["cam-1"]["windows"]]
    assert windows == list(range(len(windows)))
    assert len(windows) > len(interrupted["streams"]["cam-1"]["windows"])
    assert (folder.figures / "timeline.png").is_file()

    assert len(replayed(folder)) > 5


@pytest.mark.long
@pytest.mark.parametrize(("task", "processes"), [("detect", "gpu")])
def test_detectors_run_live_and_lose_no_frame(fleet_file, tmp_path):
    windows = 6
    more = ["--windows", str(windows), "--runs", str(tmp_path / "runs"), "--no-dashboard"]
    command = [*EKYA, "run", str(fleet_file), *more]
    done = subprocess.run(command, check=False, timeout=LONG_GUARD_S, capture_output=True, text=True)
    summary = json.loads(RunFolder(tmp_path / "runs" / "two").summary.read_text())
    assert done.returncode == (0 if summary["health"]["sentence"] is None else 3), done.stderr
    assert "Traceback" not in done.stderr
    frames = summary["frames"]
    assert (summary["task"], summary["world"], frames["lost"]) == ("detect", "live", 0)
    assert frames["arrived"] == pytest.approx(2 * windows * WINDOW_S * FPS, abs=5)
    assert frames["analysed"] > 0
    assert summary["golden"]["labelled_frames"] > 0
    assert all(stream["mean_accuracy"] > 0.2 for stream in summary["streams"].values())
