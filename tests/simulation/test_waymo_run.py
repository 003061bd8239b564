"""Test of a whole run in the emulated world on generated Waymo segments, in both versions."""

import json

import pytest
import waymo_sample
import yaml

from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.results.storage.run_folder import RunFolder
from ekya.simulation.emulated.run import emulate

pytestmark = [pytest.mark.live, pytest.mark.virtual]

SEGMENTS = waymo_sample.sample_segments(4, 60, (320, 200))


def write_fleet(folder):
    """Writes a fleet with one camera of each version; a class map adapts the shipped golden model."""
    for segment in SEGMENTS:
        waymo_sample.write_v1(folder / "v1", segment)
        waymo_sample.write_v2(folder / "v2", segment)
    of_fleet = {"vehicle": ["car", "truck", "bus", "motorcycle"], "pedestrian": ["person"]}
    (folder / "map.yaml").write_text(yaml.safe_dump(of_fleet))
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"name": "waymo", "classes": ["vehicle", "pedestrian"], "window_s": 6, "windows": 2, "gpus": 1.2}
    raw["golden"] |= {"class_map": "map.yaml"}
    raw["retraining"] |= {"epochs": [4], "data_fractions": [1.0], "trainable_blocks": [0]}
    raw["streams"] = [
        {"id": f"sf-{version}", "source": {"kind": "waymo", "root": version, "location": "location_sf"}}
        for version in ("v1", "v2")
    ]
    (folder / "fleet.yaml").write_text(yaml.safe_dump(raw))
    return folder / "fleet.yaml"


@pytest.mark.long
def test_waymo_both_versions_give_same_results(tmp_path):
    folder = RunFolder.create_numbered(tmp_path, "run")
    emulate(folder, load_fleet(write_fleet(tmp_path)), "ekya", 3, lambda _batch, _turn: None)
    summary = json.loads(folder.summary.read_text())
    assert (summary["frames"]["arrived"], summary["frames"]["lost"]) == (2 * 2 * 60, 0)
    assert summary["retrainings"]["started"] >= 1
    assert summary["labelling_gpu_s"] > 0
    for stream in summary["streams"].values():
        assert stream["damaged_frames"] == 0
        # Two objects per frame; those of labelled tracks do not count.
        assert stream["counted_objects"] + stream["excluded_objects"] == 2 * 2 * 60
        assert stream["counted_objects"] > 0
