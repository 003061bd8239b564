"""The loop: the events that it makes itself, and laws of whole runs under every scheduler."""

from dataclasses import replace

import pytest
from byhand import FAULTS, LAMBDAS, A, B
from byhand import OPTIONS as BY_HAND
from hypothesis import given, settings
from hypothesis import strategies as st
from script import CAM_1, CAM_2, CAM_3, MISFORTUNES, OPTIONS, PLANNING_US, TRIALS, S, three_cameras
from scripted import ScriptedFleet
from whole_runs import DRIFTS, check_turn, run

from ekya.control.loop import closes_run, run_loop
from ekya.control.protocols import Batch
from ekya.control.step import loop_events_due, next_due_us
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.state import FleetState, RunningPreparation, StreamState
from ekya.core.stream_faults import OVER, Status
from ekya.core.units import StreamId
from ekya.planning.schedulers.registry import SCHEDULERS, make_scheduler
from ekya.planning.schedulers.scheduler import Needs

every_scheduler = pytest.mark.parametrize("name", sorted(SCHEDULERS))
either_luck = pytest.mark.parametrize("misfortunes", [(), MISFORTUNES], ids=["fair", "foul"])


@every_scheduler
@either_luck
def test_loop_state_agrees_with_fleet_after_each_step(name, misfortunes):
    done = run(name, misfortunes=misfortunes, after_turn=check_turn)
    needs = make_scheduler(name).needs
    trained_here = needs.labels and not needs.kept_models
    assert len(done.turns) > (50 if trained_here else 3)


@every_scheduler
@either_luck
@settings(max_examples=5)
@given(drifts=DRIFTS, pools=st.booleans())
def test_loop_state_agrees_with_drifts(name, misfortunes, drifts, pools):
    options = replace(OPTIONS, reacts_to_drift=True, pools_labels=pools)
    run(name, options=options, misfortunes=(*misfortunes, *drifts), after_turn=check_turn)


OVERLAPPING = (
    ev.StreamLost(40 * S, CAM_1, "no signal"),
    ev.WorkerDied(41 * S, CAM_1, ev.Role.INFERENCE, "killed"),
    ev.StreamBack(43 * S, CAM_1),
    ev.WorkerDied(44 * S, CAM_2, ev.Role.INFERENCE, "killed"),
    ev.WorkerDied(44 * S + 100_000, CAM_2, ev.Role.RETRAINING, "killed"),
    ev.StreamEnded(45 * S, CAM_3),
    ev.WorkerDied(46 * S, CAM_3, ev.Role.INFERENCE, "killed"),
    ev.StreamLost(70 * S, CAM_1, "no signal"),
    ev.WorkerDied(71 * S, CAM_1, ev.Role.RETRAINING, "killed"),
    ev.StreamBack(80 * S, CAM_1),
)
"""One failure in the middle of another."""


@every_scheduler
def test_loop_state_agrees_under_overlapping_failures(name):
    done = run(name, misfortunes=OVERLAPPING, after_turn=check_turn)
    restarted = [(command.stream, command.role) for command in done.commands(cmd.RestartWorker)]
    assert (CAM_3, ev.Role.INFERENCE) not in restarted
    assert done.states[-1].fleet.stream(CAM_1).status is Status.SERVING


class Watched:
    """An executor, a journal and an observer that record the order of their calls."""

    def __init__(self):
        self.order = []
        self._fleet = ScriptedFleet(OPTIONS, three_cameras(), 1, ())

    def wait(self, until_us):
        self.order.append("wait")
        return self._fleet.wait(until_us)

    def execute_commands(self, commands):
        self.order.append("execute")
        self._fleet.execute_commands(commands)

    def record_batch(self, batch):
        self.order.append("events written")

    def record_decision(self, now_us, plan, commands):
        self.order.append("commands written")

    def plan(self, view):
        self.order.append("plan")
        return make_scheduler("no-retrain").plan(view)

    def observe(self, batch, turn):
        self.order.append("observe")


def test_journal_is_written_before_execution():
    watched = Watched()
    needs = Needs(labels=False, inference_profile=False, micro_profile=False)
    run_loop(watched, watched, watched.plan, needs, OPTIONS, watched.observe)
    turn = ["wait", "events written", "plan", "commands written", "execute", "observe"]
    last = [step for step in turn if step != "plan"]
    assert watched.order == 4 * turn + last


@every_scheduler
@either_luck
def test_windows_are_consecutive_and_planned(name, misfortunes):
    done = run(name, misfortunes=misfortunes)
    opened = done.events(ev.WindowOpened)
    assert [(event.index, event.t_us) for event in opened] == [(k, k * OPTIONS.window_us) for k in range(4)]
    assert [event.t_us for event in done.events(ev.WindowClosed)] == [event.end_us for event in opened]
    for turn in done.turns:
        if any(isinstance(event, ev.WindowOpened) for event in turn.events):
            assert turn.plan is not None
    assert done.turns[-1].events == (ev.WindowClosed(4 * OPTIONS.window_us, 3),)
    times = [turn.now_us for turn in done.turns]
    assert times == sorted(times)


@every_scheduler
@either_luck
def test_plan_repeated_at_same_moment_is_empty(name, misfortunes):
    """Each step carries out its own plan, for every stream that serves."""

    def reached(done):
        if done.turns[-1].plan is None:
            return
        for wanted in done.turns[-1].plan.phases[0].assignments:
            stream = done.states[-1].fleet.stream(wanted.stream)
            assert stream.inference == wanted.inference
            assert stream.inference_share_milli == wanted.inference_share_milli
            assert (stream.job.share_milli if stream.job else 0) == wanted.retrain_share_milli
            assert (stream.job.config if stream.job else None) == wanted.retrain

    run(name, misfortunes=misfortunes, after_turn=reached)


@pytest.mark.parametrize("name", ["thief", "uniform"])
@either_luck
def test_preparation_begins_with_window_and_ends_in_time(name, misfortunes):
    done = run(name, options=TRIALS, misfortunes=misfortunes)
    assert [command.window for command in done.commands(cmd.BeginPreparation)] == [1, 2, 3]
    assert [command.window for command in done.commands(cmd.EndPreparation)] == [1, 2, 3]
    for event in done.events(ev.PreparationEnded):
        began_us = event.window * OPTIONS.window_us
        assert began_us < event.t_us <= began_us + OPTIONS.preparation_us + PLANNING_US
    families = [len(asked.families) for c in done.commands(cmd.BeginPreparation) for asked in c.streams]
    assert max(families) == (2 if name == "thief" else 0)


def test_preparation_cut_off_keeps_finished_parts():
    """The scripted families need more time than there is: the window goes on without some profiles."""
    done = run("thief", options=TRIALS)
    assert 0 < len(done.events(ev.ProfileReady)) < 2 * 9
    deadlines = [k * OPTIONS.window_us + OPTIONS.preparation_us for k in (1, 2, 3)]
    ended = [event.t_us for event in done.events(ev.PreparationEnded)]
    assert ended[0] == deadlines[0]
    assert all(at_us <= deadline for at_us, deadline in zip(ended, deadlines, strict=True))
    profiled = {(e.stream, e.window, e.curve.family) for e in done.events(ev.ProfileReady)}
    for start in done.commands(cmd.StartRetraining):
        assert any((start.stream, start.window) == known[:2] for known in profiled)


def test_preparation_done_early_ends_early():
    done = run("thief", options=replace(TRIALS, preparation_us=15 * S))
    families = [asked.families for c in done.commands(cmd.BeginPreparation) for asked in c.streams]
    assert len(done.events(ev.ProfileReady)) == sum(len(of) for of in families)
    assert all(len(of) == 2 for of in families[:3]), "later ones may be pruned"
    for event in done.events(ev.PreparationEnded):
        assert event.t_us < event.window * OPTIONS.window_us + 10 * S


def test_no_retrain_profiles_inference_alone():
    done = run("no-retrain", misfortunes=MISFORTUNES)
    assert {type(command) for turn in done.turns for command in turn.commands} == {
        cmd.BeginPreparation,
        cmd.EndPreparation,
        cmd.SetInference,
        cmd.RestartWorker,
    }
    for command in done.commands(cmd.BeginPreparation):
        assert all(asked.inference and not asked.labels and not asked.families for asked in command.streams)
    assert not done.events(ev.LabelsReady)
    assert done.events(ev.InferenceProfiled)


def test_cloud_serves_models_also_those_that_come_late():
    """A model takes 23 s down the link: one arrives in each window of 30 s, the others later."""
    done = run("cloud", after_turn=check_turn)
    assert not done.commands(cmd.StopRetraining)
    arrived_us = [event.t_us for event in done.events(ev.RetrainFinished)]
    assert arrived_us == pytest.approx([55.1 * S, 77.84 * S, 100.6 * S], abs=0.2 * S)
    assert [event.stream for event in done.events(ev.ModelSwapped)] == [CAM_1, CAM_2, CAM_3]
    assert not done.events(ev.LabelsReady)


@pytest.mark.parametrize("name", ["thief", "uniform"])
def test_retraining_never_lowers_served_accuracy(name):
    for seed in (1, 2):
        done = run(name, seed)
        assert done.events(ev.RetrainFinished)
        serving: dict[StreamId, float] = {}
        for turn in done.turns:
            for event in ev.in_order(turn.events):
                if isinstance(event, ev.LabelsReady):
                    serving[event.stream] = event.serving_accuracy
                if isinstance(event, ev.ModelSwapped):
                    assert event.validation_accuracy >= serving[event.stream]
                    serving[event.stream] = event.validation_accuracy


@pytest.mark.parametrize("name", ["thief", "uniform"])
def test_retrainings_end_once_and_late_ones_stop(name):
    late = tuple(replace(camera, slowness=5.0) for camera in three_cameras())
    done = run(name, cameras=late, after_turn=check_turn)
    started = [command.job for command in done.commands(cmd.StartRetraining)]
    finished = {event.job for event in done.events(ev.RetrainFinished)}
    stopped = {command.job for command in done.commands(cmd.StopRetraining)}
    assert started == sorted(set(started))
    assert stopped
    assert finished | stopped == set(started)
    assert not finished & stopped
    for turn in done.turns:
        if any(isinstance(command, cmd.StopRetraining) for command in turn.commands):
            assert any(isinstance(event, ev.WindowClosed) for event in turn.events)


def test_three_deaths_set_stream_aside_others_continue():
    deaths = tuple(ev.WorkerDied(at * S, CAM_1, ev.Role.INFERENCE, "killed") for at in (8, 35, 37))
    done = run("thief", misfortunes=deaths, after_turn=check_turn)
    assert [command.stream for command in done.commands(cmd.SetAside)] == [CAM_1]
    assert done.states[-1].fleet.stream(CAM_1).status is Status.SET_ASIDE
    assert len(done.commands(cmd.RestartWorker)) == 2
    later = [turn for turn in done.turns if turn.now_us > 38 * S]
    asked = [
        command for turn in later for command in turn.commands if not isinstance(command, cmd.EndPreparation)
    ]
    assert asked
    assert all(getattr(command, "stream", None) != CAM_1 for command in asked)
    assert {e.stream for turn in later for e in turn.events if isinstance(e, ev.RetrainFinished)} == {
        CAM_2,
        CAM_3,
    }
    freed = max(view.capacity_milli for view in done.views if view is not None and len(view.streams) == 2)
    assert freed == OPTIONS.capacity_milli


def test_run_without_window_limit_ends_with_streams():
    ends = tuple(ev.StreamEnded(at * S, stream) for at, stream in ((20, CAM_1), (40, CAM_2), (61, CAM_3)))
    done = run("thief", options=replace(OPTIONS, windows=None), misfortunes=ends)
    assert done.turns[-1].events == (ev.WindowClosed(3 * OPTIONS.window_us, 2),)


def test_changed_estimate_replans_mid_retraining():
    done = run("thief", options=TRIALS)
    for turn in done.turns:
        if turn.plan is not None and {type(event) for event in turn.events} == {ev.RetrainProgress}:
            return
    raise AssertionError("no plan came of progress alone")


@every_scheduler
def test_same_seed_repeats_and_other_seed_differs(name):
    first, again = run(name, 1), run(name, 1)
    assert first.turns == again.turns
    if name not in ("no-retrain", "reuse"):
        assert first.turns != run(name, 2).turns


def test_labels_reach_scheduler_unchanged():
    done = run("thief")
    for turn, view in zip(done.turns, done.views, strict=True):
        for event in turn.events:
            if isinstance(event, ev.PreparationEnded):
                labels = [one for one in done.events(ev.LabelsReady) if one.window == event.window]
                assert {stream.stream: stream.accuracy for stream in view.streams} == {
                    one.stream: one.serving_accuracy for one in labels
                }


# Events of the loop itself


def window(index, preparing=False, statuses=(Status.SERVING, Status.SERVING)):
    streams = tuple(
        StreamState(name, LAMBDAS, faults=FAULTS[s]) for name, s in zip((A, B), statuses, strict=True)
    )
    opened_us = index * 100 * S
    preparation = RunningPreparation(opened_us, BY_HAND.preparation_share_milli) if preparing else None
    return FleetState(streams, index, opened_us, opened_us + 100 * S, preparation)


def test_due_before_first_window_opens_it():
    assert loop_events_due(FleetState(), 0, BY_HAND) == (ev.WindowOpened(0, 0, 100 * S),)


def test_due_inside_window_is_empty():
    assert loop_events_due(window(1), 200 * S - 1, BY_HAND) == ()
    assert next_due_us(window(1), BY_HAND) == 200 * S


def test_due_opens_windows_without_gap():
    expected = (ev.WindowClosed(200 * S, 1), ev.WindowOpened(200 * S, 2, 300 * S))
    assert loop_events_due(window(1), 200 * S, BY_HAND) == expected
    assert loop_events_due(window(1), 207 * S, BY_HAND) == expected


def test_due_after_last_window_only_closes():
    closed = loop_events_due(window(2), 300 * S, BY_HAND)
    assert closed == (ev.WindowClosed(300 * S, 2),)
    assert closes_run(Batch(300 * S, closed))
    assert not closes_run(Batch(200 * S, loop_events_due(window(1), 200 * S, BY_HAND)))
    assert not closes_run(Batch(200 * S, ()))


@pytest.mark.parametrize("gone", OVER)
def test_due_without_streams_ends_run(gone):
    endless = replace(BY_HAND, windows=None)
    assert loop_events_due(window(7, statuses=(gone, gone)), 800 * S, endless) == (
        ev.WindowClosed(800 * S, 7),
    )
    for status in (Status.SERVING, Status.RESTARTING, Status.LOST):
        assert len(loop_events_due(window(7, statuses=(gone, status)), 800 * S, endless)) == 2


@pytest.mark.parametrize("gone", OVER)
def test_due_without_streams_waits_for_joiners(gone):
    waits = replace(BY_HAND, windows=None, last_join_us=850 * S)
    assert len(loop_events_due(window(7, statuses=(gone, gone)), 800 * S, waits)) == 2
    assert loop_events_due(window(8, statuses=(gone, gone)), 900 * S, waits) == (ev.WindowClosed(900 * S, 8),)


def test_due_ends_preparation_at_its_limit():
    preparing = window(1, preparing=True)
    assert next_due_us(preparing, BY_HAND) == 115 * S
    assert loop_events_due(preparing, 115 * S - 1, BY_HAND) == ()
    assert loop_events_due(preparing, 115 * S, BY_HAND) == (ev.PreparationEnded(115 * S, 1),)
    assert loop_events_due(preparing, 116 * S, BY_HAND) == (ev.PreparationEnded(116 * S, 1),)


def test_due_preparation_limit_is_cut_by_window():
    assert next_due_us(window(1, preparing=True), replace(BY_HAND, preparation_us=500 * S)) == 200 * S
