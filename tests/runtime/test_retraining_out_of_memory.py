"""Tests of the retraining actor when its trainer runs out of memory: it reports this and goes on."""

import time
from types import SimpleNamespace

import pytest
import torch

import ekya.runtime.stream_retraining as module
from ekya.config.fleet_file import load_fleet
from ekya.config.shipped import shipped_path
from ekya.core import events as ev
from ekya.core.commands import StartRetraining
from ekya.core.configs import RetrainConfig
from ekya.core.gpus import DidNotFit
from ekya.core.units import JobId
from ekya.gpu.backends.cpu import CpuShares
from ekya.models.edge.device_memory import MemoryPeaks
from ekya.runtime.actor_kinds import ActorConfig, StreamActorConfig
from ekya.runtime.mailbox import Mailbox
from ekya.runtime.stream_retraining import StreamRetraining

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
def actor(monkeypatch, tmp_path):
    fleet = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))
    monkeypatch.setattr(module, "from_bytes", lambda weights: weights)
    monkeypatch.setattr(
        module, "retraining_of", lambda _start, config, *_rest, scope, **_: Trainer(config, scope)
    )
    common = ActorConfig(tmp_path, fleet, 0, CpuShares(1), "cpu", (0,) * len(fleet.streams))
    actor = StreamRetraining(StreamActorConfig(common, 0, 0), Mailbox(), MemoryPeaks())
    actor._memory = SimpleNamespace(update=lambda *_: actor._memory)
    return actor


def told_by(actor, last):
    """Returns its events up to the first of a kind."""
    told, until_s = [], time.monotonic() + 5
    while not any(isinstance(event, last) for event in told):
        assert time.monotonic() < until_s, told
        told += actor._mailbox.take(0.05)
    return told


def start(actor, number, config):
    labels = SimpleNamespace(training=SimpleNamespace(crops=()))
    stream = actor._stream.id
    actor.start(StartRetraining(stream, JobId(number), 3, config, 1000, 0.5, 1.0), b"", labels, None, number)


def test_it_fails_the_job_with_its_gamma_and_takes_the_next(actor):
    start(actor, 1, BLOCK)
    short, failed = told_by(actor, ev.RetrainFailed)
    assert isinstance(short, ev.MemoryShort)
    assert (short.window, short.what, short.needed_bytes) == (3, DidNotFit.of(BLOCK), None)
    assert failed.job == JobId(1)
    assert failed.reason == short.reason == "OutOfMemoryError: CUDA out of memory."

    start(actor, 2, HEAD)
    progress, finished = told_by(actor, ev.RetrainFinished)
    assert (progress.job, finished.job) == (JobId(2), JobId(2))
