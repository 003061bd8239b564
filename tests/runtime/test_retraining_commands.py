"""Tests of commands to a retraining: answered after the current batch, in any order of arrival."""

import threading
from types import SimpleNamespace

import pytest
from fake_training import NO_LABELS, NoMemory, start_command, stream_retraining
from waiting import HANG_GUARD_S, wait_until, wait_until_blocked

import ekya.runtime.actors.stream_retraining as module
from ekya.core.configs import RetrainConfig
from ekya.core.units import JobId
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.actors.actor_messages import Mailbox

JOB, GAMMA = JobId(7), RetrainConfig(1, 8, 0, 0, 1.0)


class Trainer:
    """Fake trainer whose batches last until ``end`` is set."""

    done = False

    def __init__(self, scope):
        self._scope, self.inside, self.end = scope, threading.Event(), threading.Event()
        self.batches = 0

    def prepare(self):
        """Does nothing."""

    def run_epoch(self):
        with self._scope():
            self.inside.set()
            assert self.end.wait(HANG_GUARD_S)
            self.batches += 1
        return SimpleNamespace(epoch=1, validation_accuracy=0.5)

    def model(self):
        return "weights"


@pytest.fixture
def trainers(monkeypatch):
    made = []

    def make(*_, scope, **__):
        made.append(Trainer(scope))
        return made[-1]

    monkeypatch.setattr(module, "from_bytes", lambda weights: weights)
    monkeypatch.setattr(module, "retraining_of", make)
    return made


@pytest.fixture
def actor(trainers, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ExemplarMemory", NoMemory)
    return stream_retraining(RunFolder(tmp_path), Mailbox())


def start(actor, share_milli=1000, serial=1):
    return actor.start_retraining(start_command(JOB, GAMMA, share_milli), b"", NO_LABELS, None, serial)


def later(answers, ask, *arguments):
    thread = threading.Thread(target=lambda: answers.append(ask(*arguments)))
    thread.start()
    return thread


def trainer_at_work(trainers):
    wait_until(lambda: trainers)
    assert trainers[0].inside.wait(HANG_GUARD_S)
    return trainers[0]


def test_start_returns_the_share_it_began_with(actor, trainers):
    assert start(actor, 640).share_milli == 640
    trainer_at_work(trainers).end.set()
    assert actor.stop_retraining(JOB).share_milli == 0


@pytest.mark.parametrize(("method", "arguments"), [("resize_retraining", (300, 2)), ("stop_retraining", ())])
def test_resize_and_stop_return_after_the_current_batch(actor, trainers, method, arguments):
    start(actor)
    trainer = trainer_at_work(trainers)
    answers = []
    asking = later(answers, getattr(actor, method), JOB, *arguments)
    wait_until_blocked(asking)
    assert answers == []
    trainer.end.set()
    asking.join(HANG_GUARD_S)
    assert [resized.share_milli for resized in answers] == [arguments[0] if arguments else 0]
    assert answers[0].took_us > 0
    actor.stop_retraining(JOB)


def test_resize_before_its_job_waits_for_it(actor, trainers):
    answers = []
    asking = later(answers, actor.resize_retraining, JOB, 250, 2)
    wait_until_blocked(asking)
    assert answers == []
    start(actor, 1000, serial=1)
    trainer_at_work(trainers).end.set()
    asking.join(HANG_GUARD_S)
    assert [resized.share_milli for resized in answers] == [250]
    actor.stop_retraining(JOB)


def test_commands_to_a_job_that_is_over_return_no_share(actor, trainers):
    start(actor)
    trainer_at_work(trainers).end.set()
    actor.stop_retraining(JOB)
    assert actor.stop_retraining(JOB).share_milli == 0
    next_job = JobId(JOB + 1)
    actor.start_retraining(start_command(next_job, GAMMA), b"", NO_LABELS, None, 4)
    assert actor.resize_retraining(JOB, 500, 3).share_milli == 0
    trainers[-1].end.set()
    actor.stop_retraining(next_job)
