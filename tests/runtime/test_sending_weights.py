"""Tests of the trainer's end of a transfer of weights."""

from functools import cache
from types import SimpleNamespace

import pytest
import torch
from fake_training import CAM, NO_LABELS, NoMemory, events_until, start_command, stream_retraining
from waiting import wait_until

import ekya.runtime.actors.stream_retraining as module
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.units import JobId, ModelVersion
from ekya.models.edge.checkpoints import from_bytes, load_model, to_bytes
from ekya.models.edge.model import build_edge_model
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.actors.actor_messages import Mailbox

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
        wait_until(lambda: self.epochs != self.wanted)
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
def folder(tmp_path):
    return RunFolder.create_numbered(tmp_path, "run")


@pytest.fixture
def mailbox():
    return Mailbox()


@pytest.fixture
def actor(trainer, monkeypatch, folder, mailbox):
    """Retraining whose first epoch is done."""
    monkeypatch.setattr(module, "ExemplarMemory", NoMemory)
    made = stream_retraining(folder, mailbox)
    command = start_command(JOB, RetrainConfig(2, 8, 0, 0, 1.0))
    made.start_retraining(command, to_bytes(model_of(0)), NO_LABELS, None, 1)
    events_until(mailbox.drain, ev.RetrainProgress)
    return made


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(own, its) for own, its in pairs)


def test_send_returns_the_best_weights_and_saves_them(actor, trainer, mailbox, folder):
    for epoch, version in ((1, ONE), (2, ModelVersion(2))):
        weights, accuracy = actor.send_checkpoint(JOB, version)
        assert accuracy == epoch / 10
        assert same(from_bytes(weights), model_of(epoch))
        if epoch == 1:
            trainer.wanted = 2
            events_until(mailbox.drain, ev.RetrainProgress)
    actor.finish_saving()
    for epoch, version in ((1, ONE), (2, ModelVersion(2))):
        saved = load_model(folder.model(CAM, version))
        assert torch.allclose(saved.head.weight, model_of(epoch).head.weight, atol=1e-3)


def test_send_of_another_job_raises(actor):
    with pytest.raises(LookupError, match="retraining 8 of cam-1 has no weights to send"):
        actor.send_checkpoint(JobId(8), ONE)
