"""Tests of weights on their way to inference, with fake actors."""

import pytest
from ray.exceptions import RayActorError, RayTaskError

from ekya.core import events as ev
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.runtime.driver.actor_processes import RemoteCalls
from ekya.runtime.weights.weight_transfer import WeightTransfer

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
