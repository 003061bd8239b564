"""Tests of remote retrainings: reported epoch by epoch, sent to the trainer, served like any other."""

import pytest
import ray
from fake_actors import SETTINGS, FakeActors, events_of, labels_ready, make_executor, start_retraining
from ray.exceptions import GetTimeoutError, RayActorError

from ekya.control.share_ledger import ShareLedger
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.units import JobId, ModelVersion
from ekya.core.weights import Elsewhere, RemoteCheckpoint
from ekya.runtime.driver.remote_retrainings import MaterialToFetch
from ekya.runtime.shares.share_changes import TIMEOUTS

JOB, ONE, CAM = JobId(7), ModelVersion(1), "cam"
START = start_retraining(
    job=JOB, config=RetrainConfig(2, 8, 0, 0, 1.0), share_milli=0, elsewhere=Elsewhere(9)
)
SERVE = cmd.ServeModel(CAM, JOB, 1)


@pytest.fixture
def actors(monkeypatch):
    return FakeActors(replies={"newest_labels": ("labels",)}).install(monkeypatch)


@pytest.fixture
def ledger():
    return ShareLedger((1000,), lambda _holder: 0, TIMEOUTS, 1)


@pytest.fixture
def executor(actors, ledger):
    """Executor whose stream has labels."""
    made = make_executor(actors, ledger=ledger)
    actors.emit(actors.preparation, labels_ready())
    events_of(made, actors)
    return made


def bring(executor, *accuracies, over=False):
    """Reports as many epochs as accuracies; the weights of the best are made only on request."""
    best = max(range(len(accuracies)), key=lambda place: (accuracies[place], place))
    made = RemoteCheckpoint(f"weights {best + 1}".encode(), accuracies[best], best + 1)
    executor.remote.report_progress(START, accuracies, lambda: made, over)


def received(actors):
    to_trainer = [
        arguments for arguments in actors.arguments("receive_remote_checkpoint") if arguments[1] == START
    ]
    return [(weights, accuracy) for _, _, weights, accuracy, _ in to_trainer]


def test_each_epoch_is_reported_once_and_the_end_with_the_last(executor, actors):
    bring(executor, 0.7)
    assert events_of(executor, actors) == (ev.RetrainProgress(0, CAM, JOB, 1, 0.7, 0.0),)
    bring(executor, 0.7, 0.8)
    second, finished = events_of(executor, actors)
    assert (second.epoch, type(finished)) == (2, ev.RetrainFinished)
    bring(executor, 0.7, 0.8, over=True)
    assert events_of(executor, actors) == ()


def test_weights_are_received_without_a_share_when_they_are_to_serve(executor, actors, ledger):
    bring(executor, 0.7)
    assert actors.calls("receive_remote_checkpoint") == []
    executor.execute_commands([SERVE])
    (receive,), (send,) = actors.calls("receive_remote_checkpoint"), actors.calls("send_checkpoint")
    (labels,) = actors.calls("newest_labels")
    assert receive.arguments == (CAM, START, b"weights 1", 0.7, *labels.references)
    # Ray calls ``send`` once its last argument is available.
    assert send.arguments == (CAM, JOB, ONE, *receive.references)
    assert (ledger.holders, ledger.free_milli(0)) == ((), 1000)


def test_only_better_weights_are_received_again(executor, actors):
    bring(executor, 0.7)
    executor.execute_commands([SERVE])
    bring(executor, 0.7, 0.6, over=True)
    assert received(actors) == [(b"weights 1", 0.7)]
    bring(executor, 0.7, 0.8, over=True)
    assert received(actors) == [(b"weights 1", 0.7), (b"weights 2", 0.8)]


def test_stopped_retraining_leaves_its_weights_to_the_trainer(executor, actors):
    bring(executor, 0.7)
    executor.execute_commands([SERVE, cmd.StopRetraining(CAM, JOB)])
    assert received(actors) == [(b"weights 1", 0.7)]
    executor.execute_commands([cmd.StopRetraining(CAM, JobId(8))])
    bring(executor, 0.7)
    executor.execute_commands([cmd.KeepServing(CAM, JOB, 1, "it is worse"), cmd.StopRetraining(CAM, JOB)])
    assert len(received(actors)) == 1


def test_inputs_of_a_remote_retraining_are_references(executor, actors):
    material = executor.remote.inputs_for_retraining(CAM)
    (memory,), (labels,) = actors.calls("exemplar_memory"), actors.calls("newest_labels")
    memory.reply("exemplars")
    assert (material.weights, material.settings) == ("base", SETTINGS)
    assert (material.labels, material.memory) == (*labels.references, *memory.references)
    fetched = material.fetch(5.0)
    assert (fetched.weights, fetched.labels, fetched.memory) == ("base", "labels", "exemplars")


def test_inputs_that_are_lost_late_or_missing_are_an_error(monkeypatch):
    material = MaterialToFetch("weights", "labels", "memory", "settings")

    def fails_with(error):
        def fail(_asked, timeout):
            raise error

        monkeypatch.setattr(ray, "get", fail)

    fails_with(GetTimeoutError())
    with pytest.raises(TimeoutError, match="within 2 s"):
        material.fetch(2.0)
    fails_with(RayActorError())
    with pytest.raises(LookupError, match="lost"):
        material.fetch(2.0)
    with pytest.raises(LookupError, match="no labels"):
        MaterialToFetch("weights", None, "memory", "settings").fetch(2.0)
