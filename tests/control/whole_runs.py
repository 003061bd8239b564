"""Whole runs of the loop over a scripted fleet, and what is checked of them."""

from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st
from script import CAM_1, CAM_2, CAM_3, OPTIONS, PLANNING_US, Camera, S, three_cameras
from scripted import ScriptedFleet

from ekya.control.journal_replay import replay_journal
from ekya.control.loop import run_loop
from ekya.control.loop_state import LoopState
from ekya.control.options import LoopOptions
from ekya.control.preparation_timing import MOST_REACTIONS
from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.stream_faults import Status
from ekya.core.view import WindowView
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import FileJournal, read_journal


@dataclass
class Run:
    """Record of a run; ``views`` holds the scheduler's last view in each step, or None without a call."""

    scheduler: str
    fleet: ScriptedFleet
    options: LoopOptions
    turns: list[StepRecord] = field(default_factory=list)
    states: list[LoopState] = field(default_factory=list)
    views: list[WindowView | None] = field(default_factory=list)

    def events(self, *kinds):
        return [event for turn in self.turns for event in turn.events if isinstance(event, kinds)]

    def commands(self, *kinds):
        return [command for turn in self.turns for command in turn.commands if isinstance(command, kinds)]


class _Ignored:
    """A journal that is discarded."""

    def record_batch(self, batch):
        pass

    def record_decision(self, now_us, plan, commands):
        pass


def run(
    scheduler: str,
    seed: int = 1,
    *,
    options: LoopOptions = OPTIONS,
    cameras: tuple[Camera, ...] | None = None,
    misfortunes: tuple[ev.Event, ...] = (),
    path: Path | None = None,
    tells_shares: bool = False,
    after_turn=lambda run: None,
    journal=None,
) -> Run:
    """Runs the loop once; ``after_turn`` is called after a step's commands are carried out.

    The journal is ``journal``, which takes snapshots too, or one at ``path``.
    """
    chosen = make_scheduler(scheduler)
    fleet = ScriptedFleet(options, cameras or three_cameras(), seed, misfortunes, tells_shares)
    done = Run(scheduler, fleet, options)
    asked: list[WindowView] = []

    def planner(view):
        asked.append(view)
        fleet.charge(PLANNING_US)
        return chosen.plan(view)

    def observe(batch: Batch, turn: StepResult) -> None:
        assert len(asked) <= 1, "more than one plan in a turn"
        done.turns.append(StepRecord(batch.now_us, batch.events, turn.plan, turn.commands))
        done.states.append(turn.state)
        done.views.append(asked[-1] if asked else None)
        asked.clear()
        after_turn(done)

    if journal is not None:
        run_loop(fleet, journal, planner, chosen.needs, options, observe, snapshot=journal.write_snapshot)
        return done
    journal = FileJournal(path, scheduler, options) if path else _Ignored()
    run_loop(fleet, journal, planner, chosen.needs, options, observe)
    if path:
        journal.close()
    return done


def known_shares_milli(fleet):
    """Returns the sum of all shares in the loop's state."""
    jobs = sum(stream.job.share_milli for stream in fleet.streams if stream.job is not None)
    preparation = fleet.preparation.share_milli if fleet.preparing else 0
    return jobs + preparation + sum(stream.inference_share_milli for stream in fleet.streams)


def check_turn(done):
    """Asserts that the loop's state matches the fleet, and that no share is given out twice."""
    fleet, known = done.fleet, done.states[-1].fleet
    turn, view = done.turns[-1], done.views[-1]
    assert known_shares_milli(known) <= done.options.capacity_milli
    assert (fleet.preparation is not None) == known.preparing
    for stream in known.streams:
        assert stream.reactions <= MOST_REACTIONS
        camera = fleet.cameras[stream.stream]
        assert camera.alive == (stream.status is Status.SERVING)
        assert camera.inference_milli == stream.inference_share_milli
        assert (camera.job is None) == (stream.job is None)
        if camera.job is not None:
            assert camera.job.started.job == stream.job.job
            assert camera.job.share_milli == stream.job.share_milli
            assert camera.job.started.config == stream.job.config
            assert camera.job.accuracies == list(stream.job.accuracies)
    if turn.plan is not None:
        assignments = turn.plan.phases[0].assignments
        given = sum(a.inference_share_milli + a.retrain_share_milli for a in assignments)
        assert given <= view.capacity_milli
        assert [a.stream for a in assignments] == [stream.stream for stream in view.streams]
        assert all(a.reason for a in assignments)


def assert_journal_replays(done, path):
    """Asserts that the journal has the steps of a run, and that they are decided again in the same way."""
    scheduler, options, turns = read_journal(path)
    assert (scheduler, options, turns) == (done.scheduler, done.options, done.turns)
    chosen = make_scheduler(scheduler)
    again = list(replay_journal(turns, options, chosen.needs, chosen.plan))
    assert [one.recorded for one in again] == turns
    assert all(one.same for one in again)
    assert again[-1].state == done.states[-1]


def _drifts(times):
    drifts = (
        ev.DriftDetected(at_us, camera, at_us // OPTIONS.window_us, max(at_us - 2 * S, 0), "told by the test")
        for at_us, camera in sorted(times)
    )
    return tuple(one for one in drifts if one.stream != CAM_3 or one.t_us < 95 * S)  # when it ends


DRIFTS = st.lists(
    st.tuples(st.integers(1, 4 * OPTIONS.window_us - 1), st.sampled_from([CAM_1, CAM_2, CAM_3])), max_size=8
).map(_drifts)
"""Drifts of the scripted cameras at any time."""
