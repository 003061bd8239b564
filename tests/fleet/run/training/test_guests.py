"""A stream's retraining as a fleet training: the same bits as on its own server, and the bytes offered."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from crews import (
    EAST,
    GAMMA,
    NAMES,
    SITES,
    WEST,
    bars,
    crew_of,
    parted,
    process,
    run_epochs,
    task_of,
    wide_trunk,
)

from ekya.core.commands import StartRetraining
from ekya.core.configs import InferenceConfig
from ekya.core.errors import UserError
from ekya.core.speed import LINEAR
from ekya.core.units import JobId, StreamId
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.core.weights import Elsewhere
from ekya.fleet.policy.assignment import NodePart
from ekya.fleet.policy.offers import CropCounts, offers
from ekya.fleet.policy.places import JobName
from ekya.fleet.run.link_sizes import sizes_with
from ekya.fleet.run.live.above_server import guest_task
from ekya.fleet.run.training.crew import Crew
from ekya.fleet.run.training.dealing import deal
from ekya.fleet.run.training.material import Material
from ekya.fleet.run.training.protocol import FleetNode
from ekya.fleet.run.training.workers import PayloadKind
from ekya.models.edge.architectures import EDGE_MODELS
from ekya.models.edge.checkpoints import from_bytes, to_bytes
from ekya.models.edge.model import build_edge_model
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops
from ekya.models.training.snapshot import Snapshot
from ekya.pipeline.labels import LabelledPart, StreamLabels
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import retraining_of
from ekya.planning.schedulers.registry import make_scheduler
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
    retraining.prepare_training()
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
    assert same(made.crops.select_rows(np.arange(made.fresh)), retraining._fresh)
    assert same(made.crops.select_rows(np.arange(made.fresh, len(made.crops))), retraining._replay)
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


COUNTS = CropCounts(training=60, validation=30, exemplars=20)


class InThisProcess:
    """Source of training processes in this process."""

    def take_process(self, node):
        return process(node.name)


class Counted:
    """Counts megabytes that leave their node, by kind."""

    def __init__(self):
        self.mb = Counter()

    def count_sent(self, origin, target, kind, count):
        if origin != target:
            self.mb[kind] += count / 1e6

    def count_work(self, worker, work):
        pass


@pytest.mark.parametrize("blocks", [0, 1, 4])
def test_a_loan_by_one_host_sends_what_was_offered(model, blocks) -> None:
    config = replace(GAMMA, trainable_blocks=blocks)
    task = task_of(
        model,
        config=config,
        training={EAST: bars(COUNTS.training, 1)},
        validation=bars(COUNTS.validation, 3, 500),
        memory=ExemplarMemory(20, bars(COUNTS.exemplars, 9, 900)),
    )
    assignment, material, counted = parted(NodePart(WEST), server=WEST), Material.from_task(task), Counted()
    nodes = {name: FleetNode(name, SITES[name], name, 300) for name in (EAST, WEST)}
    crew = Crew(material, nodes, InThisProcess(), counted)
    crew.assemble(
        material.lesson_plan(assignment), deal(material.crops_by_node(SITES), assignment), WEST, None
    )
    offer = offered(config, model)
    assert counted.mb[PayloadKind.MODEL] == offer.model_mb
    assert counted.mb[PayloadKind.DATA] == pytest.approx(offer.crops_mb + offer.validation_mb)
    assert counted.mb.total() == pytest.approx(offer.sent_mb(SITES[WEST]))
    for epoch in range(config.epochs):
        _, snapshot = crew.run_epoch(epoch, lambda: False)
        # The snapshot also holds names of weights and normalisation statistics.
        assert len(snapshot.fetch()) / 1e6 == pytest.approx(offer.back_mb, rel=0.05, abs=0.002)
    assert set(counted.mb) == {PayloadKind.MODEL, PayloadKind.DATA}


def offered(config, model):
    serves = (InferenceOption(InferenceConfig(1, 32), 1.0, 200),)
    stream = StreamView(StreamId("cam"), 0.5, (RetrainOption(config, 0.8, 20.0),), serves)
    view = WindowView(0, 200_000_000, 1000, 50, 100, 0.0, (stream,), LINEAR)
    sizes = sizes_with(model, side=32, classes=len(NAMES))
    plan = make_scheduler("thief").plan
    (offer,) = offers(SITES[EAST], view, plan, {stream.stream: COUNTS}, sizes)
    return offer
