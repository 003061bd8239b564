"""Whole runs of the emulated world, with real frames, real models and real training."""

import json

import pytest
import yaml

from ekya.config import RunOptions, load_fleet
from ekya.control.replay import replay
from ekya.core.events import ModelSwapped
from ekya.journal import read_journal
from ekya.runfolder import RunFolder
from ekya.scheduling.registry import make_scheduler
from ekya.shipped import shipped_path
from ekya.sim.compare import compare
from ekya.sim.emulated import emulate

pytestmark = pytest.mark.live


@pytest.fixture
def fleet(tmp_path):
    """Two cameras of the shipped fleet, one of which drifts at once, in short windows."""
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"name": "two", "window_s": 12, "windows": 2, "gpus": 1.2}
    raw["preparation"] = {"share_milli": 900, "fraction": 0.15}
    raw["retraining"] |= {"epochs": [2], "data_fractions": [1.0]}
    raw["streams"] = raw["streams"][:2]
    for stream in raw["streams"]:
        stream["source"] |= {"fps": 4, "scenes": stream["source"]["scenes"][1:2]}
        stream["source"]["scenes"][0]["at_s"] = 0
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(raw))
    return load_fleet(path)


def quietly(_batch, _turn):
    """Nobody watches."""


def test_two_runs_with_one_seed_give_the_same_summary_to_the_byte(fleet, tmp_path):
    written = []
    for name in ("a", "b"):
        folder = RunFolder.create(tmp_path, name)
        emulate(folder, fleet, "thief", 3, quietly)
        summary = json.loads(folder.summary.read_text())
        assert summary.pop("host")["wall_s"] > 0
        written.append((json.dumps(summary), folder.journal.read_bytes()))
    assert written[0] == written[1]

    summary = json.loads(written[0][0])
    assert summary["frames"]["lost"] == 0
    assert summary["frames"]["arrived"] == 2 * 2 * 12 * 4
    assert summary["retrainings"]["started"] >= 1
    assert summary["labelling_gpu_s"] > 0
    assert summary["profiling_gpu_s"] > 0

    name, constants, turns = read_journal(RunFolder(tmp_path / "a").journal)
    scheduler = make_scheduler(name)
    replayed = list(replay(turns, constants, scheduler.needs, scheduler.plan))
    assert len(replayed) == len(turns)
    assert all(turn.same for turn in replayed)


@pytest.mark.long
@pytest.mark.parametrize(("name", "windows"), [("cloud:up=20:down=200", {1, 2}), ("reuse", {2})])
def test_weights_from_elsewhere_are_trained_and_serve(name, windows, fleet, tmp_path):
    folder = RunFolder.create(tmp_path, "away")
    emulate(folder, fleet.model_copy(update={"windows": 3}), name, 3, quietly)
    _, _, turns = read_journal(folder.journal)
    events = [event for turn in turns for event in turn.events]
    swapped = [event for event in events if isinstance(event, ModelSwapped)]
    assert {event.stream for event in swapped} == {"cam-1", "cam-2"}
    assert {event.t_us // 12_000_000 for event in swapped} == windows
    summary = json.loads(folder.summary.read_text())
    assert summary["retrainings"]["started"] == summary["retrainings"]["finished"] == len(swapped)
    assert all(stream["gain"] > 0 for stream in summary["streams"].values())


def test_compared_schedulers_are_scored_on_the_same_objects(fleet, tmp_path):
    result = compare(fleet, ("thief", "no-retrain"), (0,), RunOptions(runs=tmp_path))
    assert set(result["mean"]) == {"thief", "no-retrain"}
    assert [run["scheduler"] for run in result["runs"]] == ["thief", "no-retrain"]
    counted = [[own["counted_objects"] for own in run["streams"].values()] for run in result["runs"]]
    assert counted[0] == counted[1]
    first = [run["streams"]["cam-1"]["windows"][0]["accuracy"] for run in result["runs"]]
    assert first[0] == pytest.approx(first[1], abs=0.05)
    assert result["runs"][1]["retrainings"]["started"] == 0
    # It serves the base model, so on the same frames only those that were skipped can differ.
    for stream in result["runs"][1]["streams"].values():
        assert stream["gain"] == pytest.approx(0.0, abs=0.03)
