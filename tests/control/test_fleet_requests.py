"""Whole runs in which operators change the fleet: replay, shares, and what decides after a change."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from script import MISFORTUNES, OPTIONS, TRIALS, S
from whole_runs import assert_journal_replays, known_shares_milli, run

from ekya.control.journal_replay import replay_journal
from ekya.core import commands as cmd
from ekya.core import requests as rq
from ekya.core.weights import LabelBudget
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import decode_fact, encode_fact

SPARING = replace(OPTIONS, reacts_to_drift=True)
"""The default of a fleet, where preparations are small and come several times a window."""

TIMES_US = st.integers(0, 119).map(lambda at_s: at_s * S)
SCHEDULER = st.sampled_from(["ekya", "thief", "uniform", "no-retrain", "exact", "fixed-res:inference=300"])
REQUESTS = st.one_of(
    st.builds(rq.SchedulerChanged, TIMES_US, SCHEDULER),
    st.builds(rq.MinAccuracyChanged, TIMES_US, st.sampled_from([0.0, 0.3, 0.7])),
    st.builds(rq.CapacityChanged, TIMES_US, st.sampled_from([800, 1200, 2000, 3000]), st.just(400)),
    st.builds(rq.LabelBudgetChanged, TIMES_US, st.builds(LabelBudget, st.integers(1, 200))),
)


def replays(done, name="thief"):
    """Returns whether a run gives the same commands again, also from the middle of it."""
    half, chosen = len(done.turns) // 2, make_scheduler(name)
    for since, state in ((0, None), (half, done.states[half - 1])):
        turns = done.turns[since:]
        again = list(replay_journal(turns, done.options, chosen.needs, chosen.plan, state))
        if not (len(again) == len(turns) and all(one.same for one in again)):
            return False
    return True


@settings(max_examples=6)
@given(st.lists(REQUESTS, min_size=1, max_size=6), st.sampled_from([OPTIONS, SPARING]))
def test_run_with_requests_replays(requests, options):
    done = run("thief", options=options, misfortunes=(*MISFORTUNES, *requests))
    assert {id(one) for one in done.events(*map(type, requests))} == {id(one) for one in requests}
    assert replays(done)


# The scheduler


def test_changed_scheduler_decides_from_the_step_of_its_change(tmp_path):
    path = tmp_path / "journal.jsonl"
    change = rq.SchedulerChanged(40 * S, "no-retrain")
    done = run("thief", misfortunes=(change,), path=path)
    at = next(n for n, turn in enumerate(done.turns) if change in turn.events)
    before = [one for turn in done.turns[:at] for one in turn.commands]
    assert any(isinstance(one, cmd.StartRetraining) for one in before)
    for turn, state in zip(done.turns[at:], done.states[at:], strict=True):
        assert state.fleet.scheduler == "no-retrain"
        if turn.plan is not None:
            of_plan = [one.retrain for phase in turn.plan.phases for one in phase.assignments]
            assert of_plan == [None] * len(of_plan)
        assert not any(isinstance(one, cmd.StartRetraining | cmd.BeginPreparation) for one in turn.commands)
    assert_journal_replays(done, path)


def test_scheduler_that_labels_begins_with_the_next_window():
    done = run("no-retrain", misfortunes=(rq.SchedulerChanged(40 * S, "ekya"),))
    begun = done.commands(cmd.BeginPreparation)
    assert [(one.window, one.streams[0].labels) for one in begun] == [(1, False), (2, True), (3, True)]
    assert done.commands(cmd.StartRetraining)
    assert replays(done, "no-retrain")


def test_replay_of_another_scheduler_differs_after_the_change():
    done = run("thief", misfortunes=(rq.SchedulerChanged(40 * S, "uniform"),))
    turns = [
        replace(turn, events=tuple(one for one in turn.events if not isinstance(one, rq.SchedulerChanged)))
        for turn in done.turns
    ]
    chosen = make_scheduler("thief")
    assert not all(one.same for one in replay_journal(turns, OPTIONS, chosen.needs, chosen.plan))


# The budget of labels


def test_changed_budget_is_that_of_all_later_preparations():
    budget = LabelBudget(40, 1.5)
    done = run("thief", misfortunes=(rq.LabelBudgetChanged(40 * S, budget),))
    begun = done.commands(cmd.BeginPreparation)
    assert [(one.window, one.budget) for one in begun] == [(1, None), (2, budget), (3, budget)]
    assert "budget" not in encode_fact(begun[0]), "a journal without requests is as before"
    assert decode_fact(encode_fact(begun[1])) == begun[1]


# The capacity


@settings(max_examples=6)
@given(
    st.integers(0, 239), st.sampled_from(["ekya", "thief", "uniform"]), st.sampled_from([OPTIONS, SPARING])
)
def test_shares_fit_a_smaller_capacity_from_the_step_of_its_change(at_half_s, name, options):
    """Whatever runs then; and the law of the scripted fleet: none grows before others have shrunk."""
    change = rq.CapacityChanged(at_half_s * S // 2, 900, 300)
    done = run(name, options=options, misfortunes=(*MISFORTUNES, change))
    since = next(n for n, turn in enumerate(done.turns) if change in turn.events)
    assert all(known_shares_milli(state.fleet) <= 900 for state in done.states[since:])
    assert all(
        one.share_milli <= 300
        for turn in done.turns[since:]
        for one in turn.commands
        if isinstance(one, cmd.BeginPreparation)
    )
    assert replays(done, name)


def test_larger_capacity_is_used_from_its_step_on_and_ends_nothing():
    change = rq.CapacityChanged(32 * S, 3000, 500)
    small = replace(TRIALS, capacity_milli=1000)
    done = run("thief", options=small, misfortunes=(change,))
    since = next(n for n, turn in enumerate(done.turns) if change in turn.events)
    assert done.states[since - 1].fleet.preparing, "it is prepared at 32 s"
    assert done.states[since].fleet.preparing
    assert max(known_shares_milli(state.fleet) for state in done.states[:since]) <= 1000
    assert known_shares_milli(done.states[since].fleet) > 1000


def test_smaller_capacity_ends_the_preparation():
    change = rq.CapacityChanged(32 * S, 900, 300)
    done = run("thief", options=TRIALS, misfortunes=(change,))
    turn = next(turn for turn in done.turns if change in turn.events)
    assert turn.commands[0] == cmd.EndPreparation(1)
