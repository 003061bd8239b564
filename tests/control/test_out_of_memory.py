"""A γ that finds too little memory is set aside for its window, and the plan goes on without it."""

from dataclasses import replace

import pytest
from byhand import LONG, SHORT, A, B, S, Wish, labels, only, opened_1, progress, retraining
from whole_runs import run

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.gpus import DidNotFit
from ekya.core.profile import family_of
from ekya.core.units import JobId


def short_of_memory(t_us, config, window=1, stream=A):
    return ev.MemoryShort(t_us, stream, window, DidNotFit.from_config(config), "it did not fit")


def offered(hand):
    return [option.config for option in hand.views[-1].streams[0].retrain_options]


def fail(hand, at_s=120):
    at = at_s * S
    return hand.give(
        at, ev.RetrainFailed(at, A, JobId(1), "it did not fit"), short_of_memory(at, hand.stream().job.config)
    )


def test_smaller_gamma_is_planned_in_same_step():
    hand = retraining(LONG)
    hand.wishes[A] = Wish(retrain=SHORT, retrain_milli=300)
    turn = fail(hand)
    assert offered(hand) == [SHORT]
    assert [command.config for command in only(cmd.StartRetraining, turn)] == [SHORT]
    assert hand.stream().job.job == JobId(2)


def test_larger_gammas_are_no_longer_offered():
    hand = retraining(SHORT)
    hand.wishes[A] = Wish(retrain=SHORT, retrain_milli=300)
    turn = fail(hand)
    assert offered(hand) == []
    assert only(cmd.StartRetraining, turn) == []
    assert {one.stream for one in hand.views[-1].streams} == {A, B}
    assert hand.views[-1].capacity_milli == 2000


def test_failure_after_training_ends_windows_retraining():
    """It fitted before: another process took the memory, and half a retraining is paid for."""
    hand = retraining(LONG)
    hand.give(115 * S, progress(115 * S, 1, 0.6))
    turn = fail(hand)
    assert only(cmd.ServeModel, turn) == []  # its first epoch serves already
    assert offered(hand) == []
    assert hand.stream().finished is not None


def test_failure_without_memory_event_tries_nothing_else():
    hand = retraining(LONG)
    hand.give(120 * S, ev.RetrainFailed(120 * S, A, JobId(1), "a bug"))
    assert offered(hand) == []


def test_profile_that_did_not_fit_excludes_family():
    hand = opened_1()
    did_not_fit = DidNotFit(family_of(LONG), 0.0)
    hand.give(104 * S, ev.MemoryShort(104 * S, A, 1, did_not_fit, "it did not fit"))
    hand.prepare()
    assert offered(hand) == [SHORT]


@pytest.mark.parametrize("window", [0, 2])
def test_memory_event_of_other_window_is_ignored(window):
    hand = opened_1()
    hand.give(104 * S, short_of_memory(104 * S, SHORT, window))
    hand.prepare()
    assert offered(hand) == [SHORT, LONG]


def test_next_window_tries_again():
    hand = retraining(LONG)
    fail(hand)
    hand.open_window(2)
    assert hand.stream().profiles.did_not_fit == ()
    hand.give(205 * S, labels(205 * S, A, window=2), labels(205 * S, B, window=2))
    hand.end_preparation(210, 2)
    assert LONG in offered(hand)


@pytest.mark.parametrize("name", ["thief", "serial", "exact", "ekya", "uniform"])
def test_whole_runs_continue_with_what_fits(name):
    """No stream can retrain a block: heads are trained, and nothing is tried twice."""
    done = run(name, after_turn=_blocks_do_not_fit)
    failed = [event.job for event in done.events(ev.RetrainFailed)]
    starts = done.commands(cmd.StartRetraining)
    assert failed == [start.job for start in starts if start.config.trainable_blocks]
    tried = [(start.window, start.stream, start.config) for start in starts]
    assert len(tried) == len(set(tried))
    if name != "uniform":  # its γ is fixed
        assert failed
        retried = {(start.window, start.stream) for start in starts if start.job in failed}
        again = {(start.window, start.stream) for start in starts if start.job not in failed}
        assert retried & again
    assert [event.index for event in done.events(ev.WindowClosed)] == [0, 1, 2, 3]


def _blocks_do_not_fit(done):
    """Fails each retraining of a block as soon as it has started."""
    fleet, turn = done.fleet, done.turns[-1]
    for command in turn.commands:
        if isinstance(command, cmd.StartRetraining) and command.config.trainable_blocks:
            at = fleet.now_us
            failed = ev.RetrainFailed(at, command.stream, command.job, "no memory")
            fleet.strike(replace(short_of_memory(at, command.config, command.window), stream=command.stream))
            fleet.strike(failed)
