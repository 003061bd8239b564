"""Scripted runs of the loop with the status that a service keeps of them, and an example of a status."""

from dataclasses import dataclass, replace

import whole_runs
from script import CAM_1, CAM_2, CAM_3, MISFORTUNES, S

from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core import events as ev
from ekya.service.host_facts import ServiceHostFacts
from ekya.service.status import (
    AuditedAccuracy,
    CameraStatus,
    RetrainingCounts,
    ServiceStatus,
    StepTimes,
    WarningCount,
    WarningRow,
)
from ekya.service.status_keeper import KnownCameraTerms, KnownFleetTerms, StatusKeeper

BEGAN_UNIX_S = 1_700_000_000
CAMERAS = (CAM_1, CAM_2, CAM_3)
EVENTS = (
    *MISFORTUNES,
    ev.FramesCounted(20 * S, CAM_1, 0, 100, 90),
    ev.FramesCounted(25 * S, CAM_1, 0, 50, 50),
    ev.DriftDetected(50 * S, CAM_1, 1, 49 * S, "its pictures have changed"),
)


@dataclass(frozen=True)
class Sink:
    """State of a sink of answers."""

    name: str = "mqtt"
    delivered: int = 900
    lost_frames: int = 1
    waiting_frames: int = 30
    waiting_s: float = 12.5


class Clock:
    """Run time that a test sets; a step takes ``step_us``."""

    def __init__(self, step_us=5_000):
        self.now_us, self.step_us = 0, step_us

    def __call__(self):
        return self.now_us + self.step_us


def unix_us(t_us):
    return BEGAN_UNIX_S * S + t_us


def make_keeper(clock, capacity_milli=2000, past=None, **cameras):
    terms = KnownFleetTerms(capacity_milli, "ekya", cameras)
    return StatusKeeper("yard", clock, unix_us, lambda state: terms, past or {})


def step_of(run, at):
    """Returns batch and result of a step of a run."""
    turn = run.turns[at]
    return Batch(turn.now_us, turn.events), StepResult(run.states[at], turn.plan, turn.commands)


def scripted_run(scheduler="ekya", events=EVENTS, **changes):
    """Returns a run of three cameras and four windows, and a keeper that has followed it and a warning."""
    clock = Clock()
    keeper = make_keeper(clock, **{CAM_2: KnownCameraTerms(2.0, True, analysed_url="url_detect")})

    def follow(run):
        clock.now_us = run.turns[-1].now_us
        keeper(*step_of(run, -1))

    run = whole_runs.run(scheduler, misfortunes=events, after_turn=follow, **changes)
    _, last = step_of(run, -1)
    warned = ev.Warned(26 * S, "golden model", "the detector is slow")
    keeper(Batch(clock.now_us, (warned,)), replace(last, plan=None, commands=()))
    return run, keeper


def a_camera(name="cam-1", **changes):
    """Returns a camera that serves."""
    camera = CameraStatus(
        id=name,
        state="serving",
        reason="",
        health="ok",
        health_reason="",
        accuracy=0.875,
        audited=AuditedAccuracy(0.81, 0.76, 0.86, 72, BEGAN_UNIX_S + 200.0, BEGAN_UNIX_S + 3400.0),
        model_version=3,
        every=2,
        resolution=32,
        inference_share_milli=250,
        retraining_share_milli=500,
        retraining=None,
        why="it gains most",
        frames_due=1000,
        frames_analysed=990,
        weight=1.0,
        frozen=False,
        drifts=2,
        labels=340,
        labels_unix_s=BEGAN_UNIX_S + 3000.0,
        retrainings=RetrainingCounts(served=4, kept=1, failed=2),
    )
    return replace(camera, **changes)


def a_status(*cameras, **changes):
    """Returns a service at a moment, an hour after its start."""
    status = ServiceStatus(
        name="yard",
        version="1.0",
        scheduler="ekya",
        started_unix_s=float(BEGAN_UNIX_S),
        now_unix_s=BEGAN_UNIX_S + 3600.0,
        window=17,
        window_opened_us=3400 * S,
        window_ends_us=3600 * S,
        now_us=3599 * S,
        capacity_milli=1200,
        preparing=True,
        cameras=cameras or (a_camera(),),
        warnings=(WarningRow(BEGAN_UNIX_S + 26.0, "golden model", "the detector is slow"),),
        warning_counts=(WarningCount("golden model", 3),),
        steps=StepTimes((5, 4, 3, 2, 1, 0, 0, 0, 0, 1), 21.5),
    )
    return replace(status, **changes)


def host_facts(**changes):
    """Returns what a service takes of its machine."""
    facts = ServiceHostFacts(
        restarts=2,
        memory_bytes=2_000_000_000,
        folder_bytes=5_000_000_000,
        disk_free_bytes=40_000_000_000,
        disk_size_bytes=100_000_000_000,
        sinks=(Sink(),),
        answered_unix_s={"cam-1": BEGAN_UNIX_S + 3598.0, "gone": 0.0},
    )
    return replace(facts, **changes)
