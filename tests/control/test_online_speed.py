"""Correction of the speed curve by measured retrainings, from one window to the next."""

import math
from dataclasses import replace

import pytest
from byhand import A, S, Wish, progress, retraining
from script import BENT, MISFORTUNES, OPTIONS
from whole_runs import run

from ekya.control.journal_replay import replay_journal
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.shares import retraining_holder
from ekya.core.speed import LINEAR, Pace, SpeedCurve
from ekya.core.units import JobId, ModelVersion
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import read_journal

GUESS = SpeedCurve(((0, 0.0), (200, 0.2), (500, 0.5), (1000, 1.0)))
"""Speed curve of the first plans; the true one of the scripted fleet is ``BENT``."""


def at_share(t_s, share_milli, job=1):
    return ev.ShareResized(t_s * S, retraining_holder(A, JobId(job)), 2, share_milli, 0)


def told(hand, *events):
    for event in events:
        hand.give(event.t_us, event)
    return hand.stream().paces


def epochs(*at_s):
    return [progress(at * S, number, 0.4) for number, at in enumerate(at_s, start=1)]


def test_first_epoch_gives_no_pace():
    paces = told(retraining(), at_share(110, 400), *epochs(119, 121, 124))
    assert paces == (Pace(1, 400, 2.0), Pace(1, 400, 3.0))


def test_pace_uses_reported_share():
    paces = told(retraining(), at_share(110, 363), *epochs(119, 121))
    assert paces == (Pace(1, 363, 2.0),)


def test_epoch_with_share_change_gives_no_pace():
    hand = retraining()
    first, second, third, fourth, fifth = epochs(112, 114, 117, 119, 121)
    told(hand, at_share(110, 400), first, second)
    hand.wishes[A] = Wish(retrain=hand.stream().job.config, retrain_milli=600)
    hand.give(115 * S, ev.StreamEnded(115 * S, hand.state.fleet.streams[1].stream))
    assert told(hand, third, at_share(118, 600), fourth, fifth) == (Pace(1, 400, 2.0), Pace(1, 600, 2.0))


def test_epoch_with_checkpoint_gives_no_pace():
    hand = retraining()
    told(hand, at_share(110, 400), progress(112 * S, 1, 0.1))
    turn = hand.give(114 * S, progress(114 * S, 2, 0.9))
    assert [type(command) for command in turn.commands] == [cmd.ServeModel]
    swapped = ev.ModelSwapped(115 * S, A, ModelVersion(2), JobId(1), 0.9, 9)
    paces = told(hand, swapped, progress(117 * S, 3, 0.9), progress(119 * S, 4, 0.9))
    assert paces == (Pace(1, 400, 2.0), Pace(1, 400, 2.0))


def test_paces_of_other_jobs_and_windows_are_ignored():
    hand = retraining()
    assert told(hand, at_share(110, 400, job=7), *epochs(112, 114)) == ()
    told(hand, at_share(115, 400), *epochs(116, 118))
    hand.open_window(2)
    assert hand.stream().paces == ()


def error(curve):
    """Returns the error at half a GPU; retrainings have more than a fifth of one in this run."""
    return abs(math.log(curve.speed_at(500) / BENT.speed_at(500)))


@pytest.fixture(scope="module")
def corrected(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "journal.jsonl"
    gammas = tuple(RetrainConfig(12, 16, 0, blocks, 1.0) for blocks in (0, 1))
    options = replace(
        OPTIONS, windows=16, training_speed=GUESS, retrain_configs=gammas, preparation_share_milli=300
    )
    return run("thief", options=options, misfortunes=MISFORTUNES, tells_shares=True, path=path), path


def test_wrong_curve_approaches_truth_during_run(corrected):
    done, _ = corrected
    assert error(done.states[-1].training_speed) < 0.75 * error(GUESS)


def test_window_uses_one_curve_in_all_commands(corrected):
    done, _ = corrected
    of_window: dict[int, set[SpeedCurve]] = {}
    for turn, state, view in zip(done.turns, done.states, done.views, strict=True):
        if view is None:
            continue
        of_window.setdefault(state.fleet.window, set()).add(view.training_speed)
        for command in turn.commands:
            if isinstance(command, cmd.BeginPreparation | cmd.StartRetraining):
                assert command.training_speed == view.training_speed
    assert {len(curves) for curves in of_window.values()} == {1}
    assert of_window[0] == {GUESS}
    assert len(set.union(*of_window.values())) > 2


def test_run_with_refined_curve_replays(corrected):
    done, path = corrected
    _, options, turns = read_journal(path)
    chosen = make_scheduler("thief")
    again = list(replay_journal(turns, options, chosen.needs, chosen.plan))
    assert len(again) == len(turns) and all(one.same for one in again)
    assert again[-1].state == done.states[-1]


def test_linear_curve_without_measurement_stays():
    options = replace(OPTIONS, training_speed=LINEAR)
    done = run("thief", options=options, misfortunes=MISFORTUNES, tells_shares=True)
    assert any(stream.paces for state in done.states for stream in state.fleet.streams)
    assert {state.training_speed for state in done.states} == {None}
