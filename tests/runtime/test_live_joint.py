"""Live run of two cameras that see the same: real actors retrain one of them for both."""

import json

import pytest
import yaml
from rich.console import Console

from ekya.config.fleet_reading import load_fleet
from ekya.config.run_options import RunOptions
from ekya.config.shipped import shipped_path
from ekya.control.journal_replay import replay
from ekya.core import events as ev
from ekya.core.commands import ServeModel, StartRetraining
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.live import run_live

pytestmark = [pytest.mark.live, pytest.mark.long]


@pytest.fixture
def fleet(tmp_path):
    """The first camera of the shipped fleet twice: both are moved at once. The gate lets all weights pass.

    Five windows, since the planner may find in one of them that a joint retraining does not pay.
    """
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"name": "twins", "windows": 5, "drift": {"joint": True}, "shadow_gate": {"margin": 0.99}}
    first = raw["streams"][0]
    raw["streams"] = [first, {**first, "id": "twin", "source": {**first["source"], "seed": 999}}]
    path = tmp_path / "twins.yaml"
    path.write_text(yaml.safe_dump(raw))
    return load_fleet(path)


def test_one_retraining_serves_both_cameras(fleet, tmp_path):
    folder = RunFolder(
        run_live(fleet, RunOptions(runs=tmp_path / "runs", dashboard=False), Console(stderr=True))
    )
    name, constants, turns = read_journal(folder.journal)
    commands = [command for turn in turns for command in turn.commands]
    joint = {one.job: one for one in commands if isinstance(one, StartRetraining) and one.partners}
    assert joint, "the cameras learn from each other's labels"
    measured = [
        event
        for turn in turns
        for event in turn.events
        if isinstance(event, ev.RetrainProgress) and event.job in joint
    ]
    assert measured
    assert all(len(one.partner_accuracies) == 1 for one in measured)
    asked = [(one.stream, one.job) for one in commands if isinstance(one, ServeModel) and one.of is not None]
    swapped = [
        (event.stream, event.job)
        for turn in turns
        for event in turn.events
        if isinstance(event, ev.ModelSwapped)
        and event.job in joint
        and event.stream != joint[event.job].stream
    ]
    assert swapped
    assert set(swapped) <= set(asked)
    summary = json.loads(folder.summary.read_text())
    assert summary["warnings"] == []
    assert sum(len(stream["joint"]) for stream in summary["streams"].values()) == len(swapped)
    scheduler = make_scheduler(name)
    assert all(one.same for one in replay(turns, constants, scheduler.needs, scheduler.plan))
