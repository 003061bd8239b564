"""Tests of the status that a service keeps: against whole scripted runs, and in bounded memory."""

import contextlib
import dataclasses
import json
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest
from kept_status import BEGAN_UNIX_S, CAMERAS, EVENTS, Clock, make_keeper, scripted_run
from script import CAM_1, CAM_2, CAM_3, S

from ekya.control.loop_state import LoopState
from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.errors import NotThereError
from ekya.core.preparation_events import AccuracyAudited
from ekya.core.state import FleetState, RetrainJob, StreamState
from ekya.core.units import JobId, StreamId
from ekya.results.metrics.retrainings import OUTCOMES
from ekya.service.http.page import facts_of
from ekya.service.status import STEP_BOUNDS_S, RetrainingCounts
from ekya.service.status_keeper import KEPT_WARNINGS, MOST_SOURCES, OTHERS

GAMMA = RetrainConfig(3, 16, 0, 1, 1.0)


@pytest.fixture(scope="module")
def ran():
    """A run of three cameras with misfortunes, and the keeper that followed it."""
    early = ev.WorkerDied(61 * S, CAM_2, ev.Role.RETRAINING, "killed")
    killed = [one for one in EVENTS if isinstance(one, ev.WorkerDied) and one.role is early.role]
    return scripted_run("uniform", (*(one for one in EVENTS if one not in killed), early))


def test_status_shows_the_loops_last_state(ran):
    run, keeper = ran
    fleet, status = run.states[-1].fleet, keeper.status()
    assert [camera.id for camera in status.cameras] == [CAM_1, CAM_2, CAM_3]
    for stream, camera in zip(fleet.streams, status.cameras, strict=True):
        assert camera.state == stream.status
        assert camera.model_version == stream.version
        assert camera.accuracy == stream.answering_accuracy
        assert camera.inference_share_milli == stream.inference_share_milli
    assert (status.window, status.window_opened_us, status.window_ends_us) == (3, 90 * S, 120 * S)
    assert status.capacity_milli == 2000
    assert status.camera(CAM_3).state == "ended"


def test_status_is_json(ran):
    _, keeper = ran
    values = json.loads(json.dumps(dataclasses.asdict(keeper.status())))
    assert values["cameras"][0]["retrainings"].keys() == set(OUTCOMES)


def test_status_counts_frames_drifts_labels_and_warnings(ran):
    run, keeper = ran
    status = keeper.status()
    assert (status.camera(CAM_1).frames_due, status.camera(CAM_1).frames_analysed) == (150, 140)
    assert [camera.drifts for camera in status.cameras] == [1, 0, 0]
    for camera in status.cameras:
        labelled = [event for event in run.events(ev.LabelsReady) if event.stream == camera.id]
        assert camera.labels == sum(one.training_crops + one.validation_crops for one in labelled) > 0
        assert camera.labels_unix_s == BEGAN_UNIX_S + labelled[-1].t_us / S
    assert [(one.source, one.count) for one in status.warning_counts] == [("golden model", 1)]
    assert [(one.unix_s, one.text) for one in status.warnings] == [
        (BEGAN_UNIX_S + 26, "the detector is slow")
    ]


def test_status_has_terms_that_operators_set(ran):
    _, keeper = ran
    cameras = keeper.status().cameras
    assert [(one.weight, one.frozen) for one in cameras] == [(1.0, False), (2.0, True), (1.0, False)]
    shown = [facts_of(one).get("Analysed stream") for one in cameras]
    assert shown == [None, "the substream, url_detect", None]


def test_why_is_the_reason_of_the_last_plan(ran):
    run, keeper = ran
    reasons = {}
    for turn in run.turns:
        for assignment in turn.plan.phases[0].assignments if turn.plan else ():
            reasons[assignment.stream] = assignment.reason
    assert {camera.id: camera.why for camera in keeper.status().cameras} == reasons


def test_each_started_retraining_is_kept_with_its_outcome(ran):
    run, keeper = ran
    served = {one.job for one in run.commands(cmd.ServeModel)}
    refused = {one.job: one.reason for one in run.commands(cmd.KeepServing)}
    rows = [row for camera in CAMERAS for row in keeper.retrainings(camera)]
    started = {one.job: one for one in run.commands(cmd.StartRetraining)}
    assert sorted(row.job for row in rows) == sorted(started)
    for row in rows:
        assert (row.config, row.window) == (started[row.job].config.name, started[row.job].window)
        assert (row.outcome == "served") == (row.job in served) == (row.reason == "")
        assert row.reason == refused.get(row.job, row.reason)
        assert row.began_unix_s < row.ended_unix_s
        epochs = [one for one in run.events(ev.RetrainProgress) if one.job == row.job]
        assert row.after == max((one.validation_accuracy for one in epochs), default=None)
        assert row.gpu_s == (epochs[-1].gpu_s if epochs else 0.0)
    assert {"served", "failed"} <= {row.outcome for row in rows}
    for camera in keeper.status().cameras:
        outcomes = [row.outcome for row in keeper.retrainings(camera.id)]
        assert dataclasses.asdict(camera.retrainings) == {one: outcomes.count(one) for one in OUTCOMES}


def test_failed_retraining_has_the_reason_of_its_failure(ran):
    _, keeper = ran
    failed = [row for row in keeper.retrainings(CAM_2) if row.outcome == "failed"]
    assert [row.reason for row in failed] == ["killed"]


def test_retraining_in_progress_is_shown_with_its_epochs():
    clock = Clock()
    keeper = make_keeper(clock)
    job = RetrainJob(JobId(4), GAMMA, 2, 300, 0.8, 0.81, 9.0, accuracies=(0.6, 0.7))
    keeper(Batch(S, ()), after(a_stream(CAM_1, job=job)))
    shown = keeper.status().camera(CAM_1)
    assert shown.retraining_share_milli == 300
    assert dataclasses.asdict(shown.retraining) == {
        "job": 4,
        "config": GAMMA.name,
        "epoch": 2,
        "epochs": 3,
        "best_accuracy": 0.7,
        "expected_accuracy": 0.81,
    }
    assert keeper.retrainings(CAM_1) == ()


def test_retraining_that_another_replaces_in_one_step_is_over():
    keeper = make_keeper(Clock())
    second = RetrainJob(JobId(5), GAMMA, 2, 300, 0.8, 0.8, 9.0)
    keeper(Batch(S, ()), after(a_stream(CAM_1), commands=(started(4),)))
    replaced = (cmd.StopRetraining(CAM_1, JobId(4)), started(5))
    keeper(Batch(2 * S, ()), after(a_stream(CAM_1, job=second), commands=replaced))
    (row,) = keeper.retrainings(CAM_1)
    assert (row.job, row.outcome, row.after) == (4, "kept", None)
    assert "before its first epoch" in row.reason
    assert keeper.status().camera(CAM_1).retraining.job == 5


def test_audited_accuracy_is_shown_once_enough_frames_were_compared():
    keeper, stream = make_keeper(Clock()), after(a_stream(CAM_1), a_stream(CAM_2))
    first = AccuracyAudited(10 * S, CAM_1, 1, 300, (5, 4, 0), (5, 5, 0), 0.2)
    keeper(Batch(10 * S, (first, replace(first, stream=StreamId("gone")))), stream)
    assert [camera.audited for camera in keeper.status().cameras] == [None, None]
    second = replace(first, t_us=20 * S, window=2, correct=(5, 3, 4), counted=(5, 5, 5))
    keeper(Batch(20 * S, (second,)), stream)
    audited = keeper.status().camera(CAM_1).audited
    assert audited.accuracy == pytest.approx(21 / 25)
    assert 0.4 < audited.low < audited.accuracy < audited.high < 1
    assert (audited.frames, audited.since_unix_s, audited.until_unix_s) == (
        6,
        BEGAN_UNIX_S + 10,
        BEGAN_UNIX_S + 20,
    )
    assert keeper.status().camera(CAM_2).audited is None


def test_status_does_not_change_when_steps_follow():
    keeper = make_keeper(Clock())
    keeper(Batch(S, ()), after(a_stream(CAM_1, accuracy=0.5)))
    status = keeper.status()
    keeper(Batch(2 * S, (ev.FramesCounted(S, CAM_1, 0, 9, 9),)), after(a_stream(CAM_1, accuracy=0.6)))
    assert (status.camera(CAM_1).accuracy, status.camera(CAM_1).frames_due) == (0.5, 0)
    assert (keeper.status().camera(CAM_1).accuracy, keeper.status().camera(CAM_1).frames_due) == (0.6, 9)


def test_other_threads_read_while_steps_go_on():
    """A camera that comes and goes is seen whole or not at all."""
    keeper, over, read = make_keeper(Clock()), threading.Event(), []

    def reading():
        while not over.is_set():
            for camera in keeper.status().cameras:
                assert camera.frames_due == camera.frames_analysed
            with contextlib.suppress(NotThereError):
                assert len(set(map(len, dataclasses.astuple(keeper.series(CAM_1))))) == 1
            read.append(1)

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(reading)
        for at in range(1, 3000):
            counted = ev.FramesCounted(at * S, CAM_1, 0, at, at)
            streams = [a_stream(CAM_2), *([a_stream(CAM_1)] if at % 7 else [])]
            keeper(Batch(at * S, (counted,)), after(*streams))
        over.set()
        reader.result()
    assert len(read) > 5


def test_removed_camera_is_forgotten():
    keeper = make_keeper(Clock())
    keeper(Batch(0, ()), after(a_stream(CAM_1), commands=(started(4),)))
    stopped = after(a_stream(CAM_1), a_stream(CAM_2), commands=(cmd.StopRetraining(CAM_1, JobId(4)),))
    keeper(Batch(S, (ev.FramesCounted(S, CAM_1, 0, 9, 9),)), stopped)
    assert [row.job for row in keeper.retrainings(CAM_1)] == [4]
    keeper(Batch(2 * S, (ev.FramesCounted(S, CAM_1, 0, 9, 9),)), after(a_stream(CAM_2)))
    assert [camera.id for camera in keeper.status().cameras] == [CAM_2]
    for read in (keeper.series, keeper.retrainings, keeper.status().camera):
        with pytest.raises(NotThereError, match="cam-1"):
            read(CAM_1)
    assert len(keeper.series(CAM_2).unix_s) == 1
    keeper(Batch(13 * S, ()), after(a_stream(CAM_1), a_stream(CAM_2)))
    assert keeper.status().camera(CAM_1).frames_due == 0
    assert keeper.status().camera(CAM_1).retrainings == RetrainingCounts()
    assert keeper.retrainings(CAM_1) == ()
    assert keeper.series(CAM_1).unix_s == (BEGAN_UNIX_S + 13,)


def test_lost_camera_has_its_reason_and_health():
    keeper = make_keeper(Clock())
    keeper(Batch(0, (ev.WindowOpened(0, 0, 100 * S), ev.StreamAdded(0, CAM_1, ()))), after(a_stream(CAM_1)))
    lost = a_stream(CAM_1)
    lost = replace(lost, faults=replace(lost.faults, lost="no signal"))
    keeper(Batch(30 * S, (ev.StreamLost(10 * S, CAM_1, "no signal"),)), after(lost))
    camera = keeper.status().camera(CAM_1)
    assert (camera.state, camera.reason, camera.health, camera.healthy) == (
        "lost",
        "no signal",
        "lost",
        False,
    )
    assert "no signal" in camera.health_reason
    assert "check the camera" in camera.health_reason


def test_series_has_accuracy_and_shares_of_the_run(ran):
    run, keeper = ran
    series = keeper.series(CAM_1)
    assert len(series.unix_s) == len(series.accuracy) == len(series.inference_milli) > 8
    assert all(later - earlier >= 5 for earlier, later in pairwise(series.unix_s))
    assert series.accuracy[0] is None
    known = {state.fleet.stream(CAM_1).answering_accuracy for state in run.states}
    assert set(series.accuracy) <= known
    assert max(series.retraining_milli) > 0


@pytest.mark.parametrize(("step_us", "place"), [(500, 0), (1000, 0), (20_000, 3), (60_000_000, 9)])
def test_duration_of_a_step_is_counted_in_its_class(step_us, place):
    clock = Clock(step_us)
    keeper = make_keeper(clock)
    keeper(Batch(0, ()), after(a_stream(CAM_1)))
    steps = keeper.status().steps
    assert len(steps.counts) == len(STEP_BOUNDS_S) + 1
    assert [at for at, count in enumerate(steps.counts) if count] == [place]
    assert steps.sum_s == pytest.approx(step_us / S)


def test_warnings_of_many_processes_are_bounded():
    keeper = make_keeper(Clock())
    warned = [ev.Warned(S, f"process {number}", "it is slow") for number in range(3 * MOST_SOURCES)]
    keeper(Batch(S, tuple(warned)), after(a_stream(CAM_1)))
    status = keeper.status()
    assert len(status.warnings) == KEPT_WARNINGS
    assert status.warnings[-1].source == warned[-1].source
    assert len(status.warning_counts) == MOST_SOURCES + 1
    assert {one.source: one.count for one in status.warning_counts}[OTHERS] == 2 * MOST_SOURCES


def test_memory_is_flat_when_the_service_runs_for_weeks():
    """A step every ten minutes, each with a window, a retraining and a warning: more than lasts a week."""
    assert growth_bytes(steps=1200, more=1200, every_s=600) < 40_000


@pytest.mark.live
@pytest.mark.virtual
@pytest.mark.long
def test_memory_is_flat_over_a_million_steps():
    assert growth_bytes(steps=500_000, more=500_000, every_s=2) < 40_000


def growth_bytes(steps, more, every_s):
    """Returns how much memory grows in ``more`` steps after ``steps``; every hundredth camera is another."""
    clock = Clock()
    keeper = make_keeper(clock)

    def go(first, last):
        for at in range(first, last):
            clock.now_us = now_us = at * every_s * S
            late = StreamId(f"late-{at // 100}")
            job = RetrainJob(JobId(at), GAMMA, at, 300, 0.8, 0.8, 9.0)
            events = (
                ev.WindowClosed(now_us, at - 1),
                ev.WindowOpened(now_us, at, now_us + every_s * S),
                ev.FramesCounted(now_us, CAM_1, at, 100, 80),
                ev.RetrainFailed(now_us, CAM_1, JobId(at - 1), "it broke"),
                ev.Warned(now_us, f"worker of {late}", f"it is slow for the {at}th time"),
            )
            keeper(
                Batch(now_us, events),
                after(a_stream(CAM_1, job=job), a_stream(late), commands=(started(at),)),
            )

    go(1, steps)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    go(steps, steps + 100)  # what is replaced must have been traced when it came
    filled, _ = tracemalloc.get_traced_memory()
    go(steps + 100, steps + more)
    now, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert filled >= before
    return now - filled


def started(job):
    return cmd.StartRetraining(CAM_1, JobId(job), 2, GAMMA, 300, 0.8, 9.0)


def a_stream(name, **changes):
    return StreamState(name, (), **changes)


def after(*streams, commands=()):
    """Returns the result of a step, after which these streams are there."""
    return StepResult(LoopState(FleetState(streams), {}), None, commands)
