"""Tests that the card's sample is what its script draws, and opens as the card says."""

from pathlib import Path

import pytest
import waymo_sample
from torchvision.models import get_model_weights

from ekya.config.shipped import shipped_path
from ekya.models.golden.class_map import class_of_each, coco_names
from ekya.streams.datasets.waymo import WaymoSpec
from ekya.streams.datasets.waymo.shots import CLASSES

SAMPLE = Path(waymo_sample.__file__).with_name("sample")


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("location", ["location_sf", "location_phx"])
def test_waymo_sample_opens_in_both_versions(version, location):
    source = WaymoSpec(root=SAMPLE / version, location=location).open(("vehicle", "pedestrian"))
    assert [sorted(truth.classes) for _, truth in source.frames()] == [[0, 1]] * 3
    assert source.damaged == 0


def test_waymo_sample_is_what_its_script_draws(tmp_path):
    for segment in waymo_sample.sample_segments(2, 3, (96, 64)):
        drawn = waymo_sample.write_v1(tmp_path, segment)
        assert drawn.read_bytes() == (SAMPLE / "v1" / drawn.relative_to(tmp_path)).read_bytes()


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("imagenet_to_fleet.yaml", get_model_weights("resnext101_32x8d")["DEFAULT"].meta["categories"]),
        ("coco_to_fleet.yaml", coco_names()),
    ],
)
def test_waymo_class_maps_know_its_classes(file, names):
    found = class_of_each(CLASSES, tuple(names), shipped_path(f"golden_models/{file}"), "the golden model")
    assert set(found.tolist()) == {-1, *range(len(CLASSES))}


def test_waymo_sample_is_small():
    assert sum(file.stat().st_size for file in SAMPLE.rglob("*") if file.is_file()) < 100_000
