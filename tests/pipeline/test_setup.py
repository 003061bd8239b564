"""Tests of deriving the loop's constants and the first λ from a fleet file."""

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from ekya.config.fleet_file import DEFAULT_FLEET
from ekya.config.fleet_reading import load_fleet
from ekya.config.fleet_sections import RetrainingConfig, StreamConfig
from ekya.config.shipped import shipped_path
from ekya.control.options import StreamTerms
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.models.edge.checkpoints import save_model
from ekya.models.edge.model import build_edge_model
from ekya.models.edge.spec import EdgeSpec
from ekya.models.golden.spec import GoldenSpec
from ekya.models.proposer import DetectedBoxes
from ekya.pipeline.base_model import base_model
from ekya.pipeline.costs import load_card
from ekya.pipeline.setup import first_inference_options, loop_options, proposer_for
from ekya.simulation.emulated.run import emulated_options

CAMERA = StreamId("cam-2")
COSTS = {24: 0.001, 32: 0.002}


def fleet(**terms):
    shipped = load_fleet(shipped_path(DEFAULT_FLEET))
    streams = tuple(s.model_copy(update=terms if s.id == CAMERA else {}) for s in shipped.streams)
    return shipped.model_copy(update={"streams": streams})


def test_loop_options_hold_terms():
    options = loop_options(fleet(weight=2.5, max_age_s=0.75), (), 0, 1, 2000)
    assert options.terms == (StreamTerms(CAMERA, 2.5, 750_000),)


def test_inference_options_impossible_latency_limit_is_refused():
    """At 10 frames a second an answer is used for at least 0.1 s."""
    assert first_inference_options(fleet(max_age_s=0.3), CAMERA, 10.0, COSTS)
    with pytest.raises(
        UserError, match=r"'streams\.cam-2\.max_age_s': 0\.05 is too little.* use at least 0\.1"
    ):
        first_inference_options(fleet(max_age_s=0.05), CAMERA, 10.0, COSTS)


def begins_with(weights, model="mobilenet_v3_small"):
    """Returns the shipped fleet with another edge model and initial weights."""
    return fleet().model_copy(update={"edge": EdgeSpec(model=model, weights=weights)})


@pytest.mark.parametrize("stored", ["safetensors", "pth"])
def test_base_model_imagenet_weights_get_a_fresh_head(tmp_path, stored):
    path = tmp_path / f"imagenet.{stored}"
    state = torchvision.models.mobilenet_v3_small(weights=None).state_dict()
    save_file(state, path) if stored == "safetensors" else torch.save(state, path)
    model = base_model(begins_with(path), seed=3)
    assert (model.architecture, model.classes) == ("mobilenet_v3_small", fleet().classes)
    assert torch.equal(model.blocks[0][0].weight, state["features.0.0.weight"])
    assert torch.equal(model.head.weight, base_model(begins_with(path), seed=3).head.weight)


def test_base_model_own_weights_keep_their_head(tmp_path):
    path = tmp_path / "base.safetensors"
    trained = build_edge_model(fleet().classes, 0, 7, "mobilenet_v3_small")
    save_model(trained, path)
    assert torch.equal(base_model(begins_with(path), seed=3).head.weight, trained.head.weight)


def test_base_model_of_other_architecture_is_refused(tmp_path):
    path = tmp_path / "base.safetensors"
    save_model(build_edge_model(fleet().classes, 0, 7, "shufflenet_v2_x1_0"), path)
    with pytest.raises(UserError, match=r"base\.safetensors: is a shufflenet_v2_x1_0, and .*'edge\.model'"):
        base_model(begins_with(path), seed=3)
    torch.save(torchvision.models.mobilenet_v3_large(weights=None).state_dict(), tmp_path / "large.pth")
    with pytest.raises(UserError, match=r"large\.pth: does not fit the mobilenet_v3_small"):
        base_model(begins_with(tmp_path / "large.pth"), seed=3)


@pytest.mark.parametrize("name", ["cut.safetensors", "cut.pth"])
def test_base_model_damaged_weights_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{}")
    with pytest.raises(UserError, match=name):
        base_model(begins_with(tmp_path / name), seed=3)


def test_card_charges_for_the_fleets_edge_model():
    heads = fleet().model_copy(update={"retraining": RetrainingConfig(trainable_blocks=(0,))})
    card = load_card()
    costs = [
        emulated_options(heads, card.of(model), 0).family_costs[0]
        for model in ("resnet18", "mobilenet_v3_small")
    ]
    assert costs[0].family == costs[1].family
    assert costs[0].prepare_gpu_s != costs[1].prepare_gpu_s


def test_proposer_of_a_video_is_the_golden_detector(monkeypatch):
    monkeypatch.setattr("ekya.pipeline.setup.open_detector_of", lambda *given: given)
    stream = StreamConfig.model_validate({"id": "bus", "source": {"kind": "video", "files": ["bus.mp4"]}})
    golden = {"golden": GoldenSpec(model="fasterrcnn_mobilenet_v3_large_320_fpn")}
    assert isinstance(proposer_for(fleet().model_copy(update=golden), stream), DetectedBoxes)
