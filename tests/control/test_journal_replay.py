"""Replay: the recorded events of a run give the recorded commands."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from script import MISFORTUNES, OPTIONS, TRIALS
from whole_runs import DRIFTS, assert_journal_replays, run

from ekya.control.journal_replay import replay_journal
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.planning.schedulers.registry import SCHEDULERS, make_scheduler


def replayed(turns, name="thief", options=OPTIONS):
    chosen = make_scheduler(name)
    return replay_journal(turns, options, chosen.needs, chosen.plan)


def first_difference(turns, options=OPTIONS):
    """Returns the number of the first step that differs, where a replay ends; None without a difference."""
    told = list(replayed(turns, options=options))
    assert all(one.same for one in told[:-1])
    if told[-1].same:
        assert len(told) == len(turns)
        return None
    return len(told) - 1


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_replay_of_read_journal_gives_same_commands(name, tmp_path):
    path = tmp_path / "journal.jsonl"
    assert_journal_replays(run(name, misfortunes=MISFORTUNES, path=path), path)


@settings(max_examples=6)
@given(drifts=DRIFTS)
def test_replay_of_drifts_gives_same_commands(tmp_path_factory, drifts):
    options = replace(OPTIONS, reacts_to_drift=True, pools_labels=True)
    path = tmp_path_factory.mktemp("run") / "journal.jsonl"
    done = run("thief", options=options, misfortunes=(*MISFORTUNES, *drifts), path=path)
    assert_journal_replays(done, path)


def tampered(turns, change):
    """Returns the same steps with one event changed: the first for which ``change`` returns another."""
    turns = list(turns)
    for number, turn in enumerate(turns):
        for place, event in enumerate(turn.events):
            other = change(event)
            if other is not None:
                events = (*turn.events[:place], other, *turn.events[place + 1 :])
                turns[number] = replace(turn, events=events)
                return turns, number
    raise AssertionError("there is nothing to tamper with")


def worse_profile(event):
    if isinstance(event, ev.ProfileReady):
        curve = replace(event.curve, accuracies=(event.curve.accuracies[0],) * 4)
        return replace(event, curve=curve)
    return None


def lower_accuracy(event):
    if isinstance(event, ev.LabelsReady):
        return replace(event, serving_accuracy=0.99)
    return None


def other_epoch(event):
    if isinstance(event, ev.RetrainProgress):
        return replace(event, validation_accuracy=0.0)
    return None


@pytest.mark.parametrize("change", [worse_profile, lower_accuracy, other_epoch])
def test_replay_of_tampered_event_differs_at_its_step(change):
    turns, changed_at = tampered(run("thief", options=TRIALS).turns, change)
    different = first_difference(turns, TRIALS)
    assert different is not None
    assert different >= changed_at


def test_replay_of_tampered_command_differs_there():
    turns = run("thief").turns
    number = next(
        n for n, t in enumerate(turns) if any(isinstance(c, cmd.StartRetraining) for c in t.commands)
    )
    turns[number] = replace(turns[number], commands=turns[number].commands[:-1])
    assert first_difference(turns) == number


def test_replay_with_other_options_differs():
    assert first_difference(run("thief").turns, replace(OPTIONS, capacity_milli=1000)) == 0


def test_replay_state_of_partial_run_matches():
    """A crashed controller recovers its state in this way."""
    done = run("thief", misfortunes=MISFORTUNES)
    half = len(done.turns) // 2
    assert list(replayed(done.turns[:half]))[-1].state == done.states[half - 1]


def test_replay_of_journal_without_plan_numbers_matches():
    done = run("thief", misfortunes=MISFORTUNES)
    old = [
        replace(
            turn,
            plan=turn.plan and replace(turn.plan, epoch=0),
            commands=tuple(cmd.of_plan(command, 0) for command in turn.commands),
        )
        for turn in done.turns
    ]
    assert old != done.turns
    assert first_difference(old) is None


def test_replay_with_other_plan_number_differs():
    turns = run("thief").turns
    number = next(n for n, turn in enumerate(turns) if turn.plan is not None and turn.plan.epoch > 1)
    commands = tuple(cmd.of_plan(command, 1) for command in turns[number].commands)
    turns[number] = replace(turns[number], commands=commands)
    assert first_difference(turns) == number
