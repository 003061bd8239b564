"""Tests of choosing a fleet's open sizes for a machine."""

import pytest
import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import get_model

from ekya.config.fleet_file import DEFAULT_FLEET, OPEN
from ekya.config.fleet_reading import dump_fleet, load_fleet, parse_fleet
from ekya.config.fleet_sections import KeptFrames, frame_sides
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.fleet.servers_file import load_servers
from ekya.models.golden.resnext import build_resnext29
from ekya.models.golden.spec import CLASSIFIERS
from ekya.pipeline.collector import BURST_FRAMES, SAMPLED_FRAMES
from ekya.pipeline.costs import fitted_by_card
from ekya.planning.sizing.choose_sizes import DRAWN_FRAMES
from ekya.planning.sizing.fleet_sizes import MachineSize


def fleet_of(tmp_path, cameras, **said):
    streams = [
        {"id": f"cam-{number}", "source": {"kind": "synthetic_city", "seed": number, "fps": 25}}
        for number in range(1, cameras + 1)
    ]
    return parse_fleet({"classes": ["car"], "golden": {}, "streams": streams, **said}, "test", (tmp_path,))


def said(fleet):
    return {key for key in OPEN if fleet.is_set(key)}


@pytest.mark.parametrize("cameras", [1, 4, 10, 20, 30])
@pytest.mark.parametrize("milli", [None, 1000, 2000, 64_000])
def test_fitted_sets_all_sizes_and_is_stable(tmp_path, cameras, milli):
    fleet, _ = fitted_by_card(fleet_of(tmp_path, cameras), MachineSize(milli))
    assert said(fleet) == set(OPEN)
    (tmp_path / "fleet.yaml").write_text(dump_fleet(fleet))
    again = load_fleet(tmp_path / "fleet.yaml")
    assert again == fleet
    assert fitted_by_card(again, MachineSize(milli))[0] == fleet


def test_fitted_needs_overload_for_too_many_cameras(tmp_path):
    with pytest.raises(UserError, match=r"gpus: 30 cameras are too many .* of them fit"):
        fitted_by_card(fleet_of(tmp_path, 30), MachineSize(200))
    fleet, gave_up = fitted_by_card(fleet_of(tmp_path, 30), MachineSize(200), overload=True)
    assert (
        "overload: not even one frame a second of each camera can be analysed; frames are dropped" in gave_up
    )
    (tmp_path / "fleet.yaml").write_text(dump_fleet(fleet))
    assert load_fleet(tmp_path / "fleet.yaml") == fleet


@pytest.mark.parametrize("finest", [96, 352])
@pytest.mark.parametrize("cameras", [1, 4, 10])
def test_fitted_chooses_sizes_for_detectors(tmp_path, data_dir, cameras, finest):
    golden = {"model": "onnx", "weights": data_dir / "weights" / "FastestDet.onnx"}
    detect = {"golden": golden, "edge": {"task": "detect", "resolution": finest}}
    fleet, _ = fitted_by_card(fleet_of(tmp_path, cameras, **detect), MachineSize(2000))
    assert said(fleet) == set(OPEN)
    assert fleet.inference.resolutions == frame_sides(finest)
    assert fleet.retraining.trainable_blocks == (0, 1, 3)
    assert fleet.preparation.frames is KeptFrames.DRAWN
    assert fleet.min_accuracy == 0.4
    (tmp_path / "fleet.yaml").write_text(dump_fleet(fleet))
    again = load_fleet(tmp_path / "fleet.yaml")
    assert again == fleet
    assert fitted_by_card(again, MachineSize(2000))[0] == fleet


def test_fitted_prepares_few_frames_in_a_shorter_window(tmp_path, data_dir):
    golden = {"model": "onnx", "weights": data_dir / "weights" / "FastestDet.onnx"}
    windows = [
        fitted_by_card(
            fleet_of(
                tmp_path,
                4,
                edge={"task": "detect"},
                golden={**golden, "frames_per_window": frames},
                preparation={"profiler": "paper"},
            ),
            MachineSize(2000),
        )[0].window_s
        for frames in (24, 48)
    ]
    assert windows[0] < windows[1]


@pytest.mark.parametrize("name", ["fleet", "replay", "holdout"])
def test_fitted_keeps_the_set_sizes_of_shipped_fleets(name):
    before = load_fleet(shipped_path(f"datasets/synthetic_city/{name}.yaml"))
    after, gave_up = fitted_by_card(before)
    assert gave_up == ()
    assert after.preparation.streams == len(before.streams)
    open_before = {key for key in OPEN if not before.is_set(key)}
    if name == "fleet":
        assert open_before == {
            "inference.golden_every",
            "quantum_milli",
            "steal_milli",
            "preparation.streams",
            "preparation.frames",
        }
        assert (after.quantum_milli, after.steal_milli) == (50, 100)
    whole = before.model_dump(mode="json")
    for key in said(before):
        part, _, name = key.rpartition(".")
        now = after.model_dump(mode="json")
        assert (now[part] if part else now)[name] == (whole[part] if part else whole)[name]


@pytest.mark.parametrize("name", ["servers", "servers_overloaded"])
def test_fitted_keeps_shipped_servers(name):
    for server in load_servers(shipped_path(f"datasets/synthetic_city/{name}.yaml")).servers:
        fleet, gave_up = fitted_by_card(server.fleet)
        assert fleet.preparation.streams == len(fleet.streams)
        assert not any("lowered" in sentence for sentence in gave_up)


@pytest.mark.parametrize("milli", [1000, 500])
def test_fitted_on_one_core_and_half_of_one_lowers_gpus(milli):
    fleet, gave_up = fitted_by_card(load_fleet(shipped_path(DEFAULT_FLEET)), MachineSize(milli))
    assert milli / 2 < fleet.capacity_milli < milli, "a part of the cores decodes video and plans"
    assert gave_up[0].startswith(f"gpus: 1.2 is lowered to {fleet.gpus:g}, of {milli / 1000:g} core")
    assert any(sentence.startswith("λ: at most every ") for sentence in gave_up)


def test_fitted_keeps_gpus_of_the_file(tmp_path):
    for gpus in (0.3, 1, 1.23):
        fleet, _ = fitted_by_card(fleet_of(tmp_path, 4, gpus=gpus), MachineSize(2000))
        assert fleet.gpus == gpus
        assert yaml.safe_load(dump_fleet(fleet))["gpus"] == gpus


def test_classifier_operations_are_those_of_the_networks():
    networks = {"resnext29": (build_resnext29(6).eval(), 32)}
    with torch.device("meta"):
        for name in set(CLASSIFIERS) - set(networks):
            networks[name] = (get_model(name, weights=None).eval(), 224)
    for name, (network, side) in networks.items():
        device = next(network.parameters()).device
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(torch.zeros(1, 3, side, side, device=device))
        assert counter.get_total_flops() == CLASSIFIERS[name].operations


def test_drawn_frames_are_those_of_the_collector():
    assert DRAWN_FRAMES == SAMPLED_FRAMES + BURST_FRAMES
