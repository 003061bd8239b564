"""Weights of a retraining elsewhere: brought to the executor, adopted by the trainer, served as others."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError

import ekya.runtime.retraining_actor as module
from ekya.config import load_fleet
from ekya.control.resizing import ShareLedger
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.elsewhere import Elsewhere
from ekya.core.ids import BASE_VERSION, JobId, ModelVersion
from ekya.gpu.cpu import CpuShares
from ekya.learning.checkpoints import from_bytes, load_model, to_bytes
from ekya.learning.edge import build_edge_model
from ekya.learning.labelled import LabelledCrops
from ekya.learning.memory import ExemplarMemory
from ekya.runfolder import RunFolder
from ekya.runtime.executor import RayExecutor
from ekya.runtime.fleet_actors import StreamActors
from ekya.runtime.mailbox import RunClock
from ekya.runtime.material import MaterialToFetch
from ekya.runtime.orders import ActorOrders, StreamOrders
from ekya.runtime.ready import Ready
from ekya.runtime.retraining_actor import RetrainingActor
from ekya.runtime.share_changes import PATIENCE
from ekya.shipped import shipped_path

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
    monkeypatch.setattr(module, "stand_back", lambda: None)
    fleet = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))
    folder = RunFolder.create(tmp_path, "run")
    common = ActorOrders(folder, fleet, 0, CpuShares(1), "cpu", (0,) * len(fleet.streams))
    return RetrainingActor(StreamOrders(common, 0, b"", BASE_VERSION))


def told(actor, kind):
    """All events up to the first of a kind."""
    events, until_s = [], time.monotonic() + 5
    while not any(isinstance(event, kind) for event in events):
        assert time.monotonic() < until_s
        events += actor.poll(0.05)
    return events


def test_adopted_weights_are_the_best_of_a_job_that_is_over_and_cost_nothing(actor, model, labels):
    actor.adopt(START, to_bytes(model), 0.75, labels)
    progress, finished = told(actor, ev.RetrainFinished)
    assert (progress.job, progress.epoch, progress.validation_accuracy, progress.gpu_s) == (JOB, 1, 0.75, 0.0)
    assert (finished.job, finished.gpu_s) == (JOB, 0.0)
    weights, accuracy = actor.hand_over(JOB, ONE)
    assert (torch.equal(from_bytes(weights).head.weight, model.head.weight), accuracy) == (True, 0.75)
    assert actor.stop(JOB).share_milli == 0, "by then it has learnt by heart"
    kept = actor.memory()
    same = ExemplarMemory().update(from_bytes(weights), labels.training.crops)
    assert np.array_equal(kept.exemplars().crops, same.exemplars().crops)
    actor.end()
    saved = load_model(actor._orders.common.folder.model(CAM, ONE))
    assert torch.allclose(saved.head.weight, model.head.weight, atol=1e-3)


def test_weights_that_cannot_be_read_or_whose_labels_are_gone_fail_their_job(actor, model, labels):
    actor.adopt(START, b"no weights", 0.75, labels)
    (failed,) = told(actor, ev.RetrainFailed)
    assert (failed.job, "safetensors" in failed.reason) == (JOB, True)
    with pytest.raises(LookupError):
        actor.hand_over(JOB, ONE)
    assert actor.stop(JOB).share_milli == 0
    actor.adopt(START, to_bytes(model), 0.75, None)
    (failed,) = told(actor, ev.RetrainFailed)
    assert failed.reason == "there are no labels to train on"
    assert actor.memory().size == 0


class Trainer:
    """What the executor asks of a retraining actor."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        def remote(*arguments):
            if name != "poll":
                self.asked.append((name, *arguments))
            return ("first", 0.8) if name == "hand_over" else object()

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
    ready = {CAM: Ready("settings", {})}
    made = RayExecutor(actors, ready, [], RunClock(0), lambda _stream, _labels: None, ledger)
    made._materials._labels[CAM] = "labels"
    return made


def test_what_was_brought_is_adopted_without_a_share_and_served(executor, ledger):
    trainer = executor._actors.streams[CAM].retraining
    executor.bring(JOB, b"weights", 0.8)
    executor.execute([START])
    assert trainer.asked == [("adopt", START, b"weights", 0.8, "labels")]
    assert (ledger.holders, ledger.free_milli(0)) == ((), 1000)
    executor.execute([cmd.ServeModel(CAM, JOB, 1)])
    assert trainer.asked[-1] == ("hand_over", JOB, ONE, [])
    asked = len(trainer.asked)
    executor.execute([cmd.StopRetraining(CAM, JOB)])
    assert len(trainer.asked) == asked, "it holds nothing that it could let go of"


def test_a_job_of_which_nothing_was_brought_fails_and_what_was_brought_is_used_once(executor):
    executor.bring(JOB, b"weights", 0.8)
    executor.execute([START, START])
    (failed,) = executor._outbox
    assert (type(failed), failed.job, failed.reason) == (ev.RetrainFailed, JOB, "nobody brought its weights")


def test_what_a_retraining_elsewhere_takes_along(executor, monkeypatch):
    material = executor.material(CAM)
    assert executor._actors.streams[CAM].retraining.asked == [("memory",)]
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
