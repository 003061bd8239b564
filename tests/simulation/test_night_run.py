"""Test of a scripted night in the emulated world: accuracy falls, and nothing else changes."""

import pytest
import yaml

from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.results.finalize import score_run
from ekya.results.storage.run_folder import RunFolder
from ekya.simulation.emulated.run import emulate

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
