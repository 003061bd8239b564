"""Tests of the states of weights on their way to inference, with fake actors."""

import pytest
from fake_actors import FakeActors
from ray.exceptions import RayActorError, RayTaskError

from ekya.core import events as ev
from ekya.core.units import JobId, ModelVersion
from ekya.runtime.remote_calls import RemoteCalls
from ekya.runtime.weight_transfer import WeightTransfer

CAM, JOB = "cam", JobId(1)


def swapped(version):
    return ev.ModelSwapped(0, CAM, ModelVersion(version), JOB, 0.9, 5)


@pytest.fixture
def actors(monkeypatch):
    return FakeActors().install(monkeypatch)


@pytest.fixture
def own(actors):
    return actors.streams[CAM]


@pytest.fixture
def calls():
    return RemoteCalls()


@pytest.fixture
def emitted():
    return []


@pytest.fixture
def over_ipc(actors, calls, emitted):
    return WeightTransfer(actors.streams, calls, emitted.extend, over_ipc=True)


@pytest.fixture
def through_store(actors, calls, emitted):
    return WeightTransfer(actors.streams, calls, emitted.extend, over_ipc=False)


def test_pending_weights_are_the_newest_but_not_served(through_store, actors, own):
    through_store.send(CAM, JOB, [])
    (send,) = actors.calls("send")
    assert (own.version, own.newest_weights, own.weights) == (1, send.references[0], "base")
    assert through_store.on_event(swapped(1)) == [swapped(1)]
    assert own.weights is send.references[0]


def test_weights_stored_before_their_hot_swap_serve_at_once(over_ipc, actors, own, calls, emitted):
    over_ipc.send(CAM, JOB, [])
    (send,) = actors.calls("send")
    send.reply()
    calls.wait(1.0)
    assert (emitted, own.weights) == ([], "base")
    assert over_ipc.on_event(swapped(1)) == [swapped(1)]
    assert own.weights is send.references[0]


def test_pending_weights_are_rejected_by_a_newer_hot_swap(over_ipc, actors, own, calls, emitted, caplog):
    """Inference has skipped version 1, whose trainer died; version 2 does not wait for it."""
    over_ipc.send(CAM, JOB, [])
    over_ipc.send(CAM, JOB, [])
    first, second = actors.calls("send")
    first.fail(RayActorError())
    second.reply()
    calls.wait(1.0)
    assert over_ipc.on_event(swapped(2)) == [swapped(2)]
    assert own.weights is second.references[0]
    assert (emitted, caplog.text) == ([], "")


def test_weights_lost_before_their_hot_swap_are_never_served(over_ipc, actors, own, calls, caplog):
    over_ipc.send(CAM, JOB, [])
    actors.calls("send")[0].fail(RayActorError())
    calls.wait(1.0)
    assert over_ipc.on_event(swapped(1)) == []
    assert own.weights == "base"
    assert "cam: weights 1 serve, and were lost with their trainer" in caplog.text


@pytest.mark.parametrize("newer", [False, True])
def test_weights_that_could_not_be_sent_are_not_the_newest(through_store, actors, own, calls, newer):
    """Otherwise every retraining would begin from them, and fail."""
    through_store.send(CAM, JOB, [])
    (received,) = actors.calls("receive")
    if newer:
        through_store.send(CAM, JobId(2), [])
    received.fail(RayTaskError("send", "a trace", LookupError("there is no such job")))
    calls.wait(1.0)
    assert own.newest_weights == (actors.calls("send")[1].references[0] if newer else "base")


def test_roll_back_without_evaluated_weights_sends_nothing(through_store, actors):
    through_store.evaluate(CAM)
    assert not through_store.roll_back(CAM)
    assert actors.record == []


def test_activations_that_arrive_after_their_window_are_ignored(through_store, actors, calls):
    through_store.evaluate(CAM)
    through_store.begin_window()
    activations, arrived = actors.preparation.passed.options(num_returns=2).remote(1, CAM)
    through_store.expect_activations(CAM, activations, arrived)
    through_store.begin_window()
    actors.calls("passed")[0].reply()
    calls.wait(1.0)
    assert through_store.activations(CAM) is None
