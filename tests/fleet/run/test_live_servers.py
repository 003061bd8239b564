"""`ekya fleet run` on the wall clock: two servers on Ray nodes, and one of them has too much to do."""

import json

import pytest
import yaml

from ekya import cli
from ekya.control.replay import replay
from ekya.core import events as ev
from ekya.journal import read_journal
from ekya.runfolder import RunFolder
from ekya.scheduling.registry import make_scheduler
from ekya.shipped import shipped_path

pytestmark = [pytest.mark.live, pytest.mark.long]

WINDOW_S = 30


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """North's cameras drift and it cannot train beside serving them; south has time to spare."""
    folder = tmp_path_factory.mktemp("live-servers")
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"window_s": WINDOW_S, "windows": 2, "preparation": {"share_milli": 250, "fraction": 0.15}}
    raw["retraining"] |= {"epochs": [4], "trainable_blocks": [1], "data_fractions": [1.0]}
    for stream in raw["streams"]:
        stream["source"] |= {"fps": 3, "scenes": stream["source"]["scenes"][-1:]}
        stream["source"]["scenes"][0] |= {"at_s": 0}
        stream["source"]["scenes"][0].pop("ramp_s", None)
    (folder / "fleet.yaml").write_text(yaml.safe_dump(raw))
    north = {
        "site": "north",
        "streams": ["cam-1", "cam-2"],
        "crops_may_leave": True,
        "changes": {"gpus": 0.35},
    }
    south = {"site": "south", "streams": ["cam-3", "cam-4"], "changes": {"gpus": 1.0}}
    path = folder / "servers.yaml"
    path.write_text(
        yaml.safe_dump(
            {"name": "town", "fleet": "fleet.yaml", "links": {"mb_s": 1000}, "servers": [north, south]}
        )
    )
    return path


def run(file, folder, *words):
    told = folder / "told.json"
    assert cli.main(["fleet", "run", str(file), "--runs", str(folder), *words, "--json", str(told)]) == 0
    return json.loads(told.read_text())


@pytest.fixture(scope="module")
def lent(file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return run(file, folder), folder / "town"


def test_two_servers_run_to_their_end_and_nothing_is_lost(lent) -> None:
    told, _ = lent
    assert told["world"] == "live"
    assert told["mean_accuracy"] > 0.3
    assert told["frames"]["lost"] == 0
    assert [its["died_s"] for its in told["servers"].values()] == [None, None]


def test_what_one_has_no_room_for_is_trained_on_the_other_and_serves_at_home(lent) -> None:
    told, folder = lent
    assert told["loans"]["by_outcome"]["arrived"] >= 1
    _, _, turns = read_journal(RunFolder(folder / "north").journal)
    swapped = {event.job for turn in turns for event in turn.events if isinstance(event, ev.ModelSwapped)}
    away = {command.job for turn in turns for command in turn.commands if getattr(command, "elsewhere", None)}
    assert away & swapped
    lines = [json.loads(line) for line in (folder / "loans.jsonl").read_text().splitlines()]
    assert {part["host"] for line in lines for part in line.get("parts", ())} == {"south"}
    ways = {(way["from"], way["to"]): way["mb"] for way in told["moved_mb"]["ways"]}
    assert ways["north", "south"] > 40
    assert ways["south", "north"] > 1


def test_each_journal_says_what_it_said_when_it_is_decided_again(lent) -> None:
    _, folder = lent
    for site in ("north", "south"):
        name, options, turns = read_journal(RunFolder(folder / site).journal)
        scheduler = make_scheduler(name)
        replayed = list(replay(turns, options, scheduler.needs, scheduler.plan))
        assert len(replayed) == len(turns)
        assert all(turn.same for turn in replayed)


def test_a_host_whose_node_fails_takes_nobody_along(file, tmp_path) -> None:
    told = run(file, tmp_path, "--fail", f"south@{WINDOW_S + 8}")
    south, north = told["servers"]["south"], told["servers"]["north"]
    assert south["died_s"] > WINDOW_S
    assert (north["died_s"], told["frames"]["lost"]) == (None, 0)
    assert north["mean_accuracy"] > 0.3
    assert set(told["loans"]["by_outcome"]) <= {"south died", "arrived"}
