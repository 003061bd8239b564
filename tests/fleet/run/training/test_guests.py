"""A stream's retraining as a fleet training: bit-identical to the one on its own server."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from crews import EAST, GAMMA, NAMES, WEST, bars, crew_of, parted, run_epochs, wide_trunk

from ekya.core.commands import StartRetraining
from ekya.core.errors import UserError
from ekya.core.units import JobId, StreamId
from ekya.core.weights import Elsewhere
from ekya.fleet.policy.assignment import NodePart
from ekya.fleet.policy.places import JobName
from ekya.fleet.run.live.above_server import guest_task
from ekya.fleet.run.training.material import Material
from ekya.models.edge.architectures import EDGE_MODELS
from ekya.models.edge.checkpoints import from_bytes, to_bytes
from ekya.models.edge.model import build_edge_model
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops
from ekya.models.training.snapshot import Snapshot
from ekya.pipeline.labels import LabelledPart, StreamLabels
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import retraining_of
from ekya.runtime.driver.remote_retrainings import StreamRetrainInputs

FLEET = ("bus", "truck", "person", "car", "tram")
"""Another order of classes than the model's, which lacks trucks.

No crop is of a tram or bus, but one exemplar is of a tram.
"""

WINDOW = 6
CONFIG = replace(GAMMA, data_fraction=0.5)
COMMAND = StartRetraining(StreamId("cam"), JobId(4), WINDOW, CONFIG, 0, 0.5, 0.0, Elsewhere(0))


def in_fleet(crops):
    index = np.array([FLEET.index(name) for name in NAMES])
    return LabelledCrops(crops.crops, index[crops.classes], crops.tracks, crops.t_us)


def part_of(crops):
    return LabelledPart(in_fleet(crops), np.arange(len(crops)), np.zeros((len(crops), 4), np.float32))


@pytest.fixture
def material(monkeypatch):
    monkeypatch.setitem(EDGE_MODELS, "tiny", wide_trunk)
    torch.set_num_threads(1)
    model = build_edge_model(("person", "car"), 0, 7, "tiny").eval()
    remembered = in_fleet(bars(20, 9, 900))
    # One exemplar is of a validation object: it must not train.
    tracks = np.where(np.arange(20) == 3, 500, remembered.tracks)
    classes = np.where(np.arange(20) == 5, FLEET.index("tram"), remembered.classes)
    exemplars = LabelledCrops(remembered.crops, classes, tracks, remembered.t_us)
    labels = StreamLabels(WINDOW - 1, part_of(bars(40, 1)), part_of(bars(30, 3, 500)))
    settings = PreparationSettings(FLEET, 32, 5.0, 40, 77)
    return StreamRetrainInputs(to_bytes(model), labels, ExemplarMemory(20, exemplars), settings)


def at_home(material):
    """Trains on the stream's own server; returns accuracies and the retraining after its last epoch."""
    start = from_bytes(material.weights)
    retraining = retraining_of(
        start, CONFIG, material.labels, material.memory, material.settings, COMMAND.window
    )
    retraining.prepare()
    return [retraining.run_epoch().validation_accuracy for _ in range(CONFIG.epochs)], retraining


def same(one, other):
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("crops", "classes", "tracks", "t_us")
    )


def test_it_takes_along_what_its_own_server_would_train_on(material):
    task = guest_task(JobName("east/cam/6"), COMMAND, material, EAST)
    made = Material.from_task(task)
    _, retraining = at_home(material)
    assert (task.classes, task.seed, task.config) == (("person", "car", "truck"), 77 + WINDOW, CONFIG)
    assert task.home == EAST
    assert list(task.training) == [EAST]
    assert same(made.crops.take(np.arange(made.fresh)), retraining._fresh)
    assert same(made.crops.take(np.arange(made.fresh, len(made.crops))), retraining._replay)
    assert same(made.validation.labelled, retraining._validation)
    assert np.array_equal(made.validation.weights, retraining._weights)
    assert (made.fresh, len(retraining._replay)) == (20, 18)


def test_one_worker_elsewhere_learns_what_its_own_server_would_to_the_bit(material):
    task = guest_task(JobName("east/cam/6"), COMMAND, material, EAST)
    ends, _ = run_epochs(*crew_of(task, parted(NodePart(WEST))), range(CONFIG.epochs))
    accuracies, retraining = at_home(material)
    assert [end.result.validation_accuracy for end in ends] == accuracies
    model = retraining.model()
    expected = model.state_dict()
    trained = Snapshot.from_bytes(ends[-1].snapshot).weights
    for name, of in trained.items():
        assert torch.equal(of, expected[name.replace("blocks.0.", f"blocks.{len(model.blocks) - 1}.")])


def test_damaged_weights_are_refused(material):
    with pytest.raises(UserError, match="safetensors"):
        guest_task(JobName("east/cam/6"), COMMAND, replace(material, weights=b"none"), EAST)
