"""Tests of the trainer's end of a transfer: over CUDA IPC first, then through the object store."""

import time
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from fake_ipc import FakeGpu
from fake_training import CAM, NO_LABELS, NoMemory, events_until, start_command, stream_retraining

import ekya.runtime.stream_retraining as module
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.units import JobId, ModelVersion
from ekya.gpu.green.sm_driver import SmDriverError
from ekya.models.edge.checkpoints import from_bytes, load_model, to_bytes
from ekya.models.edge.model import build_edge_model
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.cuda_ipc_transfer import RECEIVE_TIMEOUT_S, receive
from ekya.runtime.mailbox import Mailbox

JOB, ONE = JobId(7), ModelVersion(1)


@cache
def model_of(seed):
    return build_edge_model(("car", "bus"), 0, seed, "shufflenet_v2_x1_0")


class Trainer:
    """Fake trainer whose weights after an epoch are seeded with the epoch's number."""

    def __init__(self):
        self.epochs, self.wanted = 0, 1

    @property
    def done(self):
        return self.epochs == 2

    def prepare(self):
        """Does nothing."""

    def run_epoch(self):
        while self.epochs == self.wanted:
            time.sleep(0.001)
        self.epochs += 1
        return SimpleNamespace(
            epoch=self.epochs, validation_accuracy=self.epochs / 10, partner_accuracies=(self.epochs / 20,)
        )

    def model(self):
        return model_of(self.epochs)


@pytest.fixture
def trainer(monkeypatch):
    for seed in range(3):
        model_of(seed)  # torch has one random generator for all threads
    made = Trainer()
    monkeypatch.setattr(module, "retraining_of", lambda *_, **__: made)
    yield made
    made.wanted = 2


@pytest.fixture
def process(monkeypatch):
    made = FakeGpu().process()
    monkeypatch.setattr(module, "open_ipc", made.ipc)
    return made


@pytest.fixture
def waited(monkeypatch):
    """Fake of ``ray.wait``; returns its calls."""
    calls = []
    monkeypatch.setattr(
        module, "ray", SimpleNamespace(wait=lambda *waited, **limits: calls.append((waited, limits)))
    )
    return calls


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path, "run")


@pytest.fixture
def mailbox():
    return Mailbox()


@pytest.fixture
def actor(trainer, process, waited, monkeypatch, folder, mailbox):
    """Retraining whose first epoch is done."""
    monkeypatch.setattr(module, "ExemplarMemory", NoMemory)
    made = stream_retraining(folder, mailbox)
    command = start_command(JOB, RetrainConfig(2, 8, 0, 0, 1.0))
    made.start(command, to_bytes(model_of(0)), NO_LABELS, None, 1)
    events_until(mailbox.take, ev.RetrainProgress)
    return made


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(own, its) for own, its in pairs)


def test_send_after_share_returns_the_weights_that_were_shared(
    actor, trainer, process, waited, mailbox, folder
):
    shared, accuracy = actor.share(JOB, ONE)
    assert accuracy == 0.1
    assert same(receive(process.gpu.process().ipc(), shared, "cpu"), model_of(1))
    trainer.wanted = 2
    events_until(mailbox.take, ev.RetrainProgress)
    weights, accuracy = actor.send(JOB, ONE, ["received"])
    assert waited == [((["received"],), {"num_returns": 1, "timeout": RECEIVE_TIMEOUT_S})]
    assert process.memory == {}, "shared memory is freed"
    assert accuracy == 0.1
    assert same(from_bytes(weights), model_of(1))
    actor.end()
    saved = load_model(folder.model(CAM, ONE))
    assert torch.allclose(saved.head.weight, model_of(1).head.weight, atol=1e-3)


def test_send_frees_the_memory_of_a_receiver_that_never_answers(actor, process, waited):
    shared, _ = actor.share(JOB, ONE)
    assert len(process.memory) == 1
    actor.send(JOB, ONE, ["never answered: the wait ends by its timeout"])
    assert waited[0][1]["timeout"] == RECEIVE_TIMEOUT_S
    assert process.memory == {}
    with pytest.raises(SmDriverError):
        receive(process.gpu.process().ipc(), shared, "cpu")


def test_send_after_a_failed_share_returns_the_weights(actor, process):
    process.fails["cuMemAlloc"] = "no"
    with pytest.raises(SmDriverError, match="cuMemAlloc"):
        actor.share(JOB, ONE)
    weights, accuracy = actor.send(JOB, ONE, ["an error by now"])
    assert (same(from_bytes(weights), model_of(1)), accuracy) == (True, 0.1)


def test_send_without_share_waits_for_nothing(actor, process, waited):
    weights, _ = actor.send(JOB, ONE)
    assert same(from_bytes(weights), model_of(1))
    assert (waited, process.calls) == ([], [])


def test_send_of_another_job_raises(actor):
    with pytest.raises(LookupError, match="retraining 8 of cam-1 has no weights to send"):
        actor.send(JobId(8), ONE)


def test_first_weights_are_shared_and_freed_before_a_run(actor, process):
    shared = actor.share_first(to_bytes(model_of(0)))
    assert same(receive(process.gpu.process().ipc(), shared, "cpu"), model_of(0))
    actor.stop_sharing(ModelVersion(0), ["received"])
    assert process.memory == {}


def test_weights_for_a_partner_have_its_accuracy(trainer, process, waited, monkeypatch, folder, mailbox):
    monkeypatch.setattr(module, "ExemplarMemory", NoMemory)
    made = stream_retraining(folder, mailbox)
    command = replace(start_command(JOB, RetrainConfig(2, 8, 0, 0, 1.0)), partners=("cam-2",))
    made.start(command, to_bytes(model_of(0)), NO_LABELS, None, 1, NO_LABELS)
    progress = events_until(mailbox.take, ev.RetrainProgress)[-1]
    assert progress.partner_accuracies == (0.05,)
    weights, accuracy = made.trained_for(JOB, 1, "cam-2")
    assert accuracy == 0.05
    assert torch.equal(from_bytes(weights).head.weight, model_of(1).head.weight)
    with pytest.raises(LookupError, match="was not measured on cam-3"):
        made.trained_for(JOB, 1, "cam-3")
    with pytest.raises(LookupError, match="is not its best any more"):
        made.trained_for(JOB, 2, "cam-2")
