"""Tests of streams that are removed in the middle of something, and of others that get their names."""

import pytest
from fake_actors import FakeActors, labels_ready, swapped
from ray.exceptions import RayActorError, RayError
from test_stream_changes import CAM, INFERENCE, NEW, OTHER, RETRAINING, Run, died, kinds, lost

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.configs import InferenceConfig
from ekya.core.units import BASE_VERSION, JobId, ModelVersion
from ekya.gpu.backends.backend import Resized

PREPARE = cmd.BeginPreparation(1, 500, tuple(cmd.PrepareStream(one, (), ()) for one in (CAM, OTHER)))
ADDED, BACK = ev.StreamAdded, ev.WorkerBack


@pytest.fixture
def run(monkeypatch):
    return Run(FakeActors((CAM, OTHER)).install(monkeypatch))


@pytest.fixture
def shared(monkeypatch):
    """The same with all inference in one process."""
    return Run(FakeActors((CAM, OTHER), shared=True).install(monkeypatch))


def waiting_for_a_share(run):
    """Begins a preparation while an inference holds the share that it is to get; returns its release."""
    for stream, share_milli in ((CAM, 0), (OTHER, 900), (OTHER, 300)):
        run.execute(cmd.SetInference(stream, InferenceConfig(1, 32), share_milli, 2))
        release = run.actors.calls("set_inference")[-1]
        if share_milli != 300:
            release.reply(Resized(share_milli, 5))
            run.events()
    run.execute(PREPARE)
    return release


def handed_in(run):
    """Returns the streams that hand in labels' frames, and those that cannot."""
    asked = [arguments[1] for arguments in run.actors.arguments("hand_in")]
    return asked, [arguments[1] for arguments in run.actors.arguments("hand_in_failed")]


# While a preparation waits for its share, or runs


@pytest.mark.parametrize("again", [False, True])
def test_preparation_begins_without_a_stream_that_is_gone(run, again):
    """Whether another of its name is being added or not."""
    release = waiting_for_a_share(run)
    run.remove(CAM)
    if again:
        run.add(CAM)
    assert run.actors.calls("start_preparation", run.profiler) == []
    release.reply(Resized(300, 5))
    run.events()
    assert len(run.actors.calls("start_preparation", run.profiler)) == 1
    assert handed_in(run) == ([OTHER], [CAM])


def test_preparation_goes_on_without_a_stream_that_is_leaving(run):
    inference, _ = run.workers(CAM)
    run.changes.remove_stream(CAM)
    run.execute(PREPARE)
    run.kill(inference)
    assert handed_in(run) == ([CAM, OTHER], [])
    run.actors.calls("hand_in")[0].fail(RayActorError())
    run.events()
    assert handed_in(run) == ([CAM, OTHER], [CAM])


def test_labels_of_a_stream_that_is_gone_do_no_harm(run):
    run.actors.replies["newest_labels"] = (None,)
    run.remove(CAM)
    run.actors.emit(run.profiler, labels_ready(CAM), labels_ready(OTHER))
    assert (ev.LabelsReady, OTHER) in kinds(run.events())


# While a worker is restarted


def test_stream_is_forgotten_when_its_worker_has_been_restarted_or_not(run):
    inference, retraining = run.workers(CAM)
    run.kill(inference)
    run.execute(cmd.RestartWorker(CAM, INFERENCE))
    again = run.actors.streams[CAM].inference
    run.changes.remove_stream(CAM)
    assert run.actors.killed == [again, retraining]
    assert kinds(run.kill(retraining)) == [(rq.StreamRemoved, CAM)]
    assert run.changes.is_leaving(CAM), "another of its name would get the reply of the restart"
    run.actors.calls("rejoin_stream")[0].fail(RayActorError())
    assert run.kill(again) == []
    assert not run.changes.is_leaving(CAM)
    assert kinds(run.added(CAM)) == [(ADDED, CAM)]


def test_stream_that_joins_a_process_of_others_too_late_leaves_it(shared):
    process, retraining = shared.workers(CAM)
    assert kinds(shared.emit(CAM, died(CAM))) == [(ev.WorkerDied, CAM)]
    shared.execute(cmd.RestartWorker(CAM, INFERENCE))
    shared.changes.remove_stream(CAM)
    shared.kill(retraining)
    shared.reply("remove_stream")
    assert shared.events() == []
    shared.reply("rejoin_stream")  # after it had left
    assert shared.events() == []
    assert shared.actors.arguments("remove_stream", process) == [(CAM,), (CAM,)]
    assert shared.changes.is_leaving(CAM)
    shared.reply("remove_stream")
    shared.events()
    assert not shared.changes.is_leaving(CAM)
    assert process not in shared.actors.killed


def test_worker_that_died_just_before_its_removal_is_not_restarted(run):
    """The loop answers the death, since it learns of both in one batch."""
    inference, retraining = run.workers(CAM)
    assert kinds(run.kill(inference)) == [(ev.WorkerDied, CAM)]
    run.changes.remove_stream(CAM)
    run.execute(cmd.RestartWorker(CAM, INFERENCE))
    assert run.actors.calls("rejoin_stream") == []
    run.kill(retraining)
    assert CAM not in run.actors.streams


@pytest.mark.parametrize(
    "command",
    [
        cmd.RestartWorker(CAM, INFERENCE),
        cmd.RestartWorker(CAM, RETRAINING),
        cmd.ServeModel(CAM, JobId(1), 4),
        cmd.RollBack(CAM, "worse"),
        cmd.StopRetraining(CAM, JobId(1)),
        cmd.SetAside(CAM, "it died too often"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_command_for_a_stream_that_is_gone_does_nothing(run, command):
    """Both its workers had died, so it was forgotten before the loop knew that it was removed."""
    run.kill(*run.workers(CAM))
    run.changes.remove_stream(CAM)
    run.events()
    assert CAM not in run.actors.streams
    run.actors.record.clear()
    run.execute(command)
    assert run.actors.record == []
    assert run.events() == []


# Set aside


def test_stream_that_was_set_aside_is_removed_at_once(run):
    run.execute(cmd.SetAside(CAM, "it died too often"))
    run.kill(*run.workers(CAM))
    run.changes.remove_stream(CAM)
    assert not run.changes.is_leaving(CAM)
    assert kinds(run.events()) == [(rq.StreamRemoved, CAM)]
    assert kinds(run.added(CAM)) == [(ADDED, CAM)]
    assert run.emit(CAM, lost(CAM)) == [lost(CAM)], "its events are not ignored any more"


def test_stream_that_is_being_set_aside_is_removed_when_it_has_left(shared):
    process, retraining = shared.workers(CAM)
    shared.execute(cmd.SetAside(CAM, "it died too often"))
    shared.changes.remove_stream(CAM)
    shared.kill(retraining)
    assert shared.changes.is_leaving(CAM)
    shared.reply("remove_stream")
    shared.events()
    assert not shared.changes.is_leaving(CAM)
    assert process not in shared.actors.killed


def test_late_end_of_a_stream_set_aside_is_not_that_of_another_of_its_name(shared):
    """It leaves its process a second time when it is removed."""
    process, retraining = shared.workers(CAM)
    shared.execute(cmd.SetAside(CAM, "it died too often"))
    shared.kill(retraining)
    shared.reply("remove_stream")
    shared.events()
    shared.changes.remove_stream(CAM)
    shared.events()
    assert shared.changes.is_leaving(CAM)
    shared.reply("remove_stream")
    shared.events()
    shared.added(CAM)
    assert kinds(shared.kill(process)) == [(ev.WorkerDied, CAM), (ev.WorkerDied, OTHER)]


# Added again


def test_stream_added_again_begins_with_the_base_model(run):
    run.actors.streams[CAM].version = ModelVersion(3)
    run.remove(CAM)
    assert kinds(run.added(CAM)) == [(ADDED, CAM)]
    own = run.actors.streams[CAM]
    assert (own.version, own.weights) == (BASE_VERSION, "base")
    run.execute(cmd.ServeModel(CAM, JobId(1), 4))
    assert run.actors.calls("send_checkpoint") == [], "of a job that it has not had"
    assert kinds(run.kill(own.inference)) == [(ev.WorkerDied, CAM)]
    run.execute(cmd.RestartWorker(CAM, INFERENCE))
    run.reply("rejoin_stream")
    assert kinds(run.events()) == [(BACK, CAM)]


def test_hot_swap_of_a_stream_that_is_gone_is_not_of_another_of_its_name(shared):
    retraining = shared.actors.streams[CAM].retraining
    shared.changes.remove_stream(CAM)
    shared.kill(retraining)
    shared.reply("remove_stream")
    shared.events()
    shared.added(CAM)
    assert shared.emit(CAM, swapped(5, CAM), lost(CAM)) == [lost(CAM)]
    assert shared.actors.streams[CAM].weights == "base"


def test_late_hot_swap_of_one_that_is_gone_rejects_no_weights(shared):
    retraining = shared.actors.streams[CAM].retraining
    shared.changes.remove_stream(CAM)
    shared.kill(retraining)
    shared.reply("remove_stream")
    shared.events()
    shared.added(CAM)
    shared.executor._weights.send_checkpoint(CAM, JobId(9), [])
    assert shared.emit(CAM, swapped(5, CAM)) == []
    assert shared.emit(CAM, swapped(1, CAM, job=9)) == [swapped(1, CAM, job=9)]


def test_failed_addition_beside_a_removal_ends_both(run):
    call, told = run.add()
    inference, retraining = run.workers(NEW)
    call.fail(RayError("no such address"))
    run.remove(CAM)
    assert run.kill(inference, retraining) == []
    assert set(run.actors.streams) == {OTHER}
    assert len(told) == 1
