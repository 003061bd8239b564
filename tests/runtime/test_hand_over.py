"""Tests of the retraining actor's side of a hand-over: over CUDA IPC first, then through the object store."""

import time
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from fake_ipc import FakeGpu

import ekya.runtime.stream_retraining as module
from ekya.config.fleet_file import load_fleet
from ekya.config.shipped import shipped_path
from ekya.core import events as ev
from ekya.core.commands import StartRetraining
from ekya.core.configs import RetrainConfig
from ekya.core.units import JobId, ModelVersion
from ekya.gpu.backends.cpu import CpuShares
from ekya.gpu.green.sm_driver import SmDriverError
from ekya.models.edge.checkpoints import from_bytes, load_model, to_bytes
from ekya.models.edge.device_memory import MemoryPeaks
from ekya.models.edge.model import build_edge_model
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.actor_kinds import ActorConfig, StreamActorConfig
from ekya.runtime.cuda_ipc_transfer import LOAN_S, borrow
from ekya.runtime.mailbox import Mailbox
from ekya.runtime.stream_retraining import StreamRetraining

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
        return SimpleNamespace(epoch=self.epochs, validation_accuracy=self.epochs / 10)

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
    asked = []
    monkeypatch.setattr(
        module, "ray", SimpleNamespace(wait=lambda *waited, **limits: asked.append((waited, limits)))
    )
    return asked


@pytest.fixture
def actor(trainer, process, waited, monkeypatch, tmp_path):
    fleet = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))
    folder = RunFolder.create(tmp_path, "run")
    common = ActorConfig(folder, fleet, 0, CpuShares(1), "cpu", (0,) * len(fleet.streams))
    made = StreamRetraining(StreamActorConfig(common, 0, ModelVersion(0)), Mailbox(), MemoryPeaks())
    made._memory = SimpleNamespace(update=lambda *_: made._memory)
    labels = SimpleNamespace(training=SimpleNamespace(crops=()))
    config = RetrainConfig(2, 8, 0, 0, 1.0)
    made.start(
        StartRetraining(made._stream.id, JOB, 3, config, 1000, 0.5, 1.0),
        to_bytes(model_of(0)),
        labels,
        None,
        1,
    )
    epoch_done(made)
    return made


def epoch_done(actor):
    until_s = time.monotonic() + 5
    while not any(isinstance(event, ev.RetrainProgress) for event in actor._mailbox.take(0.1)):
        assert time.monotonic() < until_s


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(own, its) for own, its in pairs)


def test_what_was_lent_is_what_is_kept_although_the_retraining_has_gone_on(actor, trainer, process, waited):
    lent, accuracy = actor.lend(JOB, ONE)
    assert accuracy == 0.1
    assert same(borrow(process.gpu.process().ipc(), lent, "cpu"), model_of(1))
    trainer.wanted = 2
    epoch_done(actor)
    weights, accuracy = actor.hand_over(JOB, ONE, ["taken"])
    assert waited == [((["taken"],), {"num_returns": 1, "timeout": LOAN_S})]
    assert process.memory == {}, "what was taken is freed"
    assert accuracy == 0.1
    assert same(from_bytes(weights), model_of(1))
    actor.end()
    kept = load_model(actor._orders.common.folder.model(actor._stream.id, ONE))
    assert torch.allclose(kept.head.weight, model_of(1).head.weight, atol=1e-3)


def test_a_taker_that_never_answers_has_no_memory_for_ever(actor, process, waited):
    lent, _ = actor.lend(JOB, ONE)
    assert len(process.memory) == 1
    actor.hand_over(JOB, ONE, ["never answered: the wait ends by its limit"])
    assert waited[0][1]["timeout"] == LOAN_S
    assert process.memory == {}
    with pytest.raises(SmDriverError):
        borrow(process.gpu.process().ipc(), lent, "cpu")


def test_what_cannot_be_lent_is_handed_over_all_the_same(actor, process):
    process.fails["cuMemAlloc"] = "no"
    with pytest.raises(SmDriverError, match="cuMemAlloc"):
        actor.lend(JOB, ONE)
    weights, accuracy = actor.hand_over(JOB, ONE, ["an error by now"])
    assert (same(from_bytes(weights), model_of(1)), accuracy) == (True, 0.1)


def test_without_a_loan_nobody_is_waited_for(actor, process, waited):
    weights, _ = actor.hand_over(JOB, ONE)
    assert same(from_bytes(weights), model_of(1))
    assert (waited, process.calls) == ([], [])


def test_before_a_run_the_first_weights_are_lent_and_freed(actor, process):
    lent = actor.lend_first(to_bytes(model_of(0)))
    assert same(borrow(process.gpu.process().ipc(), lent, "cpu"), model_of(0))
    actor.end_loan(ModelVersion(0), ["taken"])
    assert process.memory == {}
