"""`ekya compare --live`: schedulers one after the other, under the same conditions."""

import json

import pytest

from ekya import cli
from ekya.config.fleet_reading import load_fleet
from ekya.results.storage.run_folder import RunFolder

pytestmark = [pytest.mark.live, pytest.mark.long]


def test_compare_live_plays_every_scheduler_with_every_seed(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    asked = ["compare", "--live", "--schedulers", "ekya,thief,uniform", "--seeds", "0,1", "--windows", "3"]
    assert cli.main([*asked, "--json", "result.json"]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    runs = result["runs"]
    played = [(run["scheduler"], run["seed"]) for run in runs]
    assert played == [
        ("ekya", 0),
        ("thief", 0),
        ("uniform", 0),
        ("thief", 1),
        ("uniform", 1),
        ("ekya", 1),
    ], "another one begins with each seed"
    assert {run["world"] for run in runs} == {"live"}
    assert len({(run["gpus"], run["window_s"]) for run in runs}) == 1
    assert all(run["frames"]["lost"] == 0 for run in runs)
    fleets = [load_fleet(RunFolder(tmp_path / run["folder"]).fleet) for run in runs]
    assert len({(fleet.preparation, fleet.inference, fleet.retraining) for fleet in fleets}) == 1
    excluded = [[of["excluded_objects"] for of in run["streams"].values()] for run in runs[:3]]
    assert excluded[0] == excluded[1] == excluded[2], "all are scored on the same objects"
    assert [(pair["above"], pair["below"]) for pair in result["pairs"]] == [
        ("ekya", "thief"),
        ("ekya", "uniform"),
        ("thief", "uniform"),
    ]
    assert "ekya less uniform: " in capfd.readouterr().out
