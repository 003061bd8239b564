"""Servers of the emulated world that lend each other shares: real frames, real training, virtual time."""

import gc
import json

import pytest

from ekya import cli
from ekya.control.journal_replay import replay_journal
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.models.edge.model import EdgeModel
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder

pytestmark = [pytest.mark.live, pytest.mark.virtual]


@pytest.fixture(scope="module")
def file(tmp_path_factory, write_town):
    """The servers file; south has one camera and spare capacity."""
    folder = tmp_path_factory.mktemp("servers")
    return write_town(folder, 12, 2, blocks=2, scene=1, fps=4, south={"streams": ["cam-3"]})


def run(file, folder, *words):
    told = folder / "told.json"
    words = ["--clock", "virtual", "--scheduler", "thief", "--runs", str(folder), *words]
    assert cli.main(["fleet", "run", str(file), *words, "--json", str(told)]) == 0
    return json.loads(told.read_text())


def models():
    return sum(issubclass(type(one), EdgeModel) for one in gc.get_objects())


def loans_of(folder):
    lines = [json.loads(line) for line in (folder / "town" / "loans.jsonl").read_text().splitlines()]
    over = {line["loan"]: line for line in lines if "outcome" in line}  # the last line of each
    return [line for line in lines if "site" in line], [over[number] for number in sorted(over)]


@pytest.fixture(scope="module")
def lent(file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    gc.collect()
    before = models()
    told = run(file, folder)
    gc.collect()
    assert models() <= before, "nothing of a run stays when it is over"
    return told, folder


def test_who_cannot_train_at_home_trains_elsewhere_and_its_weights_come_back(lent) -> None:
    told, folder = lent
    made, over = loans_of(folder)
    assert told["loans"]["by_outcome"]["arrived"] >= 1
    assert {(loan["site"], loan["host"]) for loan in made} == {("north", "south")}
    _, _, turns = read_journal(RunFolder(folder / "town" / "north").journal)
    swapped = [event for turn in turns for event in turn.events if isinstance(event, ev.ModelSwapped)]
    assert {event.stream for event in swapped} <= {"cam-1", "cam-2"}
    for loan, end in zip(made, over, strict=True):
        assert loan["agreed_us"] < loan["begins_us"] < loan["arrives_us"] == end["over_us"]
        serves_us = [event.t_us for event in swapped if event.stream == loan["stream"]]
        # At most one planning time after the last weights arrive, or earlier if better ones came before.
        assert any(loan["begins_us"] < t_us <= end["over_us"] + 100_000 for t_us in serves_us)
        assert end["came"] is not None
    assert told["loans"]["gain"]["came"] == pytest.approx(sum(end["came"] for end in over))
    assert told["loans"]["gain"]["promised"] > 0.0
    assert told["mean_accuracy"] > 0.3
    assert (told["frames"]["arrived"], told["frames"]["lost"]) == (3 * 2 * 12 * 4, 0)


def test_what_crosses_links_is_counted_and_the_host_plans_with_less(lent) -> None:
    told, folder = lent
    made, over = loans_of(folder)
    moved = [way["mb"] for end in over for way in end["moved"]]
    assert told["moved_mb"]["total"] == pytest.approx(sum(moved))
    assert min(moved) > 40  # a model of about 45 MB each way
    _, _, turns = read_journal(RunFolder(folder / "town" / "south").journal)
    held = [
        event.share_milli for turn in turns for event in turn.events if isinstance(event, ev.CapacityLent)
    ]
    assert held[0] == made[0]["share_milli"]
    assert held[-1] == 0


def test_every_servers_journal_says_what_it_said_when_it_is_decided_again(lent) -> None:
    _, folder = lent
    for site in ("north", "south"):
        name, options, turns = read_journal(RunFolder(folder / "town" / site).journal)
        scheduler = make_scheduler(name)
        replayed = list(replay_journal(turns, options, scheduler.needs, scheduler.plan))
        assert len(replayed) == len(turns)
        assert all(turn.same for turn in replayed)


@pytest.mark.long
def test_a_host_that_dies_breaks_only_what_it_did(lent, file, tmp_path) -> None:
    _, folder = lent
    first = loans_of(folder)[0][0]
    dies_s = (first["begins_us"] + first["arrives_us"]) // 2 / 1e6
    told = run(file, tmp_path, "--fail", f"south@{dies_s}")
    _, over = loans_of(tmp_path)
    assert [end["outcome"] for end in over] == ["south died"] * len(over)
    assert told["servers"]["south"]["died_s"] == pytest.approx(dies_s)
    _, options, turns = read_journal(RunFolder(tmp_path / "town" / "north").journal)
    failed = [event for turn in turns for event in turn.events if isinstance(event, ev.RetrainFailed)]
    assert "no other server has room" in failed[0].reason
    home = {event.job for turn in turns for event in turn.events if isinstance(event, ev.RetrainProgress)}
    answered = {
        command.job
        for turn in turns
        for command in turn.commands
        if isinstance(command, cmd.ServeModel | cmd.KeepServing)
    }
    assert {event.job for event in failed} & home <= answered, "its epochs that were home are not thrown away"
    assert failed[0].job in home
    assert told["servers"]["north"]["mean_accuracy"] > 0.3
    assert turns[-1].now_us >= 2 * options.window_us
