"""Tests of the retrainings of several streams in one process: independent, with their events together."""

import threading
import time
from types import SimpleNamespace

import pytest

import ekya.runtime.retraining_actor as room
import ekya.runtime.stream_retraining as module
from ekya.config.fleet_file import load_fleet
from ekya.config.shipped import shipped_path
from ekya.core import events as ev
from ekya.core.commands import StartRetraining
from ekya.core.configs import RetrainConfig
from ekya.core.units import BASE_VERSION, JobId, ModelVersion
from ekya.gpu.backends.cpu import CpuShares
from ekya.models.edge.device_memory import MemoryPeaks
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.actor_kinds import ActorConfig, ProcessConfig, StreamActorConfig
from ekya.runtime.retraining_actor import RetrainingActor

GAMMA = RetrainConfig(1, 8, 0, 0, 1.0)


class Trainer:
    """Fake trainer of one epoch, which lasts until ``may_end`` is set."""

    def __init__(self, name, scope):
        self.name, self._scope = name, scope
        self.inside, self.may_end = threading.Event(), threading.Event()
        self.done = False

    def prepare(self):
        """Does nothing."""

    def run_epoch(self):
        with self._scope():
            self.inside.set()
            assert self.may_end.wait(10)
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

    monkeypatch.setattr(room, "lower_priority", lambda: None)
    monkeypatch.setattr(module, "from_bytes", lambda weights: weights.decode())
    monkeypatch.setattr(module, "to_bytes", lambda model: model.encode())
    monkeypatch.setattr(module, "save_model", lambda *_, **__: None)
    monkeypatch.setattr(module, "retraining_of", make)
    return made


@pytest.fixture
def orders(tmp_path):
    fleet = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))
    common = ActorConfig(RunFolder.create(tmp_path, "run"), fleet, 0, CpuShares(4), "cpu", (0,) * 4)
    streams = tuple(StreamActorConfig(common, place, BASE_VERSION) for place in range(len(fleet.streams)))
    return ProcessConfig(common, "retraining/gpu-0", 0, streams)


@pytest.fixture
def actor(trainers, orders):
    made = RetrainingActor(orders)
    for one in made.streams.values():
        one._memory = SimpleNamespace(update=lambda model, _: f"exemplars of {model}")
    made.begin(time.monotonic_ns())
    return made


def start(actor, trainers, stream, job, share_milli=1000):
    labels = SimpleNamespace(training=SimpleNamespace(crops=()))
    command = StartRetraining(stream, JobId(job), 3, GAMMA, share_milli, 0.5, 1.0)
    resized = actor.streams[stream].start(command, stream.encode(), labels, None, job)
    assert resized.share_milli == share_milli
    until_s = time.monotonic() + 10
    while stream not in trainers:
        assert time.monotonic() < until_s
        time.sleep(0.001)
    return trainers[stream]


def news(actor, kind, count):
    told, until_s = [], time.monotonic() + 10
    while len(told) < count:
        assert time.monotonic() < until_s
        told += [event for event in actor.poll(0.05) if isinstance(event, kind)]
    return told


def teststreams_train_at_the_same_time_each_at_its_own_share(actor, trainers):
    first = start(actor, trainers, "cam-1", 1, 500)
    second = start(actor, trainers, "cam-2", 2, 700)
    assert first.inside.wait(10)
    assert second.inside.wait(10), "the other one's batch is not waited for"
    jobs = [actor.streams[stream]._job for stream in ("cam-1", "cam-2")]
    assert [job.handle._share_milli for job in jobs] == [500, 700]
    answers = []
    resizing = threading.Thread(
        target=lambda: answers.append(actor.streams["cam-2"].resize(JobId(2), 900, 3))
    )
    resizing.start()
    resizing.join(10)
    assert [resized.share_milli for resized in answers] == [900]
    assert jobs[0].handle._share_milli == 500
    for trainer in (first, second):
        trainer.may_end.set()
    finished = news(actor, ev.RetrainFinished, 2)
    assert {(event.stream, event.job) for event in finished} == {("cam-1", 1), ("cam-2", 2)}


def test_weights_and_exemplars_are_eachstreams_own(actor, trainers):
    for job, stream in enumerate(("cam-1", "cam-2"), 1):
        start(actor, trainers, stream, job).may_end.set()
    news(actor, ev.RetrainFinished, 2)
    for job, stream in enumerate(("cam-1", "cam-2"), 1):
        weights, accuracy = actor.streams[stream].send(JobId(job), ModelVersion(1))
        assert (weights, accuracy) == (f"weights of {stream}".encode(), 0.5)
        actor.streams[stream].stop(JobId(job))
        assert actor.streams[stream].memory() == f"exemplars of weights of {stream}"
    actor.end()


def test_a_stream_that_leaves_ends_its_training_and_no_other(actor, trainers):
    leaving, staying = (start(actor, trainers, f"cam-{n}", n) for n in (1, 2))
    assert leaving.inside.wait(10)
    left = threading.Thread(target=actor.streams["cam-1"].leave)
    left.start()
    left.join(0.05)
    assert left.is_alive(), "its batch is not over"
    leaving.may_end.set()
    left.join(10)
    assert not left.is_alive()
    assert actor.streams["cam-1"]._job.over.is_set()
    assert not actor.streams["cam-2"]._job.over.is_set()
    staying.may_end.set()
    told = news(actor, ev.RetrainFinished, 2)
    assert "cam-2" in {event.stream for event in told}


def test_a_job_has_a_peak_of_memory_of_its_own_only_where_it_was_alone(monkeypatch):
    monkeypatch.setattr("ekya.models.edge.device_memory.peak_bytes", lambda: 700)
    peaks = MemoryPeaks()
    alone = peaks.begin()
    assert peaks.end(alone) == 700
    first = peaks.begin()
    second = peaks.begin()
    assert peaks.end(first) is None
    assert peaks.end(second) is None
    assert peaks.end(peaks.begin()) == 700
