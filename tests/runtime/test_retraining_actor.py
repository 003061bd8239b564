"""Tests of the retrainings of several streams in one process: independent, with their events together."""

import threading
from types import SimpleNamespace

import pytest
from fake_training import events_until, process_config, start_command
from waiting import HANG_GUARD_S, call_at, wait_until, wait_until_blocked

import ekya.runtime.actors.retraining_actor as actor_module
import ekya.runtime.actors.stream_retraining as module
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.units import JobId, ModelVersion
from ekya.models.edge.device_memory import MemoryPeaks
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.actors.retraining_actor import RetrainingActor

GAMMA = RetrainConfig(1, 8, 0, 0, 1.0)


class Trainer:
    """Fake trainer of one epoch, which lasts until ``may_end`` is set."""

    def __init__(self, name, scope):
        self.name, self._scope = name, scope
        self.inside, self.may_end = threading.Event(), threading.Event()
        self.done = False

    def prepare_training(self):
        """Does nothing."""

    def run_epoch(self):
        with self._scope():
            self.inside.set()
            assert self.may_end.wait(HANG_GUARD_S)
        self.done = True
        return SimpleNamespace(epoch=1, validation_accuracy=0.5)

    def model(self):
        return f"weights of {self.name}"


@pytest.fixture
def trainers(monkeypatch):
    """Fake trainers by their initial weights."""
    made = {}

    def make(start, *_, scope, **__):
        made[start] = Trainer(start, scope)
        return made[start]

    monkeypatch.setattr(actor_module, "lower_priority", lambda niceness: None)
    monkeypatch.setattr(module, "from_bytes", lambda weights: weights.decode())
    monkeypatch.setattr(module, "to_bytes", lambda model: model.encode())
    monkeypatch.setattr(module, "save_model", lambda *_, **__: None)
    monkeypatch.setattr(module, "retraining_of", make)
    return made


class NamedMemory:
    """Exemplar memory that remembers only whose exemplars it has."""

    kept = None

    def __init__(self, of=""):
        self.of = of

    def update_exemplars(self, examples):
        return NamedMemory(examples)


@pytest.fixture
def actor(trainers, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ExemplarMemory", NamedMemory)
    made = RetrainingActor(process_config(RunFolder.create_numbered(tmp_path, "run"), cores=4))
    call_at(made.start_run)
    return made


def start(actor, trainers, stream, job, share_milli=1000):
    command = start_command(job, GAMMA, share_milli, stream)
    labels = SimpleNamespace(training=SimpleNamespace(examples=f"labels of {stream}"))
    resized = actor.streams[stream].start_retraining(command, stream.encode(), labels, job)
    assert resized.share_milli == share_milli
    wait_until(lambda: stream in trainers)
    return trainers[stream]


def test_streams_train_concurrently_at_their_own_shares(actor, trainers):
    first = start(actor, trainers, "cam-1", 1, 500)
    second = start(actor, trainers, "cam-2", 2, 700)
    assert first.inside.wait(HANG_GUARD_S)
    assert second.inside.wait(HANG_GUARD_S), "the other one's batch is not waited for"
    answers = []
    resize = actor.streams["cam-2"].resize_retraining
    resizing = threading.Thread(target=lambda: answers.append(resize(JobId(2), 900, 3)))
    resizing.start()
    resizing.join(HANG_GUARD_S)
    assert [resized.share_milli for resized in answers] == [900]
    for trainer in (first, second):
        trainer.may_end.set()
    events = events_until(actor.poll, ev.RetrainFinished, 2)
    finished = [event for event in events if isinstance(event, ev.RetrainFinished)]
    assert {(event.stream, event.job) for event in finished} == {("cam-1", 1), ("cam-2", 2)}


def test_weights_and_exemplars_are_of_their_own_stream(actor, trainers):
    for job, stream in enumerate(("cam-1", "cam-2"), 1):
        start(actor, trainers, stream, job).may_end.set()
    events_until(actor.poll, ev.RetrainFinished, 2)
    for job, stream in enumerate(("cam-1", "cam-2"), 1):
        weights, accuracy = actor.streams[stream].send_checkpoint(JobId(job), ModelVersion(1))
        assert (weights, accuracy) == (f"weights of {stream}".encode(), 0.5)
        actor.streams[stream].stop_retraining(JobId(job))
        assert actor.streams[stream].exemplar_memory().of == f"labels of {stream}"
    actor.finish_saving()


def test_threads_that_have_saved_weights_are_not_kept(actor, trainers, monkeypatch):
    may_save, saved = threading.Event(), []

    def save(_model, path, half):
        if path.stem == "1":
            may_save.wait()
        saved.append(path.stem)

    monkeypatch.setattr(module, "save_model", save)
    start(actor, trainers, "cam-1", 1).may_end.set()
    events_until(actor.poll, ev.RetrainFinished)
    stream = actor.streams["cam-1"]
    for version in range(1, 6):
        stream.send_checkpoint(JobId(1), ModelVersion(version))
        if version > 1:
            stream._savers[-1].join()
    first, last = stream._savers
    assert (first.is_alive(), last.is_alive()) == (True, False)
    may_save.set()
    actor.finish_saving()
    assert saved == ["2", "3", "4", "5", "1"], "the end waits for what is not saved yet"


def test_leave_ends_the_job_of_its_stream_only(actor, trainers):
    leaving, staying = (start(actor, trainers, f"cam-{n}", n) for n in (1, 2))
    assert leaving.inside.wait(HANG_GUARD_S)
    left = threading.Thread(target=actor.streams["cam-1"].stop_and_save)
    left.start()
    wait_until_blocked(left)  # its batch is not over
    leaving.may_end.set()
    left.join(HANG_GUARD_S)
    assert not left.is_alive()
    assert "cam-2" not in {event.stream for event in actor.poll(0.0)}
    staying.may_end.set()
    finished = events_until(actor.poll, ev.RetrainFinished)[-1]
    assert finished.stream == "cam-2"


def config_of(actor, stream):
    """Returns the settings of a stream of the process."""
    return actor.streams[stream]._config


def test_stream_that_has_left_is_not_kept_and_may_come_back(actor, trainers):
    start(actor, trainers, "cam-1", 1).may_end.set()
    before, config = actor.streams["cam-1"], config_of(actor, "cam-1")
    actor.remove_stream("cam-1")
    actor.remove_stream("cam-1")
    assert "cam-1" not in actor.streams
    call_at(lambda now_ns: actor.admit_stream(config, now_ns))
    assert actor.streams["cam-1"] is not before
    trainers.clear()
    start(actor, trainers, "cam-1", 2).may_end.set()


def test_stream_of_a_new_process_keeps_the_job_that_has_begun(actor, trainers):
    """Ray may carry out the call that begins it first."""
    trainer = start(actor, trainers, "cam-1", 1)
    before = actor.streams["cam-1"]
    call_at(lambda now_ns: actor.admit_stream(config_of(actor, "cam-1"), now_ns))
    assert actor.streams["cam-1"] is before
    trainer.may_end.set()


def test_stream_that_comes_back_while_it_leaves_is_another_one(actor, trainers):
    trainer = start(actor, trainers, "cam-1", 1)
    assert trainer.inside.wait(HANG_GUARD_S)
    before, config = actor.streams["cam-1"], config_of(actor, "cam-1")
    left = threading.Thread(target=actor.remove_stream, args=("cam-1",))
    left.start()
    wait_until(lambda: before.is_leaving)
    call_at(lambda now_ns: actor.admit_stream(config, now_ns))
    trainer.may_end.set()
    left.join(HANG_GUARD_S)
    assert actor.streams["cam-1"] is not before


def test_leave_returns_when_nothing_more_is_written(actor, trainers, monkeypatch):
    written, may_write = [], threading.Event()

    def keep(_self, _memory):
        may_write.wait(HANG_GUARD_S)
        written.append(True)

    monkeypatch.setattr(module.RetrainingPictures, "keep_exemplars", keep)
    start(actor, trainers, "cam-1", 1).may_end.set()
    left = threading.Thread(target=actor.remove_stream, args=("cam-1",))
    left.start()
    wait_until_blocked(left)
    assert written == []
    may_write.set()
    left.join(HANG_GUARD_S)
    assert written == [True]


def test_peak_of_memory_is_known_only_of_a_job_alone(monkeypatch):
    monkeypatch.setattr("ekya.models.edge.device_memory.peak_bytes", lambda: 700)
    peaks = MemoryPeaks()
    alone = peaks.start_job()
    assert peaks.end_job(alone) == 700
    first = peaks.start_job()
    second = peaks.start_job()
    assert peaks.end_job(first) is None
    assert peaks.end_job(second) is None
    assert peaks.end_job(peaks.start_job()) == 700
