"""Servers of the emulated world whose frames other servers classify: real frames and models, virtual time."""

import json

import pytest

from ekya import cli
from ekya.control.journal_replay import replay_journal
from ekya.core import events as ev
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder

pytestmark = [pytest.mark.live, pytest.mark.virtual, pytest.mark.long]


@pytest.fixture(scope="module")
def play(tmp_path_factory, write_town):
    """Plays two windows of a town; north has a fifth of a GPU for two cameras that would need half of one."""

    def play(frames_may_leave, *words):
        folder = tmp_path_factory.mktemp("town")
        narrow = {"gpus": 0.2, "preparation": {"share_milli": 100, "fraction": 0.15}}
        own = {"frames_may_leave": frames_may_leave, "crops_may_leave": False, "changes": narrow}
        file = write_town(folder, 12, 2, blocks=0, scene=0, fps=10, south={"streams": ["cam-3"]}, own=own)
        words = ["--clock", "virtual", "--runs", str(folder), *words, "--json", str(folder / "told.json")]
        assert cli.main(["fleet", "run", str(file), *words]) == 0
        return json.loads((folder / "told.json").read_text()), folder / "town"

    return play


@pytest.fixture(scope="module")
def moved(play):
    return play(True)


def loans_of(folder):
    lines = [json.loads(line) for line in (folder / "loans.jsonl").read_text().splitlines()]
    return [line for line in lines if "site" in line], [line for line in lines if "outcome" in line]


def moves_in(folder):
    _, options, turns = read_journal(RunFolder(folder / "north").journal)
    events = [event for turn in turns for event in turn.events if isinstance(event, ev.InferenceMoved)]
    return events, options, turns


def analysed(told):
    return told["frames"]["analysed"]


def test_frames_that_may_leave_are_classified_elsewhere_and_more_of_them(moved, play) -> None:
    told, folder = moved
    alone, without = play(False)
    assert loans_of(without) == ([], [])
    made, over = loans_of(folder)
    assert {(one["kind"], one["site"], one["parts"][0]["host"]) for one in made} == {
        ("inference", "north", "south")
    }
    assert {one["outcome"] for one in over} == {"its window is over"}
    assert told["loans"]["inference"] == len(made)
    north, north_alone = (one["servers"]["north"]["mean_accuracy"] for one in (told, alone))
    assert north > north_alone + 0.05
    assert analysed(told) > 1.3 * analysed(alone)
    assert told["frames"]["arrived"] == alone["frames"]["arrived"] == 3 * 240
    assert told["moved_mb"]["total"] > 45.0 * len(made)


def test_journals_say_when_frames_move_and_are_replayed(moved) -> None:
    _, folder = moved
    events, options, turns = moves_in(folder)
    assert {event.stream for event in events if event.share_milli} <= {"cam-1", "cam-2"}
    assert events[0].share_milli >= 200
    assert sum(event.share_milli > 0 for event in events) == sum(event.share_milli == 0 for event in events)
    scheduler = make_scheduler("ekya")
    assert all(turn.same for turn in replay_journal(turns, options, scheduler.needs, scheduler.plan))


def test_a_host_that_dies_costs_no_answer(moved, play) -> None:
    made, _ = loans_of(moved[1])
    dies_s = (made[0]["begins_us"] + made[0]["until_us"]) // 2 / 1e6
    told, folder = play(True, "--fail", f"south@{dies_s}")
    assert {one["outcome"] for one in loans_of(folder)[1]} == {"south died"}
    events, _, _ = moves_in(folder)
    assert events[-1].share_milli == 0
    assert events[-1].t_us == pytest.approx(dies_s * 1e6, abs=1_100_000)
    north = told["servers"]["north"]["streams"]
    assert all(stream["mean_accuracy"] > 0.1 for stream in north.values())
