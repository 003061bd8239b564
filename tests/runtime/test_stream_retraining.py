"""Tests of a stream's retraining without Ray: commands, weights sent and received, memory, pictures."""

import threading
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from fake_training import (
    CAM,
    NO_LABELS,
    NoMemory,
    events_until,
    process_config,
    start_command,
    stream_retraining,
)
from waiting import HANG_GUARD_S, wait_until, wait_until_blocked

import ekya.runtime.actors.stream_retraining as module
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.gpus import DidNotFit
from ekya.core.units import JobId, ModelVersion
from ekya.core.weights import Elsewhere
from ekya.models.edge.checkpoints import from_bytes, load_model, to_bytes
from ekya.models.edge.device_memory import MemoryPeaks
from ekya.models.edge.model import build_edge_model
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops
from ekya.pipeline.labels import LabelledPart, StreamLabels
from ekya.results.storage.validation_files import read_validation, validated_jobs
from ekya.runtime.actors.actor_messages import Mailbox
from ekya.runtime.actors.retraining_pictures import RetrainingPictures
from ekya.runtime.actors.stream_retraining import StreamRetraining

JOB, ONE = JobId(7), ModelVersion(1)
HEAD, BLOCK = RetrainConfig(1, 8, 0, 0, 1.0), RetrainConfig(2, 8, 0, 1, 1.0)


@cache
def model_of(seed, classes=("car", "bus")):
    return build_edge_model(classes, 0, seed, "shufflenet_v2_x1_0").eval()


class Trainer:
    """Fake trainer: trains as many epochs as are allowed, and has no memory to train blocks.

    Its weights after an epoch are seeded with the epoch's number.
    """

    def __init__(self, config, scope):
        self._config, self._scope = config, scope
        self.inside, self.epochs, self.allowed = threading.Event(), 0, 0

    @property
    def done(self):
        return self.epochs == self._config.epochs

    def prepare_training(self):
        with self._scope():
            if self._config.trainable_blocks:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    def run_epoch(self):
        with self._scope():
            self.inside.set()
            wait_until(lambda: self.epochs < self.allowed)
            self.epochs += 1
        return SimpleNamespace(epoch=self.epochs, validation_accuracy=self.epochs / 10)

    def model(self):
        return model_of(self.epochs)


@pytest.fixture
def mailbox():
    return Mailbox()


@pytest.fixture
def trainers(monkeypatch):
    """Fake trainers of all jobs so far."""
    for seed in range(3):
        model_of(seed)  # torch has one random generator for all threads
    made = []

    def make(_start, config, *_, scope, **__):
        made.append(Trainer(config, scope))
        return made[-1]

    monkeypatch.setattr(module, "retraining_of", make)
    monkeypatch.setattr(module, "ExemplarMemory", NoMemory)
    yield made
    for one in made:
        one.allowed = 2


@pytest.fixture
def faked(trainers, folder, mailbox):
    """Retraining with fake trainers."""
    return stream_retraining(folder, mailbox)


def start(retraining, job=JOB, config=HEAD, share_milli=1000, serial=1):
    command = start_command(job, config, share_milli)
    return retraining.start_retraining(command, to_bytes(model_of(0)), NO_LABELS, serial)


def trainer_at_work(trainers, place=0):
    wait_until(lambda: len(trainers) > place)
    assert trainers[place].inside.wait(HANG_GUARD_S)
    return trainers[place]


# Commands


def later(answers, ask, *arguments):
    thread = threading.Thread(target=lambda: answers.append(ask(*arguments)))
    thread.start()
    return thread


def test_start_returns_the_share_it_began_with(faked, trainers):
    assert start(faked, share_milli=640).share_milli == 640
    trainer_at_work(trainers).allowed = 1
    assert faked.stop_retraining(JOB).share_milli == 0


@pytest.mark.parametrize(("method", "arguments"), [("resize_retraining", (300, 2)), ("stop_retraining", ())])
def test_resize_and_stop_return_after_the_current_batch(faked, trainers, method, arguments):
    start(faked)
    trainer = trainer_at_work(trainers)
    answers = []
    asking = later(answers, getattr(faked, method), JOB, *arguments)
    wait_until_blocked(asking)
    assert answers == []
    trainer.allowed = 1
    asking.join(HANG_GUARD_S)
    assert [resized.share_milli for resized in answers] == [arguments[0] if arguments else 0]
    assert answers[0].took_us > 0
    faked.stop_retraining(JOB)


def test_resize_before_its_job_waits_for_it(faked, trainers):
    answers = []
    asking = later(answers, faked.resize_retraining, JOB, 250, 2)
    wait_until_blocked(asking)
    assert answers == []
    start(faked)
    trainer_at_work(trainers).allowed = 1
    asking.join(HANG_GUARD_S)
    assert [resized.share_milli for resized in answers] == [250]
    faked.stop_retraining(JOB)


def test_commands_to_a_job_that_is_over_return_no_share(faked, trainers):
    start(faked)
    trainer_at_work(trainers).allowed = 1
    faked.stop_retraining(JOB)
    assert faked.stop_retraining(JOB).share_milli == 0
    next_job = JobId(JOB + 1)
    start(faked, next_job, serial=4)
    assert faked.resize_retraining(JOB, 500, 3).share_milli == 0
    trainer_at_work(trainers, 1).allowed = 1
    faked.stop_retraining(next_job)


# Memory


def test_out_of_memory_fails_the_job_and_the_next_begins(faked, trainers, mailbox):
    start(faked, 1, BLOCK)
    short, failed = events_until(mailbox.drain, ev.RetrainFailed)
    assert isinstance(short, ev.MemoryShort)
    assert (short.window, short.what, short.needed_bytes) == (3, DidNotFit.from_config(BLOCK), None)
    assert failed.job == JobId(1)
    assert failed.reason == short.reason == "OutOfMemoryError: CUDA out of memory."

    start(faked, 2, HEAD, serial=2)
    trainer_at_work(trainers, 1).allowed = 1
    progress, finished = events_until(mailbox.drain, ev.RetrainFinished)
    assert (progress.job, finished.job) == (JobId(2), JobId(2))


# Weights that are sent and received


@pytest.fixture
def trained(faked, trainers, mailbox):
    """Retraining whose first epoch is done."""
    start(faked, config=RetrainConfig(2, 8, 0, 0, 1.0))
    trainer_at_work(trainers).allowed = 1
    events_until(mailbox.drain, ev.RetrainProgress)
    return faked


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(own, its) for own, its in pairs)


def test_send_returns_the_best_weights_and_saves_them(trained, trainers, mailbox, folder):
    for epoch, version in ((1, ONE), (2, ModelVersion(2))):
        weights, accuracy = trained.send_checkpoint(JOB, version)
        assert accuracy == epoch / 10
        assert same(from_bytes(weights), model_of(epoch))
        if epoch == 1:
            trainers[0].allowed = 2
            events_until(mailbox.drain, ev.RetrainProgress)
    trained.finish_saving()
    for epoch, version in ((1, ONE), (2, ModelVersion(2))):
        saved = load_model(folder.model(CAM, version))
        assert torch.allclose(saved.head.weight, model_of(epoch).head.weight, atol=1e-3)


def test_send_of_another_job_raises(trained):
    with pytest.raises(LookupError, match="retraining 8 of cam-1 has no weights to send"):
        trained.send_checkpoint(JobId(8), ONE)


START = cmd.StartRetraining(CAM, JOB, 3, RetrainConfig(2, 8, 0, 0, 1.0), 0, 0.5, 1.0, Elsewhere(9))


@pytest.fixture
def labels():
    rng = np.random.default_rng(1)
    crops = LabelledCrops(
        rng.integers(0, 255, (6, 32, 32, 3), np.uint8), np.arange(6) % 2, np.arange(6), np.arange(6)
    )
    return SimpleNamespace(training=SimpleNamespace(examples=crops))


@pytest.fixture
def real(folder, mailbox):
    return stream_retraining(folder, mailbox)


def test_received_weights_are_the_best_of_their_job(real, labels, folder):
    real.receive_remote_checkpoint(START, to_bytes(model_of(5)), 0.75, labels)
    weights, accuracy = real.send_checkpoint(JOB, ONE)
    assert (torch.equal(from_bytes(weights).head.weight, model_of(5).head.weight), accuracy) == (True, 0.75)
    assert real.stop_retraining(JOB).share_milli == 0, "by then its exemplars are chosen"
    kept = real.exemplar_memory()
    same = ExemplarMemory().update_exemplars(labels.training.examples)
    assert np.array_equal(kept.exemplars().crops, same.exemplars().crops)
    real.finish_saving()
    saved = load_model(folder.model(CAM, ONE))
    assert torch.allclose(saved.head.weight, model_of(5).head.weight, atol=1e-3)


def test_better_weights_received_later_replace_them(real, labels):
    better = model_of(6)
    real.receive_remote_checkpoint(START, to_bytes(model_of(5)), 0.75, labels)
    real.receive_remote_checkpoint(START, to_bytes(better), 0.8, labels)
    weights, accuracy = real.send_checkpoint(JOB, ONE)
    assert (torch.equal(from_bytes(weights).head.weight, better.head.weight), accuracy) == (True, 0.8)
    assert real.stop_retraining(JOB).share_milli == 0
    same = ExemplarMemory().update_exemplars(labels.training.examples)
    assert np.array_equal(real.exemplar_memory().exemplars().crops, same.exemplars().crops)
    real.finish_saving()


def test_unreadable_weights_or_missing_labels_fail_the_job(real, labels, mailbox):
    real.receive_remote_checkpoint(START, b"no weights", 0.75, labels)
    (failed,) = events_until(mailbox.drain, ev.RetrainFailed)
    assert (failed.job, "safetensors" in failed.reason) == (JOB, True)
    with pytest.raises(LookupError):
        real.send_checkpoint(JOB, ONE)
    assert real.stop_retraining(JOB).share_milli == 0
    real.receive_remote_checkpoint(START, to_bytes(model_of(5)), 0.75, None)
    (failed,) = events_until(mailbox.drain, ev.RetrainFailed)
    assert failed.reason == "there are no labels to train on"
    assert real.exemplar_memory().size == 0


# Pictures


def part(count, first_track):
    rng = np.random.default_rng(first_track)
    rows = np.arange(count)
    crops = LabelledCrops(
        rng.integers(0, 255, (count, 32, 32, 3), np.uint8), rows % 2, first_track + rows, rows
    )
    return LabelledPart(crops, rows, np.zeros((count, 4), np.float32))


LABELS = StreamLabels(2, part(8, 0), part(6, 100))


def retraining_in(folder, mailbox, service):
    config = process_config(folder).streams[0]
    common = replace(config.common, keeps_hours=service)
    return StreamRetraining(replace(config, common=common), mailbox, MemoryPeaks())


def train(retraining, mailbox):
    """Returns when the retraining is over, and what is kept of it is written."""
    weights = to_bytes(model_of(5, ("person", "bicycle")))
    assert retraining.start_retraining(start_command(JOB, HEAD), weights, LABELS, 1) is not None
    events_until(mailbox.drain, ev.RetrainFinished)
    for thread in threading.enumerate():
        if thread.name == "retraining":
            thread.join(HANG_GUARD_S)


def test_service_keeps_the_validation_of_a_retraining(folder, mailbox):
    retraining = retraining_in(folder, mailbox, service=True)
    train(retraining, mailbox)
    kept = read_validation(folder, CAM, JOB)
    facts = kept.validation
    assert sum(map(sum, facts.before)) == sum(map(sum, facts.after)) == 6
    assert len(kept.pictures) == len(facts.mistakes)
    for picture in kept.pictures:
        assert cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR).shape == (32, 32, 3)


def test_run_keeps_no_validation(folder, mailbox):
    retraining = retraining_in(folder, mailbox, service=False)
    train(retraining, mailbox)
    assert not validated_jobs(folder, CAM)


def test_retraining_in_progress_keeps_no_picture_once_forgotten(folder, mailbox, monkeypatch):
    retraining = retraining_in(folder, mailbox, service=True)
    keep = RetrainingPictures.keep_validation

    def forgotten_meanwhile(pictures, *what):
        keep(pictures, *what)
        retraining.forget_pictures()
        keep(pictures, *what)

    monkeypatch.setattr(RetrainingPictures, "keep_validation", forgotten_meanwhile)
    train(retraining, mailbox)
    assert not validated_jobs(folder, CAM)
    assert not folder.exemplars(CAM).exists()
    assert retraining.exemplar_memory().kept is None
