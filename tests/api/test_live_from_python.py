"""Tests of ``ekya.start``: begin and end of a run, and its answers; the engine is a stand-in, but once."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from waiting import wait_until

import ekya
from ekya.api import live
from ekya.core.records import FramePrediction
from ekya.core.units import ModelVersion, StreamId
from ekya.pipeline.run_writer import FrameRecord, merge_frames
from ekya.results.storage.run_folder import RunFolder

CAMERA = StreamId("cam-1")
ROOT = Path(__file__).parents[2]


class Stage:
    """Stands for the engine: writes answers to a folder when it is told to, and ends when it is stopped."""

    def __init__(self, folder):
        self.folder, self.failure, self.refusal = folder, None, None
        self.ends = threading.Event()

    def run_live(self, fleet, options, console, stop, attach):
        if self.refusal is not None:
            raise self.refusal
        self.stop, self.record = stop, FrameRecord(self.folder, CAMERA)
        control = SimpleNamespace(fleet=fleet, now_us=lambda: 0)
        attach(SimpleNamespace(folder=self.folder, fleet=fleet), control)
        while not (stop.is_set() or self.ends.is_set()):
            stop.wait(0.01)
        if self.failure is not None:
            raise self.failure
        merge_frames(self.folder, [CAMERA])
        return self.folder.path

    def answer(self, *frames):
        """Writes answers to these frames, as a worker does."""
        boxes = np.array([[1, 2, 3, 4]], np.float32)
        rows = [
            FramePrediction(
                frame,
                100_000 * frame,
                0,
                True,
                frame,
                ModelVersion(1),
                1,
                32,
                boxes,
                np.array([0]),
                np.array([0.9]),
            )
            for frame in frames
        ]
        self.record.add(rows, [])
        self.record.flush()


@pytest.fixture
def stage(tmp_path, monkeypatch):
    stage = Stage(RunFolder.create_numbered(tmp_path, "run"))
    monkeypatch.setattr(live, "run_live", stage.run_live)
    monkeypatch.setattr(live, "make_runnable", lambda fleet, *_, **__: fleet)
    return stage


def frames_of(answers):
    return [answer["frame"] for answer in answers]


def test_answers_come_while_the_run_goes_on_and_after_it_ended(stage):
    with ekya.start(ekya.load_fleet()) as run:
        answers = run.answers()
        stage.answer(0, 1)
        first = next(answers)
        assert (first["camera"], first["frame"], first["model"]) == (CAMERA, 0, 1)
        assert [(one["class"], one["box"]) for one in first["objects"]] == [("person", [1, 2, 3, 4])]
        assert next(answers)["frame"] == 1
        stage.answer(2)
        assert next(answers)["frame"] == 2
        stage.answer(3, 4)
        stage.ends.set()
        assert frames_of(answers) == [3, 4]
        assert run.wait().folder == run.folder == stage.folder.path
    assert run.dropped == 0


def test_answers_that_are_read_too_slowly_are_dropped_oldest_first_and_counted(stage):
    with ekya.start(ekya.load_fleet()) as run:
        stage.answer(*range(8))
        answers = run.answers(most_waiting=3)
        assert next(answers)["frame"] == 5
        assert run.dropped == 5
        stage.answer(*range(8, 12))
        stage.ends.set()
        assert frames_of(answers) == [6, 7, 9, 10, 11]
        assert run.dropped == 6


@pytest.mark.parametrize("error", [ValueError("of the block"), KeyboardInterrupt()])
def test_error_in_the_block_ends_the_run_and_goes_on(stage, error):
    with pytest.raises(type(error)), ekya.start(ekya.load_fleet()):
        raise error
    assert stage.stop.is_set()


def test_run_that_fails_raises_where_it_is_noticed(stage):
    stage.failure = ekya.UserError("the disk is full")
    with pytest.raises(ekya.UserError, match="the disk is full"), ekya.start(ekya.load_fleet()):
        pass
    with pytest.raises(ekya.UserError, match="the disk is full"), ekya.start(ekya.load_fleet()) as run:
        stage.ends.set()
        list(run.answers())
    stage.refusal = ekya.UserError("too few GPUs")
    with pytest.raises(ekya.UserError, match="too few GPUs"):
        ekya.start(ekya.load_fleet())


@pytest.mark.live
def test_live_run_from_python_answers_reports_and_takes_an_own_scheduler(tmp_path):
    class Own:
        """A scheduler that only this process knows."""

        name = "own"
        needs = ekya.Needs(labels=True, inference_profile=True, micro_profile=True, fixed_shares=True)

        def plan(self, view):
            works = (ekya.Work.INFERENCE, ekya.Work.RETRAINING)
            jobs = [ekya.Job(stream.stream, work) for stream in view.streams for work in works]
            fair = ekya.fair_shares_milli(view.capacity_milli, view.quantum_milli, len(jobs))
            return ekya.one_phase_plan(view, ekya.choices_by_stream(view), dict(zip(jobs, fair, strict=True)))

    fleet = ekya.load_fleet(windows=2, window_s=9)
    with ekya.start(fleet, Own(), runs=tmp_path) as run:
        answers = list(run.answers())
    assert {answer["camera"] for answer in answers} == set(run.summary.streams)
    assert run.dropped == 0
    assert (run.summary.scheduler, run.summary.world) == ("own", "live")
    assert run.summary.values["frames"]["lost"] == 0
    assert run.summary.mean_accuracy > 0.4
    assert "</html>" in run.report._repr_html_().replace("&lt;", "<").replace("&gt;", ">")


SCRIPT = """
import ekya

with ekya.start(ekya.load_fleet(windows=9, window_s=9), runs="runs", name="cut") as run:
    for answer in run.answers():
        print(answer["id"], flush=True)
"""


@pytest.mark.live
@pytest.mark.long
def test_ctrl_c_in_a_script_ends_its_run_in_order(tmp_path):
    """A terminal sends Ctrl-C to all processes of the script; none may end before its work is done."""
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "script.py"],
        process_group=0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment,
    ) as script:
        assert script.stdout.readline().startswith("cam-"), script.communicate()[1]
        others = psutil.Process(script.pid).children(recursive=True)
        os.killpg(script.pid, signal.SIGINT)
        _, said = script.communicate()
    assert script.returncode == -signal.SIGINT
    assert (said.count("Traceback"), said.splitlines()[-1]) == (1, "KeyboardInterrupt")
    assert others
    wait_until(lambda: not any(one.is_running() for one in others), "its processes have ended")
    summary = ekya.Finished(tmp_path / "runs" / "cut").summary
    assert len(summary.streams) == 4
    assert summary.values["frames"]["lost"] == 0
    assert (tmp_path / "runs" / "cut" / "report.html").is_file()
