"""A stream's retraining as a bundle: the same bits as on its own server, and the bytes that were offered."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from bundles import GAMMA, NAMES, bars, bundle_with, wide_trunk

from ekya.core.commands import StartRetraining
from ekya.core.configs import InferenceConfig
from ekya.core.errors import UserError
from ekya.core.speed import LINEAR
from ekya.core.units import JobId, StreamId
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.core.weights import Elsewhere
from ekya.fleet.policy.offers import CropCounts, offers
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.link_sizes import sizes_with
from ekya.fleet.run.live.service_lending import bundle_of
from ekya.fleet.run.training.bundle_file import pack_bundle
from ekya.models.edge.architectures import EDGE_MODELS
from ekya.models.edge.checkpoints import to_bytes
from ekya.models.edge.model import build_edge_model
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops
from ekya.models.training.trainer import Compute
from ekya.pipeline.labels import LabelledPart, StreamLabels
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import retraining_of
from ekya.planning.schedulers.registry import make_scheduler
from ekya.runtime.driver.remote_retrainings import StreamRetrainInputs

FLEET = ("bus", "truck", "person", "car", "tram")
"""Another order of classes than the model's, which lacks trucks."""

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
    exemplars = LabelledCrops(remembered.crops, remembered.classes, tracks, remembered.t_us)
    labels = StreamLabels(WINDOW - 1, part_of(bars(40, 1)), part_of(bars(30, 3, 500)))
    settings = PreparationSettings(FLEET, 32, 5.0, 40, 77)
    return StreamRetrainInputs(to_bytes(model), labels, ExemplarMemory(20, exemplars), settings)


def test_elsewhere_it_learns_what_it_would_on_its_own_server_to_the_bit(material) -> None:
    def trained(retraining):
        retraining.prepare_training()
        return [retraining.run_epoch() for _ in range(CONFIG.epochs)], retraining.model().state_dict()

    theirs, there = trained(bundle_of(COMMAND, material).make_retraining(Compute()))
    start = build_edge_model(("person", "car"), 0, 7, "tiny").eval()
    ours, here = trained(
        retraining_of(start, CONFIG, material.labels, material.memory, material.settings, WINDOW)
    )
    assert theirs == ours
    assert all(torch.equal(of, there[name]) for name, of in here.items())


def test_damaged_weights_are_refused(material) -> None:
    with pytest.raises(UserError, match="safetensors"):
        bundle_of(COMMAND, replace(material, weights=b"none"))


@pytest.mark.parametrize("blocks", [0, 1, 4])
def test_what_was_offered_is_what_crosses_the_link(model, blocks) -> None:
    config = replace(GAMMA, trainable_blocks=blocks)
    bundle = bundle_with(model, config, exemplars=20)
    serves = (InferenceOption(InferenceConfig(1, 32), 1.0, 200),)
    stream = StreamView(StreamId("cam"), 0.5, (RetrainOption(config, 0.8, 20.0),), serves)
    view = WindowView(0, 200_000_000, 1000, 50, 100, 0.0, (stream,), LINEAR)
    sizes, counts = sizes_with(model, side=32, classes=len(NAMES)), {stream.stream: CropCounts(60, 30, 20)}
    (offer,) = offers(SiteName("east"), view, make_scheduler("thief").plan, counts, sizes)
    # The file also names its arrays.
    assert offer.sent_mb() == pytest.approx(len(pack_bundle(bundle)) / 1e6, rel=0.01)
    retraining = bundle.make_retraining(Compute())
    retraining.prepare_training()
    retraining.run_epoch()
    # The snapshot also holds names of weights and normalisation statistics.
    assert len(retraining.take_snapshot()) / 1e6 == pytest.approx(offer.back_mb, rel=0.05, abs=0.002)
