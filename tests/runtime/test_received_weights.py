"""Tests of weights of a remote retraining that the stream's trainer receives."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_training import CAM, events_until, stream_retraining

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.units import JobId, ModelVersion
from ekya.core.weights import Elsewhere
from ekya.models.edge.checkpoints import from_bytes, load_model, to_bytes
from ekya.models.edge.model import build_edge_model
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.actors.actor_messages import Mailbox

JOB, ONE = JobId(7), ModelVersion(1)
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
    return SimpleNamespace(training=SimpleNamespace(examples=crops))


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create_numbered(tmp_path, "run")


@pytest.fixture
def mailbox():
    return Mailbox()


@pytest.fixture
def actor(folder, mailbox):
    return stream_retraining(folder, mailbox)


def test_received_weights_are_the_best_of_their_job(actor, model, labels, folder):
    actor.receive_remote_checkpoint(START, to_bytes(model), 0.75, labels)
    weights, accuracy = actor.send_checkpoint(JOB, ONE)
    assert (torch.equal(from_bytes(weights).head.weight, model.head.weight), accuracy) == (True, 0.75)
    assert actor.stop_retraining(JOB).share_milli == 0, "by then its exemplars are chosen"
    kept = actor.exemplar_memory()
    same = ExemplarMemory().update(from_bytes(weights), labels.training.examples)
    assert np.array_equal(kept.exemplars().crops, same.exemplars().crops)
    actor.finish_saving()
    saved = load_model(folder.model(CAM, ONE))
    assert torch.allclose(saved.head.weight, model.head.weight, atol=1e-3)


def test_better_weights_received_later_replace_them(actor, model, labels):
    better = build_edge_model(("car", "bus"), 0, 6, "shufflenet_v2_x1_0").eval()
    actor.receive_remote_checkpoint(START, to_bytes(model), 0.75, labels)
    actor.receive_remote_checkpoint(START, to_bytes(better), 0.8, labels)
    weights, accuracy = actor.send_checkpoint(JOB, ONE)
    assert (torch.equal(from_bytes(weights).head.weight, better.head.weight), accuracy) == (True, 0.8)
    assert actor.stop_retraining(JOB).share_milli == 0
    same = ExemplarMemory().update(from_bytes(weights), labels.training.examples)
    assert np.array_equal(actor.exemplar_memory().exemplars().crops, same.exemplars().crops)
    actor.finish_saving()


def test_unreadable_weights_or_missing_labels_fail_the_job(actor, model, labels, mailbox):
    actor.receive_remote_checkpoint(START, b"no weights", 0.75, labels)
    (failed,) = events_until(mailbox.drain, ev.RetrainFailed)
    assert (failed.job, "safetensors" in failed.reason) == (JOB, True)
    with pytest.raises(LookupError):
        actor.send_checkpoint(JOB, ONE)
    assert actor.stop_retraining(JOB).share_milli == 0
    actor.receive_remote_checkpoint(START, to_bytes(model), 0.75, None)
    (failed,) = events_until(mailbox.drain, ev.RetrainFailed)
    assert failed.reason == "there are no labels to train on"
    assert actor.exemplar_memory().size == 0
