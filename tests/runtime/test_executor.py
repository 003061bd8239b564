"""Tests of the live executor's calls of actors and its events, with fake actors that a test lets reply."""

import threading
from dataclasses import replace
from functools import partial

import pytest
import ray
from fake_actors import (
    SETTINGS,
    FakeActors,
    events_of,
    make_executor,
    start_retraining,
    swapped,
)
from ray.exceptions import RayActorError

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.profile import FamilyCurve
from ekya.core.units import BASE_VERSION, JobId, ModelVersion
from ekya.core.weights import Elsewhere, LabelBudget
from ekya.runtime.driver.executor import StoppedEarlyError

CAM, S = "cam", 1_000_000
GAMMA = RetrainConfig(4, 16, 0, 0, 1.0)
CURVE = FamilyCurve(16, 0, 0, 64, (0.4, 0.5), 1.0, 0.5)
LOST = ev.StreamLost(0, CAM, "no frames")


def serve(epoch=4):
    return cmd.ServeModel(CAM, JobId(1), epoch)


def prepare(window):
    return cmd.BeginPreparation(window, 500, (cmd.PrepareStream(CAM, (), ()),))


@pytest.fixture
def own(actors):
    return actors.streams[CAM]


@pytest.fixture
def executor_of(actors):
    return partial(make_executor, actors)


@pytest.fixture
def executor(executor_of):
    made = executor_of()
    made.execute_commands([start_retraining()])
    return made


def test_wait_returns_events_at_once_and_otherwise_at_its_limit(executor_of, actors, own):
    executor = executor_of(LOST)
    assert executor.wait(10 * S).events == (LOST,)
    assert actors.clock.now == 0
    batch = executor.wait(10 * S)
    assert (batch.now_us, batch.events) == (10 * S, ())
    actors.emit(own.inference, LOST)
    assert executor.wait(20 * S).events == (LOST,)
    assert actors.clock.now == 10 * S


def test_wait_after_stop_ends_within_a_second(executor_of, actors, monkeypatch):
    stop = threading.Event()
    executor = executor_of(stop=stop)
    wait, waits = actors.wait, []

    def stop_later(*arguments, **named):
        waits.append(arguments)
        if len(waits) == 5:
            stop.set()
        return wait(*arguments, **named)

    monkeypatch.setattr(ray, "wait", stop_later)
    with pytest.raises(StoppedEarlyError):
        executor.wait(100 * S)
    assert (len(waits), actors.clock.now < 2 * S) == (5, True)
    with pytest.raises(StoppedEarlyError):
        executor.wait(0)
    assert len(waits) == 5


def test_events_wait_while_the_loop_may_not_go_on(executor_of, actors, own):
    looks = iter([False] * 8)
    executor = executor_of(LOST, may_go_on=lambda: next(looks, True))
    batch = executor.wait(1 * S)
    assert batch.events == (LOST,)
    assert batch.now_us == 2 * S, "eight looks, four a second, although its limit has passed"


def test_run_is_stopped_while_the_loop_may_not_go_on(executor_of):
    stop = threading.Event()

    def stop_and_hold():
        stop.set()
        return False

    executor = executor_of(LOST, stop=stop, may_go_on=stop_and_hold)
    with pytest.raises(StoppedEarlyError):
        executor.wait(1 * S)


def test_late_stream_is_added_at_its_time(executor_of):
    late = ev.StreamAdded(5 * S, "other", ())
    executor = executor_of(late)
    batch = executor.wait(10 * S)
    assert (batch.now_us, batch.events) == (5 * S, (late,))


def test_warning_gets_its_time_even_from_a_stream_set_aside(executor, actors, own):
    actors.clock.now = 7 * S
    executor.execute_commands([cmd.SetAside(CAM, "so")])
    actors.emit(own.inference, ev.Warned(0, "inference/cam", "memory is short"), LOST)
    (warned,) = events_of(executor, actors)
    assert warned == ev.Warned(7 * S, "inference/cam", "memory is short")


def test_remote_retraining_without_a_coordinator_fails(executor_of, actors):
    executor = executor_of()
    executor.execute_commands([start_retraining(job=7, elsewhere=Elsewhere(9))])
    (failed,) = events_of(executor, actors)
    assert (type(failed), failed.job) == (ev.RetrainFailed, 7)
    assert actors.calls("start_retraining") == []


# Preparation


def test_failed_hand_in_is_reported_to_the_preparation(executor, actors, caplog):
    executor.execute_commands([prepare(1)])
    (call,) = actors.calls("hand_in")
    window, stream, *_, weights, _ = call.arguments
    assert (window, stream, weights.args) == (1, CAM, ("base",))
    call.fail(RayActorError())
    assert events_of(executor, actors) == ()
    assert actors.arguments("hand_in_failed") == [(1, CAM)]
    assert "cam: window 1 has none of its labels" in caplog.text


def test_preparation_inside_a_window_hands_in_frames_since_a_time(executor, actors):
    executor.execute_commands([prepare(1)])
    events_of(executor, actors)
    executor.execute_commands([cmd.EndPreparation(1)])
    asked = cmd.PrepareStream(CAM, (), (), since_us=7 * S)
    executor.execute_commands([cmd.BeginPreparation(1, 500, (asked,), round=1)])
    events_of(executor, actors)
    assert actors.arguments("window_material") == [(CAM, 1, None), (CAM, 1, 7 * S)]
    first, second = actors.calls("hand_in")
    assert (first.named["round"], second.named["round"]) == (0, 1)
    executor.execute_commands([cmd.EndPreparation(1, 1)])
    assert [(call.arguments, call.named) for call in actors.calls("end_preparation")] == [
        ((1,), {"round": 0}),
        ((1,), {"round": 1}),
    ]


def test_every_stream_hands_in_its_audit_with_a_windows_own_preparation(monkeypatch):
    """Whether it is prepared or not, since streams are not prepared by chance."""
    actors = FakeActors((CAM, "spared", "gone"), audits=True).install(monkeypatch)
    executor = make_executor(actors)
    executor.execute_commands([cmd.SetAside("gone", "so"), prepare(1)])
    events_of(executor, actors)
    assert actors.arguments("drain_audit_frames") == [(CAM,), ("spared",)]
    assert [arguments[0] for arguments in actors.arguments("hand_in_audit")] == [CAM, "spared"]
    executor.execute_commands([cmd.EndPreparation(1)])
    asked = cmd.PrepareStream(CAM, (), (), since_us=7 * S)
    executor.execute_commands([cmd.BeginPreparation(1, 500, (asked,), round=1)])
    events_of(executor, actors)
    assert len(actors.calls("window_material")) == 2
    assert len(actors.calls("drain_audit_frames")) == 2


def test_labels_and_audits_are_made_under_the_budget_of_the_preparation(monkeypatch):
    actors = FakeActors((CAM,), audits=True).install(monkeypatch)
    executor = make_executor(actors)
    executor.execute_commands(
        [replace(prepare(1), budget=LabelBudget(40, 1.5)), cmd.EndPreparation(1), prepare(2)]
    )
    events_of(executor, actors)
    for method, place in (("hand_in", 2), ("hand_in_audit", 1)):
        under, usual = (arguments[place] for arguments in actors.arguments(method))
        assert (under.labels_per_window, under.label_gpu_s) == (40, 1.5)
        assert usual == SETTINGS


def test_run_takes_no_frames_for_audits(executor, actors):
    executor.execute_commands([prepare(1)])
    events_of(executor, actors)
    assert len(actors.calls("hand_in")) == 1
    assert actors.calls("drain_audit_frames") == actors.calls("hand_in_audit") == []


def test_failed_hand_in_to_a_dead_micro_profiler_is_dropped(executor, actors):
    executor.execute_commands([prepare(1)])
    actors.kill(actors.preparation)
    events_of(executor, actors)
    actors.calls("hand_in")[0].fail(RayActorError())
    events_of(executor, actors)
    assert actors.calls("hand_in_failed") == []


def test_window_is_not_prepared_until_the_micro_profiler_is_back(executor, actors, caplog):
    actors.kill(actors.preparation)
    assert events_of(executor, actors) == (ev.ProfilerDown(0),)
    executor.execute_commands([prepare(1)])
    assert actors.calls("start_preparation") == []
    assert [type(event) for event in events_of(executor, actors)] == [ev.PreparationEnded]
    assert "window 1 has no labels until the micro-profiler is back" in caplog.text
    actors.calls("start_run")[0].reply()
    assert events_of(executor, actors) == ()
    actors.calls("load_model", actors.preparation)[0].reply()
    assert [type(event) for event in events_of(executor, actors)] == [ev.ProfilerBack]
    executor.execute_commands([prepare(1)])
    assert len(actors.calls("start_preparation")) == 1


def test_micro_profiler_tells_when_it_has_loaded_at_first(executor, actors):
    executor.load_profiler()
    assert events_of(executor, actors) == (ev.ProfilerDown(0),)
    actors.calls("confirm_ready", actors.preparation)[0].reply()
    assert events_of(executor, actors) == ()
    actors.calls("load_model", actors.preparation)[0].reply()
    (back,) = events_of(executor, actors)
    assert type(back) is ev.ProfilerBack


def test_death_of_the_micro_profiler_ends_the_preparation(executor, actors):
    executor.execute_commands([prepare(1)])
    actors.kill(actors.preparation)
    assert events_of(executor, actors) == (ev.ProfilerDown(0), ev.PreparationEnded(0, 1))


# Weights that serve


def earlier_versions(actors):
    return [arguments[6] for arguments in actors.arguments("hand_in")]


def test_only_weights_since_the_last_labels_are_compared(executor, actors):
    executor.execute_commands([prepare(1), prepare(2), serve(), prepare(3), prepare(4)])
    assert earlier_versions(actors) == [None, None, BASE_VERSION, None]


def test_last_weights_of_a_window_are_compared_with_those_before_it(executor, actors):
    executor.execute_commands([prepare(1), serve(2), serve(3), serve(4), prepare(2)])
    assert earlier_versions(actors) == [None, BASE_VERSION]


def test_roll_back_serves_earlier_weights_from_the_object_store(executor, actors, own):
    executor.execute_commands([prepare(1), serve(), prepare(2)])
    newer = own.newest_weights
    executor.execute_commands([cmd.RollBack(CAM, "worse")])
    assert actors.arguments("roll_back") == [(CAM, "base", ModelVersion(2), BASE_VERSION)]
    assert (own.version, own.newest_weights) == (2, "base")
    known = [arguments[2:] for arguments in actors.arguments("load_model")]
    assert known == [(1, newer), (2, "base")]
    executor.execute_commands([start_retraining(job=2)])
    assert actors.arguments("start_retraining")[-1][2] == "base", "what serves is what is retrained"


def test_roll_back_twice_or_after_other_labels_does_nothing(executor, actors):
    executor.execute_commands([cmd.RollBack(CAM, "nothing was compared"), prepare(1), serve(), prepare(2)])
    executor.execute_commands([cmd.RollBack(CAM, "worse"), cmd.RollBack(CAM, "once more"), prepare(3)])
    executor.execute_commands([cmd.RollBack(CAM, "late")])
    assert len(actors.calls("roll_back")) == 1
    assert earlier_versions(actors) == [None, BASE_VERSION, None]


def test_weights_that_never_served_are_not_rolled_back_to(executor, actors, own):
    """No file of theirs is recorded: a resumed run could not serve them."""
    executor.execute_commands([prepare(1), serve(), prepare(2), serve(5)])
    actors.emit(own.inference, swapped(2))
    events_of(executor, actors)
    executor.execute_commands([prepare(3), cmd.RollBack(CAM, "worse")])
    assert earlier_versions(actors) == [None, BASE_VERSION, None]
    assert actors.calls("roll_back") == []


def test_hot_swap_goes_through_the_object_store(executor, actors):
    executor.execute_commands([serve()])
    (send,), (receive,) = actors.calls("send_checkpoint"), actors.calls("receive_checkpoint")
    assert send.arguments == (CAM, JobId(1), ModelVersion(1))
    assert receive.arguments == (CAM, *send.references, ModelVersion(1), JobId(1))


def test_hot_swaps_are_reported_in_order_and_the_last_one_serves(executor_of, actors, own):
    """Otherwise a worker that dies would be restarted with older weights."""
    executor = executor_of()
    executor.execute_commands([start_retraining(), serve(), prepare(2)])
    actors.emit(own.inference, swapped(1))
    assert events_of(executor, actors) == (swapped(1),)
    executor.execute_commands([serve(5), prepare(3), cmd.RollBack(CAM, "worse")])
    rolled_back = ev.RolledBack(0, CAM, ModelVersion(3), ModelVersion(1), 5)
    actors.emit(own.inference, swapped(2), rolled_back)
    assert events_of(executor, actors) == (swapped(2), rolled_back)
    assert own.weights is actors.calls("send_checkpoint")[0].references[0]
