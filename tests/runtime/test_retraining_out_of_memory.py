"""Tests of the retraining actor when its trainer runs out of memory: it reports this and goes on."""

from types import SimpleNamespace

import pytest
import torch
from fake_training import NO_LABELS, NoMemory, events_until, start_command, stream_retraining

import ekya.runtime.actors.stream_retraining as module
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.gpus import DidNotFit
from ekya.core.units import JobId
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.actors.actor_messages import Mailbox

BLOCK, HEAD = RetrainConfig(2, 8, 0, 1, 1.0), RetrainConfig(1, 8, 0, 0, 1.0)


class Trainer:
    """Fake trainer that has no memory to train blocks."""

    def __init__(self, config, scope):
        self._config, self._scope, self._epochs = config, scope, 0

    @property
    def done(self):
        return self._epochs == self._config.epochs

    def prepare(self):
        with self._scope():
            if self._config.trainable_blocks:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    def run_epoch(self):
        self._epochs += 1
        return SimpleNamespace(epoch=self._epochs, validation_accuracy=0.5)

    def model(self):
        return "weights"


@pytest.fixture
def mailbox():
    return Mailbox()


@pytest.fixture
def actor(monkeypatch, tmp_path, mailbox):
    monkeypatch.setattr(module, "from_bytes", lambda weights: weights)
    monkeypatch.setattr(
        module, "retraining_of", lambda _start, config, *_rest, scope, **_: Trainer(config, scope)
    )
    monkeypatch.setattr(module, "ExemplarMemory", NoMemory)
    return stream_retraining(RunFolder(tmp_path), mailbox)


def start(actor, number, config):
    actor.start_retraining(start_command(number, config), b"", NO_LABELS, None, number)


def test_out_of_memory_fails_the_job_and_the_next_begins(actor, mailbox):
    start(actor, 1, BLOCK)
    short, failed = events_until(mailbox.drain, ev.RetrainFailed)
    assert isinstance(short, ev.MemoryShort)
    assert (short.window, short.what, short.needed_bytes) == (3, DidNotFit.from_config(BLOCK), None)
    assert failed.job == JobId(1)
    assert failed.reason == short.reason == "OutOfMemoryError: CUDA out of memory."

    start(actor, 2, HEAD)
    progress, finished = events_until(mailbox.drain, ev.RetrainFinished)
    assert (progress.job, finished.job) == (JobId(2), JobId(2))
