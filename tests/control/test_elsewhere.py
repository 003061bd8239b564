"""Weights that are not trained here, in the loop: asked for once, and served when they come."""

from dataclasses import replace

import pytest
from byhand import LONG, SHORT, A, B, Hand, S, labels, opened_1

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.codec import decode, encode
from ekya.core.elsewhere import CachedModel, Elsewhere
from ekya.core.ids import JobId, ModelVersion
from ekya.core.plan import Plan
from ekya.scheduling.registry import make_scheduler

KEPT = CachedModel(SHORT, 0, (3, 1))


class Scheduled(Hand):
    """A hand whose planner is a scheduler."""

    name = "reuse"

    def plan(self, view) -> Plan:
        self.views.append(view)
        return make_scheduler(self.name).plan(view)


def prepared(monkeypatch, name="reuse") -> Scheduled:
    """Window 1 is prepared; stream ``a`` has a kept model, and labels that say which classes there are."""
    monkeypatch.setattr(Scheduled, "name", name)
    hand = Scheduled(needs=make_scheduler(name).needs)
    hand.state = opened_1(needs=hand.needs).state
    hand.give(101 * S, ev.ModelCached(101 * S, A, KEPT))
    labelled = replace(labels(105 * S, A, accuracy=0.5), class_histogram=(6, 2))
    hand.give(105 * S, labelled, labels(105 * S, B))
    return hand


def test_a_kept_model_is_asked_for_once_and_serves_even_where_it_is_worse(monkeypatch):
    hand = prepared(monkeypatch)
    turn = hand.give(110 * S, ev.PreparationEnded(110 * S, 1))
    started = [c for c in turn.commands if isinstance(c, cmd.StartRetraining)]
    assert [(c.stream, c.config, c.share_milli, c.elsewhere) for c in started] == [
        (A, SHORT, 0, Elsewhere(110 * S, trained_in=0))
    ]
    job = started[0].job
    arrived = hand.give(
        110 * S, ev.RetrainProgress(110 * S, A, job, 1, 0.3, 0.0), ev.RetrainFinished(110 * S, A, job, 0.0)
    )
    assert arrived.commands == (cmd.ServeModel(A, job, 1),)
    again = hand.give(120 * S, ev.StreamBack(120 * S, B))
    assert not [c for c in again.commands if isinstance(c, cmd.StartRetraining)]


def test_nothing_is_kept_from_a_stream_before_its_labels_are_there(monkeypatch):
    hand = prepared(monkeypatch)
    hand.give(106 * S, ev.StreamBack(106 * S, B))
    assert [bool(one.cached) for one in hand.views[-1].streams] == [False, False]
    hand.give(110 * S, ev.PreparationEnded(110 * S, 1))
    assert [one.cached for one in hand.views[-1].streams] == [(KEPT,), ()]
    assert [one.histogram for one in hand.views[-1].streams] == [(6, 2), ()]


def test_the_cloud_needs_no_labels_and_keeps_to_its_times(monkeypatch):
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


@pytest.mark.parametrize(
    "fact",
    [
        ev.ModelCached(1, A, KEPT),
        cmd.StartRetraining(A, JobId(1), 1, SHORT, 0, 0.5, 0.0, Elsewhere(7, 3)),
    ],
)
def test_the_journal_keeps_them(fact):
    assert decode(encode(fact)) == fact
