"""Live runs with scripts: real actors and processes, and the events of the script."""

import json

import pytest
import yaml
from live_runs import replayed
from rich.console import Console

from ekya.config.fleet_reading import load_fleet
from ekya.config.run_options import RunOptions
from ekya.config.shipped import shipped_path
from ekya.core import events as ev
from ekya.core.commands import BeginPreparation, SetInference
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions
from ekya.runtime.driver.live import run_live

pytestmark = [pytest.mark.live, pytest.mark.long]

S = 1_000_000


@pytest.fixture(params=["stream", "gpu"])
def fleet(request, tmp_path):
    """Two cameras of the shipped fleet: the first is lost for a while, the second joins later."""
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"name": "two", "window_s": 12, "windows": 3, "gpus": 1.0}
    raw["preparation"] = {"share_milli": 700, "fraction": 0.15}
    raw["processes"] = request.param
    raw["streams"] = raw["streams"][:2]
    scripts = ([{"event": "lost", "at_s": 16, "for_s": 8}], [{"event": "joins", "at_s": 10}])
    for stream, script in zip(raw["streams"], scripts, strict=True):
        stream["source"]["fps"] = 4
        stream["play"] = {"speed": 2, "script": script}
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(raw))
    return load_fleet(path)


def test_scripted_cameras_join_are_lost_and_come_back(fleet, tmp_path):
    options = RunOptions(runs=tmp_path / "runs", dashboard=False)
    folder = RunFolder(run_live(fleet, options, Console(stderr=True)))
    turns = replayed(folder)

    def times_s(kind, stream):
        return [
            event.t_us / S
            for turn in turns
            for event in turn.events
            if isinstance(event, kind) and event.stream == stream
        ]

    assert (times_s(ev.StreamAdded, "cam-1"), times_s(ev.StreamAdded, "cam-2")) == ([0.0], [5.0])
    (lost_s,), (back_s,) = times_s(ev.StreamLost, "cam-1"), times_s(ev.StreamBack, "cam-1")
    assert 8.0 <= lost_s <= back_s
    assert back_s >= 12.0
    times_us = read_predictions(folder.predictions("cam-1")).t_us
    assert not ((times_us >= 8 * S) & (times_us < 12 * S)).any()
    assert read_predictions(folder.predictions("cam-2")).t_us[0] >= 5 * S

    commands = [(turn.now_us / S, command) for turn in turns for command in turn.commands]
    given_s = [at_s for at_s, one in commands if isinstance(one, SetInference) and one.stream == "cam-2"]
    assert given_s[0] >= 5.0
    prepared = {
        one.window: [s.stream for s in one.streams]
        for _, one in commands
        if isinstance(one, BeginPreparation) and one.round == 0  # others answer drifts
    }
    assert prepared[2] == ["cam-1", "cam-2"]
    assert times_s(ev.ModelSwapped, "cam-1") or times_s(ev.ModelSwapped, "cam-2")
    answers = [read_predictions(folder.predictions(cam)) for cam in ("cam-1", "cam-2")]
    assert any(answer.model_version.max() > 0 for answer in answers), "models swap where they serve"
    summary = json.loads(folder.summary.read_text())
    assert summary["frames"]["lost"] == 0
    assert summary["streams"]["cam-1"]["lost_s"] == pytest.approx(back_s - lost_s, abs=0.01)
