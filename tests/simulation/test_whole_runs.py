"""Whole runs of the emulated world: a night, data sets from folder to score, and the public Γ."""

import json

import pytest
import waymo_sample
import yaml
from draw_samples import draw_cityscapes

from ekya import cli
from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.core.commands import StartRetraining
from ekya.models.edge.checkpoints import load_model
from ekya.results.finalize import score_run
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.trace_file import read_trace
from ekya.simulation.emulated.run import emulate

# A scripted night


pytestmark = [pytest.mark.live, pytest.mark.long]

NIGHT = {"event": "night", "at_s": 6, "for_s": 6, "brightness": 0.2, "noise": 10}


def scores(folder, script):
    """Returns accuracy and counted objects by window, for one shipped camera in windows of 6 s."""
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"window_s": 6, "windows": 2, "gpus": 1, "preparation": {"share_milli": 500, "fraction": 0.15}}
    raw["streams"] = [raw["streams"][3] | {"play": {"script": script}}]
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(raw))
    fleet = load_fleet(path)
    run = RunFolder.create_numbered(folder, "run")
    emulate(run, fleet, "no-retrain", 3, lambda _batch, _turn: None)
    (score,) = score_run(run, fleet).values()
    return [window.accuracy for window in score.windows], [window.counted for window in score.windows]


def test_night_lowers_accuracy_and_loses_no_object(tmp_path):
    (tmp_path / "day").mkdir()
    (tmp_path / "night").mkdir()
    day, shown = scores(tmp_path / "day", [])
    night, still_shown = scores(tmp_path / "night", [NIGHT])
    assert still_shown == shown
    assert night[0] == day[0]
    assert night[1] < day[1] - 0.1


# A labelled data set


def test_prepared_city_runs_compares_and_records(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    draw_cityscapes(tmp_path / "data", {"aachen": 24, "ulm": 24}, size=(320, 160), cut_s=12)
    (tmp_path / "data/leftImg8bit/train/ulm/ulm_000005_000019_leftImg8bit.png").write_bytes(b"")

    assert cli.main(["replay", "cityscapes", "data", "--window", "14", "--json", "-"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert {name: stream["damaged_frames"] for name, stream in told["streams"].items()} == {
        "aachen": 0,
        "ulm": 1,
    }
    assert all(stream["counted_objects"] > 0 for stream in told["streams"].values())
    compared = ["--schedulers", "ekya,no-retrain", "--windows", "2"]
    assert cli.main(["replay", "cityscapes", "data", *compared]) == 0
    arguments = ["--families", "1", "--windows", "2", "--streams", "ulm", "--out", "ulm.parquet"]
    assert cli.main(["profile", "cityscapes.yaml", *arguments]) == 0
    assert [stream.stream for stream in read_trace(tmp_path / "ulm.parquet").streams] == ["ulm"]


# Waymo segments in both versions


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


@pytest.mark.virtual
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


# Γ of the public implementation


@pytest.mark.virtual
def test_emulated_public_gamma_keeps_the_old_head(tmp_path):
    """One camera that shows a new scene from the start, in two short windows."""
    fleet = load_fleet(shipped_path("datasets/synthetic_city/public_gamma.yaml"))
    camera = fleet.streams[0]
    scene = camera.source.scenes[1].model_copy(update={"at_s": 0})
    camera = camera.model_copy(
        update={"source": camera.source.model_copy(update={"fps": 4, "scenes": (scene,)})}
    )
    fleet = fleet.model_copy(update={"streams": (camera,), "windows": 2, "window_s": 12.0})
    folder = RunFolder.create_numbered(tmp_path, "run")
    emulate(folder, fleet, "ekya", 3, lambda batch, step: None)

    _, _, turns = read_journal(folder.journal)
    started = [c for turn in turns for c in turn.commands if isinstance(c, StartRetraining)]
    assert started
    widths = {str(command.config.head_width) for command in started}
    assert widths <= {"64", "1024"}
    newest = max(
        (folder.path / "models" / "cam-1").glob("*.safetensors"), key=lambda path: path.stat().st_mtime
    )
    assert "0" in load_model(newest).kept_heads
