"""Weights that are not trained here, in the loop: requested once, and served when they arrive."""

from dataclasses import replace

import pytest
from byhand import LONG, SHORT, A, B, Hand, S, labels, only, opened_1, retraining

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.plan import Plan
from ekya.core.units import JobId, ModelVersion
from ekya.core.weights import CachedModel, Elsewhere
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import decode_fact, encode_fact

KEPT = CachedModel(SHORT, 0, (3, 1))


class Scheduled(Hand):
    """A hand with a scheduler as its planner."""

    name = "reuse"

    def plan(self, view) -> Plan:
        self.views.append(view)
        return make_scheduler(self.name).plan(view)


def prepared(monkeypatch, name="reuse") -> Scheduled:
    """Window 1 is prepared; stream ``a`` has a kept model, and labels with a class histogram."""
    monkeypatch.setattr(Scheduled, "name", name)
    hand = Scheduled(needs=make_scheduler(name).needs)
    hand.state = opened_1(needs=hand.needs).state
    hand.give(101 * S, ev.ModelCached(101 * S, A, KEPT))
    labelled = replace(labels(105 * S, A, accuracy=0.5), class_histogram=(6, 2))
    hand.give(105 * S, labelled, labels(105 * S, B))
    return hand


def test_cached_model_is_requested_once_and_always_serves(monkeypatch):
    hand = prepared(monkeypatch)
    turn = hand.end_preparation(110)
    started = only(cmd.StartRetraining, turn)
    assert [(c.stream, c.config, c.share_milli, c.elsewhere) for c in started] == [
        (A, SHORT, 0, Elsewhere(110 * S, trained_in=0))
    ]
    job = started[0].job
    arrived = hand.give(
        110 * S, ev.RetrainProgress(110 * S, A, job, 1, 0.3, 0.0), ev.RetrainFinished(110 * S, A, job, 0.0)
    )
    assert arrived.commands == (cmd.ServeModel(A, job, 1),)
    again = hand.give(120 * S, ev.StreamBack(120 * S, B))
    assert only(cmd.StartRetraining, again) == []


def test_cached_model_before_labels_is_not_offered(monkeypatch):
    hand = prepared(monkeypatch)
    hand.give(106 * S, ev.StreamBack(106 * S, B))
    assert [bool(one.cached) for one in hand.views[-1].streams] == [False, False]
    hand.end_preparation(110)
    assert [one.cached for one in hand.views[-1].streams] == [(KEPT,), ()]
    assert [one.histogram for one in hand.views[-1].streams] == [(6, 2), ()]


def test_cloud_needs_no_labels_and_keeps_arrival(monkeypatch):
    monkeypatch.setattr(Scheduled, "name", "cloud")
    hand = Scheduled(needs=make_scheduler("cloud").needs)
    hand.state = opened_1(needs=hand.needs).state
    first = hand.give(100 * S, ev.StreamBack(100 * S, B))
    arrivals = [c.elsewhere.arrives_us for c in first.commands if isinstance(c, cmd.StartRetraining)]
    assert [at / S for at in arrivals] == pytest.approx(
        [100 + 40 / 5.1 + 398 / 17.5, 100 + 40 / 5.1 + 2 * 398 / 17.5]
    )
    assert all(c.config == LONG for c in first.commands if isinstance(c, cmd.StartRetraining))
    later = hand.give(110 * S, ev.StreamBack(110 * S, B))
    assert later.commands == ()
    assert [a.elsewhere.arrives_us for a in later.plan.phases[0].assignments] == arrivals
    at = arrivals[0]
    progress = ev.RetrainProgress(at, A, JobId(1), 1, 0.4, 0.0)
    arrived = hand.give(at, progress, ev.RetrainFinished(at, A, JobId(1), 0.0))
    assert arrived.commands == (cmd.ServeModel(A, JobId(1), 1),)
    hand.give(at, ev.ModelSwapped(at, A, ModelVersion(1), JobId(1), 0.4, 100))
    assert hand.stream().accuracy == 0.4


def test_cloud_model_that_comes_late_serves_in_the_next_window(monkeypatch):
    monkeypatch.setattr(Scheduled, "name", "cloud:up=0.5")
    hand = Scheduled(needs=make_scheduler("cloud").needs)
    hand.state = opened_1(needs=hand.needs).state
    first = hand.give(100 * S, ev.StreamBack(100 * S, B))
    (due, _) = [c.elsewhere.arrives_us for c in first.commands if isinstance(c, cmd.StartRetraining)]
    assert due > 200 * S
    opened = hand.open_window(2)
    assert [c for c in opened.commands if isinstance(c, cmd.StopRetraining | cmd.StartRetraining)] == []
    progress = ev.RetrainProgress(due, A, JobId(1), 1, 0.4, 0.0)
    arrived = hand.give(due, progress, ev.RetrainFinished(due, A, JobId(1), 0.0))
    assert arrived.commands == (cmd.ServeModel(A, JobId(1), 1),)


def test_cloud_model_is_served_once_even_early(monkeypatch):
    monkeypatch.setattr(Scheduled, "name", "cloud")
    hand = Scheduled(needs=make_scheduler("cloud").needs)
    hand.state = opened_1(needs=hand.needs).state
    hand.give(100 * S, ev.StreamBack(100 * S, B))
    assert hand.give(102 * S, ev.RetrainProgress(102 * S, A, JobId(1), 1, 0.9, 0.0)).commands == ()


def lent() -> Hand:
    """Job 1 of stream ``a`` runs on another server until 150 s; the serving model has accuracy 0.5."""
    hand = retraining()
    stream = hand.stream()
    away = replace(stream.job, elsewhere=Elsewhere(150 * S), share_milli=0)
    hand.state = replace(hand.state, fleet=hand.state.fleet.with_stream(replace(stream, job=away)))
    return hand


def home(hand, t_us, epoch, accuracy):
    return hand.give(t_us, ev.RetrainProgress(t_us, A, JobId(1), epoch, accuracy, 0.0))


def served(hand, t_us, accuracy, version=1):
    hand.give(t_us, ev.ModelSwapped(t_us, A, ModelVersion(version), JobId(1), accuracy, 100))


def about_job_1(turn):
    kinds = (cmd.ServeModel, cmd.KeepServing, cmd.StopRetraining)
    return [command for command in turn.commands if isinstance(command, kinds)]


def test_remote_epoch_worth_it_serves_without_new_plan():
    hand = lent()
    turn = home(hand, 120 * S, 1, 0.6)
    assert (turn.commands, turn.plan) == ((cmd.ServeModel(A, JobId(1), 1),), None)
    served(hand, 120 * S, 0.6)
    assert home(hand, 130 * S, 2, 0.55).commands == ()
    # A gain of 0.01 for the two seconds that are left is not worth it.
    assert home(hand, 148 * S, 3, 0.61).commands == ()


def test_remote_epochs_together_serve_only_the_best():
    hand = lent()
    told = [
        ev.RetrainProgress(120 * S, A, JobId(1), epoch, accuracy, 0.0)
        for epoch, accuracy in enumerate((0.6, 0.8, 0.7, 0.8, 0.65), 1)
    ]
    assert hand.give(120 * S, *told).commands == (cmd.ServeModel(A, JobId(1), 4),)


def test_remote_epochs_without_weights_count_but_never_serve():
    hand = lent()
    assert home(hand, 120 * S, 4, 0.6).commands == (cmd.ServeModel(A, JobId(1), 4),)
    assert hand.stream().job.accuracies == (0.0, 0.0, 0.0, 0.6)


def test_remote_late_retraining_serves_best_epoch_next_window():
    hand = lent()
    assert home(hand, 149 * S, 2, 0.505).commands == ()
    serve, stop = cmd.ServeModel(A, JobId(1), 2), cmd.StopRetraining(A, JobId(1))
    assert about_job_1(hand.open_window(2)) == [serve, stop]


def test_remote_late_retraining_already_served_leaves_nothing():
    hand = lent()
    home(hand, 120 * S, 1, 0.7)
    served(hand, 120 * S, 0.7)
    home(hand, 130 * S, 2, 0.6)
    assert about_job_1(hand.open_window(2)) == [cmd.StopRetraining(A, JobId(1))]


@pytest.mark.parametrize(
    ("accuracy", "answer"), [(0.505, cmd.ServeModel), (0.2, cmd.KeepServing)], ids=["not worse", "worse"]
)
def test_remote_lost_host_passes_best_through_gate(accuracy, answer):
    hand = lent()
    home(hand, 149 * S, 1, accuracy)
    failed = hand.give(149 * S, ev.RetrainFailed(149 * S, A, JobId(1), "south died"))
    assert [type(command) for command in about_job_1(failed)] == [answer]


def test_remote_lost_host_without_epochs_leaves_nothing():
    hand = lent()
    assert about_job_1(hand.give(115 * S, ev.RetrainFailed(115 * S, A, JobId(1), "south died"))) == []


@pytest.mark.parametrize(
    "fact",
    [
        ev.ModelCached(1, A, KEPT),
        cmd.StartRetraining(A, JobId(1), 1, SHORT, 0, 0.5, 0.0, Elsewhere(7, 3)),
    ],
)
def test_remote_retrainings_are_in_the_journal(fact):
    assert decode_fact(encode_fact(fact)) == fact
