"""Tests of remote retrainings: reported epoch by epoch, adopted by the trainer, served like any other."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError

from ekya.config.fleet_file import load_fleet
from ekya.config.shipped import shipped_path
from ekya.control.resizing import ShareLedger
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.units import BASE_VERSION, JobId, ModelVersion
from ekya.core.weights import Elsewhere
from ekya.gpu.backends.cpu import CpuShares
from ekya.models.edge.checkpoints import from_bytes, load_model, to_bytes
from ekya.models.edge.device_memory import MemoryPeaks
from ekya.models.edge.model import build_edge_model
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.actor_kinds import ActorConfig, StreamActorConfig
from ekya.runtime.executor import RayExecutor
from ekya.runtime.fleet_actors import StreamActors
from ekya.runtime.mailbox import Mailbox, RunClock
from ekya.runtime.ready import Ready
from ekya.runtime.remote_retrainings import RemoteCheckpoint
from ekya.runtime.retrain_inputs import MaterialToFetch
from ekya.runtime.share_changes import PATIENCE
from ekya.runtime.stream_retraining import StreamRetraining

JOB, ONE, CAM = JobId(7), ModelVersion(1), "cam-1"
START = cmd.StartRetraining(CAM, JOB, 3, RetrainConfig(2, 8, 0, 0, 1.0), 0, 0.5, 1.0, Elsewhere(9))


@pytest.fixture(scope="module")
def model():
    return build_edge_model(("car", "bus"), 0, 5, "shufflenet_v2_x1_0").eval()


@pytest.fixture
def labels():
    rng = np.random.default_rng(1)
    crops = LabelledCrops(
        rng.integers(0, 255, (6, 32, 32, 3), np.uint8), np.arange(6) % 2, np.arange(6), np.arange(6)
    )
    return SimpleNamespace(training=SimpleNamespace(crops=crops))


@pytest.fixture
def actor(monkeypatch, tmp_path):
    fleet = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))
    folder = RunFolder.create(tmp_path, "run")
    common = ActorConfig(folder, fleet, 0, CpuShares(1), "cpu", (0,) * len(fleet.streams))
    return StreamRetraining(StreamActorConfig(common, 0, BASE_VERSION), Mailbox(), MemoryPeaks())


def told(actor, kind):
    """Returns all events up to the first of a kind."""
    events, until_s = [], time.monotonic() + 5
    while not any(isinstance(event, kind) for event in events):
        assert time.monotonic() < until_s
        events += actor._mailbox.take(0.05)
    return events


def test_adopted_weights_are_the_best_of_their_job_at_once(actor, model, labels):
    actor.receive(START, to_bytes(model), 0.75, labels)
    weights, accuracy = actor.send(JOB, ONE)
    assert (torch.equal(from_bytes(weights).head.weight, model.head.weight), accuracy) == (True, 0.75)
    assert actor.stop(JOB).share_milli == 0, "by then it has learnt by heart"
    kept = actor.memory()
    same = ExemplarMemory().update(from_bytes(weights), labels.training.crops)
    assert np.array_equal(kept.exemplars().crops, same.exemplars().crops)
    actor.end()
    saved = load_model(actor._orders.common.folder.model(CAM, ONE))
    assert torch.allclose(saved.head.weight, model.head.weight, atol=1e-3)


def test_better_weights_are_adopted_later_and_labels_are_learnt_by_heart_once(actor, model, labels):
    better = build_edge_model(("car", "bus"), 0, 6, "shufflenet_v2_x1_0").eval()
    actor.receive(START, to_bytes(model), 0.75, labels)
    actor.receive(START, to_bytes(better), 0.8, labels)
    weights, accuracy = actor.send(JOB, ONE)
    assert (torch.equal(from_bytes(weights).head.weight, better.head.weight), accuracy) == (True, 0.8)
    assert actor.stop(JOB).share_milli == 0
    same = ExemplarMemory().update(from_bytes(weights), labels.training.crops)
    assert np.array_equal(actor.memory().exemplars().crops, same.exemplars().crops)
    actor.end()


def test_weights_that_cannot_be_read_or_whose_labels_are_gone_fail_their_job(actor, model, labels):
    actor.receive(START, b"no weights", 0.75, labels)
    (failed,) = told(actor, ev.RetrainFailed)
    assert (failed.job, "safetensors" in failed.reason) == (JOB, True)
    with pytest.raises(LookupError):
        actor.send(JOB, ONE)
    assert actor.stop(JOB).share_milli == 0
    actor.receive(START, to_bytes(model), 0.75, None)
    (failed,) = told(actor, ev.RetrainFailed)
    assert failed.reason == "there are no labels to train on"
    assert actor.memory().size == 0


class Trainer:
    """Fake retraining actor that records its calls."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        def remote(*arguments):
            if name != "poll":
                self.asked.append((name, *arguments))
            return ("first", 0.8) if name == "send" else object()

        method = SimpleNamespace(remote=remote)
        method.options = lambda **_options: method
        return method


@pytest.fixture
def ledger():
    return ShareLedger((1000,), lambda _holder: 0, PATIENCE, 1)


@pytest.fixture
def executor(ledger):
    own = StreamActors(None, Trainer(), Trainer(), "base", "base", BASE_VERSION)
    actors = SimpleNamespace(streams={CAM: own}, preparation=Trainer())
    ready = {CAM: Ready("settings")}
    made = RayExecutor(actors, ready, [], RunClock(0), lambda _stream, _labels: None, ledger)
    made._materials._labels[CAM] = "labels"
    return made


def bring(executor, *accuracies, over=False):
    """Brings as many epochs as accuracies; the weights of the best are made only on request."""
    best = max(range(len(accuracies)), key=lambda place: (accuracies[place], place))
    made = RemoteCheckpoint(f"weights {best + 1}".encode(), accuracies[best], best + 1)
    executor.bring(START, accuracies, lambda: made, over)


def adopted(executor):
    trainer = executor._actors.streams[CAM].retraining
    return [asked[3:5] for asked in trainer.asked if asked[0] == "receive"]


def heard(executor):
    events, executor._outbox = executor._outbox, []
    return [(type(event), getattr(event, "epoch", None)) for event in events]


def test_each_epoch_that_comes_is_told_once_and_with_the_last_the_end(executor):
    bring(executor, 0.7)
    (progress,) = executor._outbox
    assert (progress.job, progress.epoch, progress.validation_accuracy, progress.gpu_s) == (JOB, 1, 0.7, 0.0)
    assert heard(executor) == [(ev.RetrainProgress, 1)]
    bring(executor, 0.7, 0.8)
    assert heard(executor) == [(ev.RetrainProgress, 2), (ev.RetrainFinished, None)]
    bring(executor, 0.7, 0.8, over=True)
    assert heard(executor) == []


def test_what_was_brought_is_adopted_without_a_share_when_it_is_to_serve_and_not_before(executor, ledger):
    trainer = executor._actors.streams[CAM].retraining
    bring(executor, 0.7)
    assert trainer.asked == []
    executor.execute([cmd.ServeModel(CAM, JOB, 1)])
    asked, (_, *handed_over) = trainer.asked
    assert asked == ("receive", CAM, START, b"weights 1", 0.7, "labels")
    # Ray calls ``send`` once its last argument is available.
    assert handed_over[:4] == [CAM, JOB, ONE, []] and handed_over[4] in executor._errands
    assert (ledger.holders, ledger.free_milli(0)) == ((), 1000)


def test_only_better_weights_are_adopted_again(executor):
    bring(executor, 0.7)
    executor.execute([cmd.ServeModel(CAM, JOB, 1)])
    bring(executor, 0.7, 0.6, over=True)
    assert adopted(executor) == [(b"weights 1", 0.7)]
    bring(executor, 0.7, 0.8, over=True)
    assert adopted(executor) == [(b"weights 1", 0.7), (b"weights 2", 0.8)]


def test_of_one_that_is_stopped_what_is_here_serves_and_is_learnt_by_heart(executor):
    bring(executor, 0.7)
    executor.execute([cmd.ServeModel(CAM, JOB, 1), cmd.StopRetraining(CAM, JOB)])
    assert adopted(executor) == [(b"weights 1", 0.7)]
    executor.execute([cmd.StopRetraining(CAM, JobId(8))])
    assert adopted(executor) == [(b"weights 1", 0.7)]
    bring(executor, 0.7)
    executor.execute([cmd.KeepServing(CAM, JOB, 1, "it is worse"), cmd.StopRetraining(CAM, JOB)])
    assert len(adopted(executor)) == 1


def test_a_retraining_that_nobody_keeps_from_the_executor_fails(executor):
    executor.execute([START])
    (failed,) = executor._outbox
    assert (type(failed), failed.job) == (ev.RetrainFailed, JOB)


def test_what_a_retraining_elsewhere_takes_along(executor, monkeypatch):
    material = executor.material(CAM)
    assert executor._actors.streams[CAM].retraining.asked == [("memory", CAM)]
    assert (material.weights, material.labels, material.settings) == ("base", "labels", "settings")
    monkeypatch.setattr(ray, "get", lambda asked, timeout: (*asked[:2], "memory"))
    fetched = material.fetch(5.0)
    assert (fetched.weights, fetched.labels, fetched.memory) == ("base", "labels", "memory")


def test_what_is_lost_or_late_is_said_in_a_sentence(monkeypatch):
    material = MaterialToFetch("weights", "labels", "memory", "settings")

    def fails_with(error):
        def fail(_asked, timeout):
            raise error

        monkeypatch.setattr(ray, "get", fail)

    fails_with(GetTimeoutError())
    with pytest.raises(TimeoutError, match="not come within 2 s"):
        material.fetch(2.0)
    fails_with(RayActorError())
    with pytest.raises(LookupError, match="is lost"):
        material.fetch(2.0)
    with pytest.raises(LookupError, match="no labels"):
        MaterialToFetch("weights", None, "memory", "settings").fetch(2.0)
