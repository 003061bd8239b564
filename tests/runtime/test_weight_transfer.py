"""Tests of weights on their way to inference, and of models that are kept, with fake actors."""

import threading

import pytest
import ray
from fake_actors import FakeActors, events_of, make_executor, start_retraining
from ray.exceptions import RayActorError, RayTaskError
from waiting import HANG_GUARD_S

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.units import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.core.weights import KeptModel, Scene
from ekya.pipeline.zoo_folder import ZooFolder, ZooIndex, ZooKind
from ekya.runtime.driver.actor_processes import RemoteCalls
from ekya.runtime.weights.weight_transfer import WeightTransfer, ZooKeeper

CAM, JOB = StreamId("cam"), JobId(1)


def swapped(version):
    return ev.ModelSwapped(0, CAM, ModelVersion(version), JOB, 0.9, 5)


@pytest.fixture
def own(actors):
    return actors.streams[CAM]


@pytest.fixture
def calls():
    return RemoteCalls()


@pytest.fixture
def transfer(actors, calls):
    return WeightTransfer(actors.streams, calls)


def test_pending_weights_are_the_newest_but_not_served(transfer, actors, own):
    transfer.send_checkpoint(CAM, JOB, [])
    (send,) = actors.calls("send_checkpoint")
    assert (own.version, own.newest_weights, own.weights) == (1, send.references[0], "base")
    assert transfer.note_swap(swapped(1))
    assert own.weights is send.references[0]


def test_pending_weights_are_rejected_by_a_newer_hot_swap(transfer, actors, own, calls):
    """Inference has skipped version 1, whose trainer died."""
    transfer.send_checkpoint(CAM, JOB, [])
    transfer.send_checkpoint(CAM, JOB, [])
    first, second = actors.calls("send_checkpoint")
    first.fail(RayActorError())
    second.reply()
    calls.wait_replies(1.0)
    assert transfer.note_swap(swapped(2))
    assert own.weights is second.references[0]
    assert not transfer.note_swap(swapped(1))
    assert own.weights is second.references[0]


@pytest.mark.parametrize("newer", [False, True])
def test_weights_that_could_not_be_sent_are_not_the_newest(transfer, actors, own, calls, newer):
    """Otherwise every retraining would begin from them, and fail."""
    transfer.send_checkpoint(CAM, JOB, [])
    (received,) = actors.calls("receive_checkpoint")
    if newer:
        transfer.send_checkpoint(CAM, JobId(2), [])
    received.fail(RayTaskError("send", "a trace", LookupError("there is no such job")))
    calls.wait_replies(1.0)
    assert own.newest_weights == (actors.calls("send_checkpoint")[1].references[0] if newer else "base")


def test_roll_back_without_evaluated_weights_sends_nothing(transfer, actors):
    transfer.record_evaluation(CAM)
    assert not transfer.roll_back(CAM)
    assert actors.record == []


def test_activations_that_arrive_after_their_window_are_ignored(transfer, actors, calls):
    transfer.record_evaluation(CAM)
    transfer.begin_window()
    activations, arrived = actors.preparation.forward_passes.options(num_returns=2).remote(1, CAM)
    transfer.expect_activations(CAM, activations, arrived)
    transfer.begin_window()
    actors.calls("forward_passes")[0].reply()
    calls.wait_replies(1.0)
    assert transfer.activations(CAM) is None


# Kept models


KIND = ZooKind("resnet18", ("car",), 32)


def model(number, version=1):
    return KeptModel(number, CAM, ModelVersion(version), 9, 0.8, Scene((1, 2)))


@pytest.fixture
def keeper(folder):
    """Keeper of an empty zoo."""
    folder.zoo.mkdir()
    made = ZooKeeper(ZooFolder(folder.zoo, ZooIndex(1, KIND, ()), (folder.zoo / "lock").open("ab")), folder)
    yield made
    made.close()


def settled(keeper):
    """Waits until the keeper has written everything."""
    keeper._writer.submit(lambda: None).result(HANG_GUARD_S)


def test_weights_are_kept_once_their_trainer_has_written_them(keeper, folder):
    keeper.keep_model(cmd.KeepModel(CAM, model(3), ()))
    assert keeper.lend_models((3,)) == ()
    path = folder.model(CAM, ModelVersion(1))
    threading.Timer(0.2, lambda: path.write_bytes(b"weights")).start()
    settled(keeper)
    (lent,) = keeper.lend_models((3, 4))
    assert (lent.kept, lent.fetch()) == (model(3), b"weights")
    assert keeper.kept_model(3) == model(3)
    assert keeper.kept_model(None) is keeper.kept_model(4) is None


def test_kept_weights_that_serve_have_a_file_in_the_run(keeper, folder):
    folder.model(CAM, ModelVersion(1)).write_bytes(b"weights")
    keeper.keep_model(cmd.KeepModel(CAM, model(3), ()))
    settled(keeper)
    keeper.record_serving(3, CAM, ModelVersion(2), keeper.read_weights(3))
    settled(keeper)
    assert folder.model(CAM, ModelVersion(2)).read_bytes() == b"weights"


def test_model_that_cannot_be_kept_is_warned_of(keeper, folder, monkeypatch, caplog):
    monkeypatch.setattr("ekya.runtime.weights.weight_transfer._WRITTEN_S", 0.0)
    keeper.keep_model(cmd.KeepModel(CAM, model(3), ()))
    settled(keeper)
    assert "a model cannot be kept" in caplog.text


def test_executor_serves_a_kept_model_from_the_zoo(keeper, folder, monkeypatch):
    folder.model(CAM, ModelVersion(1)).write_bytes(b"weights")
    monkeypatch.setattr(ray, "put", lambda value: ("put", value))
    actors = FakeActors().install(monkeypatch)
    executor = make_executor(actors, zoo=keeper)
    executor.execute_commands([cmd.KeepModel(CAM, model(3), ())])
    settled(keeper)
    asked = cmd.PrepareStream(CAM, (), (), None, (3,), None)
    executor.execute_commands([cmd.BeginPreparation(1, 500, (asked,))])
    executor.wait(actors.clock.now + 1)
    (handed_in,) = actors.calls("hand_in")
    assert [one.kept for one in handed_in.arguments[-1]] == [model(3)]
    executor.execute_commands([cmd.AdoptModel(CAM, CAM, ModelVersion(1), 0.9, "better", 3)])
    own = actors.streams[CAM]
    assert (own.version, own.newest_weights) == (1, ("put", b"weights"))
    assert actors.arguments("load_model")[-1][2:] == (1, ("put", b"weights"))
    executor.execute_commands([cmd.AdoptModel(CAM, CAM, ModelVersion(9), 0.9, "better", 4)])
    ((stream, weights, accuracy, version, of, of_version, kept),) = actors.arguments("adopt_weights")
    assert (stream, weights, accuracy, version, of, of_version, kept) == (
        CAM,
        ("put", b"weights"),
        0.9,
        1,
        CAM,
        1,
        3,
    )
    assert [type(event) for event in events_of(executor, actors)] == [ev.AdoptionFailed]
    adopted = ev.ModelAdopted(0, CAM, ModelVersion(1), CAM, ModelVersion(1), 0.9, 5, 3)
    actors.emit(own.inference, adopted)
    assert adopted in events_of(executor, actors)
    assert own.weights == ("put", b"weights")
    executor.execute_commands([start_retraining(job=2)])
    assert actors.arguments("start_retraining")[-1][2] == ("put", b"weights"), (
        "what serves is what is retrained"
    )
    executor.execute_commands([cmd.BeginPreparation(2, 500, (asked,))])
    executor.wait(actors.clock.now + 1)
    assert actors.arguments("hand_in")[-1][6] == BASE_VERSION, "the base model may serve again"


def test_executor_says_so_where_a_kept_model_is_damaged_by_now(keeper, folder, monkeypatch, caplog):
    folder.model(CAM, ModelVersion(1)).write_bytes(b"weights")
    actors = FakeActors().install(monkeypatch)
    executor = make_executor(actors, zoo=keeper)
    keeper.keep_model(cmd.KeepModel(CAM, model(3), ()))
    settled(keeper)
    (folder.zoo / "3.safetensors").unlink()
    (folder.zoo / "3.safetensors").write_bytes(b"weighty")
    executor.execute_commands([cmd.AdoptModel(CAM, CAM, ModelVersion(1), 0.9, "better", 3)])
    assert "is damaged" in caplog.text
    assert events_of(executor, actors) == (ev.AdoptionFailed(0, CAM),)
    assert actors.calls("adopt_weights") == []
