"""`ekya fleet run` on the wall clock: two services with a Ray each, and a launcher that dies."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from ekya import cli
from ekya.control.journal_replay import replay_journal
from ekya.core import events as ev
from ekya.core.units import StreamId
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions

pytestmark = [pytest.mark.live, pytest.mark.long]

WINDOW_S = 30
SOUTH = {"streams": ["cam-3", "cam-4"], "changes": {"gpus": 1.0}}


@pytest.fixture(scope="module")
def file(tmp_path_factory, write_town):
    """The servers file; south has two cameras and spare capacity."""
    folder = tmp_path_factory.mktemp("live-servers")
    return write_town(folder, WINDOW_S, 2, blocks=1, scene=-1, fps=3, south=SOUTH)


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
    lines = [json.loads(line) for line in (folder / "north" / "loans.jsonl").read_text().splitlines()]
    assert {line["host"] for line in lines if "host" in line} == {"south"}
    ways = {(way["from"], way["to"]): way["mb"] for way in told["moved_mb"]["ways"]}
    assert ways["north", "south"] > 40
    assert ways["south", "north"] > 1


def test_each_journal_says_what_it_said_when_it_is_decided_again(lent) -> None:
    _, folder = lent
    for site in ("north", "south"):
        name, options, turns = read_journal(RunFolder(folder / site).journal)
        scheduler = make_scheduler(name)
        replayed = list(replay_journal(turns, options, scheduler.needs, scheduler.plan))
        assert len(replayed) == len(turns)
        assert all(turn.same for turn in replayed)


def test_a_host_that_fails_takes_nobody_along(file, tmp_path) -> None:
    told = run(file, tmp_path, "--fail", f"south@{WINDOW_S + 8}")
    south, north = told["servers"]["south"], told["servers"]["north"]
    assert south["died_s"] > WINDOW_S
    assert (north["died_s"], told["frames"]["lost"]) == (None, 0)
    assert north["mean_accuracy"] > 0.3
    assert set(told["loans"]["by_outcome"]) <= {"south died", "arrived", "given up", "refused by its host"}


@pytest.fixture(scope="module")
def coordinated(tmp_path_factory, write_town):
    """The same for three shorter windows."""
    return write_town(tmp_path_factory.mktemp("coordinated"), 24, 3, blocks=1, scene=-1, fps=3, south=SOUTH)


def records(loans):
    if not loans.is_file():
        return []
    return [json.loads(line) for line in loans.read_text().splitlines() if line.endswith("}")]


def killed_after_a_loan(file, folder):
    """Begins a run, and kills its driver half a second after the first loan; returns the loans until then."""
    words = ["fleet", "run", str(file), "--runs", str(folder)]
    driver = subprocess.Popen([sys.executable, "-m", "ekya", *words])
    try:
        while not (
            made := [
                one["loan"] for one in records(folder / "town" / "north" / "loans.jsonl") if "site" in one
            ]
        ):
            assert driver.poll() is None, "it ended before it made a loan"
            time.sleep(0.05)
        time.sleep(0.5)
    finally:
        driver.kill()
        driver.wait()
    return made


def silent_windows(folder, stream):
    """Returns the windows in which no frame of a stream was analysed."""
    _, _, turns = read_journal(folder.journal)
    opened = [one for turn in turns for one in turn.events if isinstance(one, ev.WindowOpened)]
    read = read_predictions(folder.predictions(stream))
    return [
        one.index
        for one in opened
        if not np.any(read.analysed & (read.t_us >= one.t_us) & (read.t_us < one.end_us))
    ]


def test_loans_go_on_are_taken_up_and_new_ones_are_made_and_no_inference_stops(coordinated, tmp_path) -> None:
    loans, told = tmp_path / "town" / "north" / "loans.jsonl", tmp_path / "told.json"
    before = killed_after_a_loan(coordinated, tmp_path)
    assert cli.main(["fleet", "run", "--resume", str(loans.parents[1]), "--json", str(told)]) == 0
    summary = json.loads(told.read_text())

    made = [one for one in records(loans) if "site" in one]
    ended = {one["loan"]: one["outcome"] for one in records(loans) if "outcome" in one}
    assert [one["loan"] for one in made] == list(range(len(made)))
    assert sorted(ended) == [one["loan"] for one in made]
    assert ended[before[0]] in ("arrived", "given up", "refused by its host")
    assert len(made) > len(before)
    assert "arrived" in ended.values()

    assert summary["frames"]["lost"] == 0
    for site, streams in (("north", ("cam-1", "cam-2")), ("south", ("cam-3", "cam-4"))):
        assert summary["servers"][site]["died_s"] is None
        _, _, turns = read_journal(RunFolder(tmp_path / "town" / site).journal)
        assert not [one for turn in turns for one in turn.events if isinstance(one, ev.WorkerDied)]
        for stream in map(StreamId, streams):
            assert silent_windows(RunFolder(tmp_path / "town" / site), stream) == []
