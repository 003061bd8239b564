"""Live run of every kind of data set on Ray actors: replayed in real time, labelled, retrained, scored."""

import json

import pytest
import waymo_sample
import yaml
from draw_samples import draw_cityscapes, draw_image_folder, draw_sample_list

from ekya import cli
from ekya.config.shipped import shipped_path
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions

pytestmark = [pytest.mark.live, pytest.mark.long]

CLASSES = ("person", "car", "bicycle")
"""Classes that all data sets show."""

WINDOW_S, WINDOWS = 20, 2
SIZE = (320, 160)
RATES = {"crops": 5, "listed": 10, "street": 5, "waymo": 10}
"""Frames per second, by stream."""


def sources(folder):
    """Creates one source of each kind, longer than the run; returns their fleet file entries."""
    seconds = WINDOW_S * WINDOWS + 2
    draw_cityscapes(folder / "city", {"aachen": seconds * RATES["street"]}, size=SIZE)
    draw_sample_list(folder / "list", "south", seconds * RATES["listed"], size=SIZE, video=True)
    draw_image_folder(folder / "crops", seconds * RATES["crops"] // 3)
    for segment in waymo_sample.sample_segments(1, seconds * RATES["waymo"], SIZE):
        waymo_sample.write_v2(folder / "waymo", segment)
    return {
        "crops": {"kind": "image_folder", "root": "crops", "fps": RATES["crops"]},
        "listed": {"kind": "sample_list", "samples": "list/south.csv", "video": "list/south.mp4"},
        "street": {"kind": "cityscapes", "root": "city", "city": "aachen", "seconds_per_frame": 0.2},
        "waymo": {"kind": "waymo", "root": "waymo", "location": "location_sf"},
    }


def test_replay_of_every_data_set_loses_no_frame(tmp_path, capfd):
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"name": "sets", "classes": list(CLASSES), "gpus": 1.0}
    (tmp_path / "map.yaml").write_text(yaml.safe_dump({name: [name] for name in CLASSES}))
    raw["golden"] |= {"class_map": "map.yaml"}
    raw |= {"window_s": WINDOW_S, "windows": WINDOWS, "preparation": {"share_milli": 600}}
    raw["streams"] = [{"id": stream, "source": source} for stream, source in sources(tmp_path).items()]
    raw["streams"][0]["play"] = {"script": [{"event": "night", "at_s": 22, "for_s": 5}]}
    (tmp_path / "sets.yaml").write_text(yaml.safe_dump(raw))

    arguments = ["--runs", str(tmp_path / "runs"), "--no-dashboard", "--json", "-"]
    assert cli.main(["replay", str(tmp_path / "sets.yaml"), *arguments]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["world"] == "live"
    assert told["frames"]["lost"] == 0
    assert {name: len(of["windows"]) for name, of in told["streams"].items()} == dict.fromkeys(RATES, WINDOWS)
    folder = RunFolder(tmp_path / "runs" / "sets")
    for stream, of in told["streams"].items():
        frames = read_predictions(folder.predictions(stream)).frame
        assert len(frames) == pytest.approx(RATES[stream] * WINDOW_S * WINDOWS, abs=2), stream
        assert of["counted_objects"] + of["excluded_objects"] > 0, stream
        # Waymo's sample shows the same three objects all the time, and labelled ones do not count.
        assert stream == "waymo" or of["mean_accuracy"] > 0.5, stream
    assert told["labelling_gpu_s"] > 0
    assert told["retrainings"]["started"] >= 1
    assert [cue["event"] for cue in told["script"]] == ["night"]
