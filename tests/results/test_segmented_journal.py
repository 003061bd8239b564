"""Tests of snapshots, and of journals in segments."""

import json
from dataclasses import replace

import pytest
from script import MISFORTUNES, OPTIONS
from whole_runs import run

from ekya import __version__
from ekya.control.journal_replay import replay_journal
from ekya.core import events as ev
from ekya.core.errors import UserError
from ekya.planning.schedulers.registry import SCHEDULERS, make_scheduler
from ekya.results.storage.journal import read_header, read_journal, read_steps
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.segmented_journal import (
    FORMAT,
    SegmentedJournal,
    cut_to,
    list_segments,
    read_snapshot,
    segment_state,
)

ALL = replace(OPTIONS, reacts_to_drift=True, pools_labels=True, windows=6)


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create_numbered(tmp_path, "run")


def recorded(folder, name="thief", options=OPTIONS, segment_bytes=None):
    journal = SegmentedJournal(folder, name, options, segment_bytes)
    done = run(name, options=options, misfortunes=MISFORTUNES, journal=journal)
    journal.close()
    return done


def opening(done):
    """Returns the number of the step in which the last window opened."""
    return max(
        n for n, turn in enumerate(done.turns) if any(isinstance(e, ev.WindowOpened) for e in turn.events)
    )


@pytest.mark.parametrize("options", [OPTIONS, ALL], ids=["paper", "all"])
@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_snapshot_is_the_state_before_the_last_window(folder, name, options):
    done = recorded(folder, name, options)
    snapshot = read_snapshot(folder)
    assert snapshot.state == done.states[opening(done) - 1]
    assert read_steps(folder.journal, snapshot.at_byte) == done.turns[opening(done) :]


def test_cut_journal_ends_where_the_window_opened(folder):
    done = recorded(folder)
    cut_to(folder, read_snapshot(folder))
    assert read_journal(folder.journal)[2] == done.turns[: opening(done)]


def test_run_goes_on_in_its_last_segment(folder):
    recorded(folder, segment_bytes=1)
    snapshot = read_snapshot(folder)
    cut_to(folder, snapshot)
    SegmentedJournal(folder, "thief", OPTIONS, 1).close()
    assert list_segments(folder)[-1] == snapshot.segment
    assert read_snapshot(folder) == snapshot, "it can be cut again"


def test_each_segment_replays_by_itself(folder):
    done = recorded(folder, options=ALL, segment_bytes=1)
    numbers = list_segments(folder)
    assert numbers == list(range(ALL.windows)), "a segment a window"
    chosen, turns = make_scheduler("thief"), []
    for number in numbers:
        path = folder.journal_segment(number)
        _, options, steps = read_journal(path)
        assert options == ALL
        again = list(replay_journal(steps, options, chosen.needs, chosen.plan, segment_state(path)))
        assert all(one.same for one in again)
        turns += steps
    assert turns == done.turns
    assert again[-1].state == done.states[-1]


def test_service_that_goes_on_begins_a_segment_with_its_options(folder):
    done = recorded(folder, segment_bytes=1 << 30)
    snapshot = read_snapshot(folder)
    cut_to(folder, snapshot)
    other = replace(OPTIONS, prepared_streams=3)
    journal = SegmentedJournal(folder, "thief", other, 1 << 30, snapshot.state)
    assert read_header(folder.journal_segment(1)) == ("thief", other)
    assert segment_state(folder.journal_segment(1)) == snapshot.state == done.states[opening(done) - 1]
    assert read_snapshot(folder).segment == 0, "it was killed before its first step"
    journal.write_snapshot(snapshot.state)
    journal.close()
    assert read_snapshot(folder).segment == 1
    SegmentedJournal(folder, "thief", OPTIONS, None, snapshot.state).close()
    assert list_segments(folder) == [0, 1], "a run that ends has one"


def test_large_segments_are_not_cut(folder):
    recorded(folder, segment_bytes=1_000_000_000)
    assert list_segments(folder) == [0]


def test_header_is_read_without_the_rest(folder):
    recorded(folder)
    with folder.journal.open("a") as file:
        file.write("damaged\n")
    assert read_header(folder.journal) == ("thief", OPTIONS)


def _of_other_version(content):
    return json.dumps({**content, "format": FORMAT + 1})


def _without_state(content):
    return json.dumps({**content, "state": {"fleet": 3}})


def _cut_off(content):
    return json.dumps(content)[:-9]


def _beyond_the_journal(content):
    return json.dumps({**content, "at_byte": 10**9})


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (_of_other_version, f"was written by Ekya {__version__}"),
        (_without_state, "does not fit this version of Ekya (fleet: Input should be"),
        (_cut_off, "cannot be read"),
        (_beyond_the_journal, "is of a journal that"),
    ],
)
def test_unusable_snapshot_is_refused(folder, spoil, problem):
    recorded(folder)
    folder.snapshot.write_text(spoil(json.loads(folder.snapshot.read_text())))
    with pytest.raises(UserError) as refusal:
        read_snapshot(folder)
    assert str(refusal.value).startswith(f"{folder.snapshot}: {problem}")


def test_run_without_a_second_window_has_no_snapshot(folder):
    recorded(folder, options=replace(OPTIONS, windows=1))
    assert read_snapshot(folder) is None
