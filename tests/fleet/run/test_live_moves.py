"""`ekya fleet run` on the wall clock: the host of a server that is short of inference dies while it helps."""

import json
from itertools import pairwise

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

WINDOW_S, DIES_S = 32, 20
GAP_S = 3.0
"""Longest time for which no frame of a stream may be analysed."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory, write_town):
    """Summary and folder of a run; north has a tenth of a core for two cameras that need more."""
    folder = tmp_path_factory.mktemp("moves")
    narrow = {"gpus": 0.1, "preparation": {"share_milli": 40, "fraction": 0.15}}
    own = {"frames_may_leave": True, "crops_may_leave": False, "changes": narrow}
    south = {"streams": ["cam-3"], "changes": {"gpus": 1.0}}
    file = write_town(folder, WINDOW_S, 2, blocks=0, scene=0, fps=10, south=south, own=own)
    words = [str(file), "--runs", str(folder), "--fail", f"south@{DIES_S}", "--json", str(folder / "told")]
    assert cli.main(["fleet", "run", *words]) == 0
    return json.loads((folder / "told").read_text()), folder / "town"


@pytest.fixture(scope="module")
def journal(ran):
    return read_journal(RunFolder(ran[1] / "north").journal)


def test_frames_move_and_come_home_when_their_host_dies(ran, journal) -> None:
    told, folder = ran
    _, _, turns = journal
    moved = [event for turn in turns for event in turn.events if isinstance(event, ev.InferenceMoved)]
    there = [event for event in moved if event.share_milli]
    assert there and all(event.t_us < DIES_S * 1e6 for event in there)
    back = {event.stream: event.t_us / 1e6 for event in moved if not event.share_milli}
    assert back.keys() == {event.stream for event in there}
    assert all(DIES_S - 1 < at_s < DIES_S + 4 for at_s in back.values())
    lines = [json.loads(line) for line in (folder / "loans.jsonl").read_text().splitlines()]
    outcomes = {line["outcome"] for line in lines if "outcome" in line}
    assert outcomes <= {"south died", "its host did not answer"}
    assert told["loans"]["inference"] == sum("site" in line for line in lines) > 0


def test_no_answer_is_missing_for_long_and_no_worker_died(ran, journal) -> None:
    told, folder = ran
    _, _, turns = journal
    assert not [one for turn in turns for one in turn.events if isinstance(one, ev.WorkerDied)]
    for stream in map(StreamId, ("cam-1", "cam-2")):
        read = read_predictions(RunFolder(folder / "north").predictions(stream))
        at_us = [t_us for t_us, analysed in zip(read.t_us, read.analysed, strict=True) if analysed]
        assert max(after - before for before, after in pairwise(at_us)) / 1e6 <= GAP_S
        assert at_us[-1] > (2 * WINDOW_S - 3) * 1e6
    assert told["servers"]["north"]["died_s"] is None


def test_frames_that_are_classified_elsewhere_cost_nothing_here(ran, journal) -> None:
    _, folder = ran
    _, _, turns = journal
    events = [event for turn in turns for event in turn.events]
    moved = [event for event in events if isinstance(event, ev.InferenceMoved)]
    first = next(event for event in moved if event.share_milli)
    # Measured over five seconds, of which the first may have begun before the move.
    begin_us, end_us = first.t_us + 5_000_000, DIES_S * 1e6
    used = [
        event.share_milli
        for event in events
        if isinstance(event, ev.ShareMeasured)
        and (event.stream, event.role) == (first.stream, ev.Role.INFERENCE)
        and begin_us < event.t_us < end_us
    ]
    assert used == [0] * len(used)
    read = read_predictions(RunFolder(folder / "north").predictions(first.stream))
    there = [a for t_us, a in zip(read.t_us, read.analysed, strict=True) if first.t_us < t_us < end_us]
    assert sum(there) > (end_us - first.t_us) / 1e6
    _, _, of_host = read_journal(RunFolder(folder / "south").journal)
    held = [one.share_milli for turn in of_host for one in turn.events if isinstance(one, ev.CapacityLent)]
    assert max(held) >= first.share_milli


def test_its_journal_is_replayed(journal) -> None:
    name, options, turns = journal
    scheduler = make_scheduler(name)
    assert all(turn.same for turn in replay_journal(turns, options, scheduler.needs, scheduler.plan))
