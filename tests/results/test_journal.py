"""Tests of the journal of a run: it is read up to the last complete step."""

import json
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.commands import StepRecord
from ekya.core.errors import UserError
from ekya.core.speed import SpeedCurve
from ekya.core.units import StreamId
from ekya.core.weights import LabelBudget
from ekya.results.storage.journal import FileJournal, read_journal

RECORDED = Path(__file__).parents[1] / "control" / "golden" / "thief.jsonl"
SOME_TURNS = 12
"""Enough steps to contain every kind of line, and few enough to be read many times."""

CAM = StreamId("cam é\n1")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Beginning of a recorded run: its bytes, the end of each line, its options and its steps."""
    lines = RECORDED.read_bytes().splitlines(keepends=True)[: 1 + 2 * SOME_TURNS]
    ends = [sum(map(len, lines[: number + 1])) for number in range(len(lines))]
    path = tmp_path_factory.mktemp("whole") / "journal.jsonl"
    path.write_bytes(b"".join(lines))
    _, options, turns = read_journal(path)
    assert len(turns) == SOME_TURNS
    return b"".join(lines), ends, options, turns


@settings(max_examples=40)
@given(part=st.floats(0, 1))
def test_journal_cut_anywhere_reads_to_last_whole_step(recorded, tmp_path_factory, part):
    content, ends, options, turns = recorded
    cut = ends[0] + round(part * (len(content) - ends[0]))
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    path.write_bytes(content[:cut])
    # A line is complete even without its line break.
    whole = sum(end - 1 <= cut for end in ends[2::2])
    assert read_journal(path) == ("thief", options, turns[:whole])


@pytest.mark.parametrize("line", [0, 1, 2, 7])
def test_journal_cut_at_line_break_reads_whole_steps(recorded, tmp_path, line):
    content, ends, _, turns = recorded
    for cut in (ends[line] - 1, ends[line], ends[line] + 1):
        (tmp_path / "journal.jsonl").write_bytes(content[:cut])
        assert read_journal(tmp_path / "journal.jsonl")[2] == turns[: line // 2]
    (tmp_path / "journal.jsonl").write_bytes(content[: ends[line] - 2])
    if line:
        assert read_journal(tmp_path / "journal.jsonl")[2] == turns[: (line - 1) // 2]


def journal_at(path, options):
    return FileJournal(path, "thief", options)


def test_journal_written_steps_are_read_back(recorded, tmp_path):
    _, _, options, turns = recorded
    bent = replace(options, windows=None, training_speed=SpeedCurve(((0, 0.0), (300, 0.7), (1000, 1.0))))
    odd = StepRecord(
        7, (ev.StreamLost(7, CAM, "line\nbreak – and “quotes”"),), None, (cmd.SetAside(CAM, ""),)
    )
    journal = journal_at(tmp_path / "journal.jsonl", bent)
    for turn in (*turns, odd):
        journal.record_batch(Batch(turn.now_us, turn.events))
        journal.record_decision(turn.now_us, turn.plan, turn.commands)
    journal.close()
    assert read_journal(tmp_path / "journal.jsonl") == ("thief", bent, [*turns, odd])


def test_journal_each_line_is_visible_immediately(recorded, tmp_path):
    """Events reach the operating system before they are applied, so a crash cannot lose them."""
    _, _, options, turns = recorded
    path = tmp_path / "journal.jsonl"
    journal = journal_at(path, options)
    for turn in turns[:2]:
        journal.record_batch(Batch(turn.now_us, turn.events))
        last = json.loads(path.read_text().splitlines()[-1])
        assert len(last["events"]) == len(turn.events)
        journal.record_decision(turn.now_us, turn.plan, turn.commands)
        last = json.loads(path.read_text().splitlines()[-1])
        assert len(last["commands"]) == len(turn.commands)
    journal.close()


def test_journal_commands_are_synced_before_execution(recorded, tmp_path, monkeypatch):
    _, _, options, turns = recorded
    path, synced = tmp_path / "journal.jsonl", []
    monkeypatch.setattr(os, "fsync", lambda _file: synced.append(len(path.read_text().splitlines())))
    journal = journal_at(path, options)
    for turn in turns:
        before = len(synced)
        journal.record_batch(Batch(turn.now_us, turn.events))
        assert len(synced) == before
        journal.record_decision(turn.now_us, turn.plan, turn.commands)
        if turn.commands:
            assert synced[before:] == [len(path.read_text().splitlines())]
        else:
            assert len(synced) == before
    journal.close()
    assert any(turn.commands for turn in turns)
    assert not all(turn.commands for turn in turns)


def test_journal_step_with_a_request_is_synced_although_nothing_follows(recorded, tmp_path, monkeypatch):
    _, _, options, _ = recorded
    path, synced = tmp_path / "journal.jsonl", []
    monkeypatch.setattr(os, "fsync", lambda _file: synced.append(len(path.read_text().splitlines())))
    journal = journal_at(path, options)
    died = ev.WorkerDied(1, CAM, ev.Role.INFERENCE, "killed")
    for request in (rq.StreamPaused(1, CAM, True), rq.LabelBudgetChanged(1, LabelBudget(96))):
        journal.record_batch(Batch(1, (died,)))
        journal.record_decision(1, None, ())
        assert synced == []
        journal.record_batch(Batch(2, (died, request)))
        journal.record_decision(2, None, ())
        assert synced.pop() == len(path.read_text().splitlines()), "a step without its decision is dropped"
        assert synced == []
    journal.close()


def spoilt(recorded, tmp_path, line, text):
    lines = recorded[0].decode().splitlines()
    lines[line] = text
    path = tmp_path / "journal.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("text", ['{"now_us": 1, "ev', "", "now"])
def test_journal_damaged_line_is_named(recorded, tmp_path, text):
    with pytest.raises(UserError, match=r"journal\.jsonl: line 4 is damaged"):
        read_journal(spoilt(recorded, tmp_path, 3, text))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (1, '{"now_us": 0, "events": [{"kind": "Explosion", "t_us": 0}]}'),
        (1, '{"now_us": 0, "events": [{"kind": "WindowClosed", "t_us": 0}]}'),
        (2, '{"decided_us": 0, "plan": null}'),
        (0, '{"scheduler": "thief", "options": {"windows": "many"}}'),
    ],
)
def test_journal_line_of_another_version_is_refused(recorded, tmp_path, line, text):
    with pytest.raises(UserError, match=r"journal\.jsonl: does not fit Ekya"):
        read_journal(spoilt(recorded, tmp_path, line, text))


@pytest.mark.parametrize("content", ["", "{}\n", '{"now_us": 0, "events": []}\n'])
def test_journal_other_file_is_refused(tmp_path, content):
    (tmp_path / "other.jsonl").write_text(content)
    with pytest.raises(UserError, match=r"other\.jsonl: is not a journal"):
        read_journal(tmp_path / "other.jsonl")


def test_journal_missing_file_is_refused(tmp_path, recorded):
    with pytest.raises(UserError, match="cannot be read"):
        read_journal(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="the folder does not exist"):
        journal_at(tmp_path / "no" / "folder" / "journal.jsonl", recorded[2])


def test_journal_full_disk_raises_user_error(recorded, tmp_path, monkeypatch):
    _, _, options, turns = recorded
    journal = journal_at(tmp_path / "journal.jsonl", options)

    def full(_file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"journal\.jsonl.*disk is full.*free some space"):
        journal.record_decision(0, None, turns[0].commands)
    journal.close()


def test_journal_full_disk_close_does_not_write_again(recorded, tmp_path):
    """Simulates a full disk by a file size limit: the operating system refuses the rest of a line."""
    _, _, options, turns = recorded
    path = tmp_path / "journal.jsonl"
    journal = FileJournal(path, "thief", options)
    whole = path.read_bytes()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 5, hard))
    try:
        with pytest.raises(UserError, match="free some space"):
            journal.record_batch(Batch(0, turns[0].events))
        journal.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert path.read_bytes()[: len(whole)] == whole
    assert read_journal(path) == ("thief", options, [])


def test_journal_options_suffice_for_a_replay(recorded):
    assert isinstance(recorded[2], LoopOptions)
    assert recorded[2].training_speed.speed_at(500) == pytest.approx(0.75)
