"""Joint retrainings in the loop: who is retrained for whom, which weights serve, and when streams part."""

from dataclasses import dataclass, replace

import pytest
from byhand import LAMBDAS, NEEDS, OPTIONS, SHORT, A, B, Hand, S, Wish, labels

from ekya.control.protocols import Batch
from ekya.control.step import step
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.profile import FamilyCurve
from ekya.core.units import JobId
from ekya.core.weights import Partner, PooledLabels

JOINS = replace(
    OPTIONS, checkpoint_delay_us=None, reacts_to_drift=True, pools_labels=True, retrains_together=True
)
PROFILES = replace(NEEDS, micro_profile=True)
CURVE = FamilyCurve(16, 0, 0, 64, (0.5, 0.7, 0.8), 0.1, 0.1, validation_crops=40)
JOB = JobId(1)


@dataclass
class JointHand(Hand):
    """Feeds batches to the loop; its planner finds joint retrainings better, if ``prefers_joint``."""

    prefers_joint: bool = True

    def plan(self, view):
        joint = any(stream.served_by for stream in view.streams)
        return replace(super().plan(view), expected_accuracy=0.6 if joint == self.prefers_joint else 0.4)

    def give(self, now_us, *events):
        turn = step(self.state, Batch(now_us, events), self.options, self.needs, self.plan)
        self.state = turn.state
        return turn


def pooled(stream, *of):
    labelled = PooledLabels(of, 60, 0.8, 0.7, 40, True)
    return (
        ev.ProfileReady(106 * S, stream, 1, CURVE, 0.1),
        ev.ProfileReady(106 * S, stream, 1, CURVE, 0.1, labelled),
    )


def prepared(*profiles, **changes):
    """Window 1 after its preparation; both streams want to be retrained. Returns the last step, too."""
    hand = JointHand(options=changes.pop("options", JOINS), needs=PROFILES, **changes)
    streams = [ev.StreamAdded(0, stream, LAMBDAS) for stream in (A, B)]
    hand.give(0, *streams, ev.WindowOpened(0, 0, 100 * S))
    hand.give(100 * S, ev.WindowClosed(100 * S, 0), ev.WindowOpened(100 * S, 1, 200 * S))
    hand.wishes = {A: Wish(retrain=SHORT, retrain_milli=400), B: Wish(retrain=SHORT, retrain_milli=400)}
    hand.give(105 * S, labels(105 * S, A), labels(105 * S, B))
    hand.give(106 * S, *profiles)
    return hand, hand.give(110 * S, ev.PreparationEnded(110 * S, 1))


def starts(turn):
    return {one.stream: one.partners for one in turn.commands if isinstance(one, cmd.StartRetraining)}


def served(turn):
    return [(one.stream, one.of) for one in turn.commands if isinstance(one, cmd.ServeModel)]


BOTH = (*pooled(A, A, B), *pooled(B, B, A))


def epoch(t_us, number, accuracy, *partners):
    return ev.RetrainProgress(t_us, A, JOB, number, accuracy, float(number), partners)


def test_streams_that_learn_from_each_other_are_retrained_once():
    hand, turn = prepared(*BOTH)
    assert starts(turn) == {A: (B,)}
    assert hand.stream(A).job.partners == (Partner(B, None, 100 * S),)
    waiting = next(one for one in hand.views[-1].streams if one.stream == B)
    assert (waiting.served_by, waiting.retrain_options) == (A, ())


@pytest.mark.parametrize(
    ("profiles", "changes"),
    [
        ((*pooled(A, A, B), *pooled(B, B)), {}),
        (BOTH, {"options": replace(JOINS, retrains_together=False)}),
        (BOTH, {"prefers_joint": False}),
    ],
    ids=["one refuses the other's labels", "option off", "objective says alone"],
)
def test_streams_are_retrained_alone_otherwise(profiles, changes):
    _, turn = prepared(*profiles, **changes)
    assert starts(turn) == {A: (), B: ()}


def test_weights_serve_partner_that_they_do_well_on():
    hand, _ = prepared(*BOTH)
    hand.give(111 * S, epoch(111 * S, 1, 0.6, 0.4))
    hand.give(112 * S, epoch(112 * S, 2, 0.8, 0.9))
    turn = hand.give(113 * S, ev.RetrainFinished(113 * S, A, JOB, 2.0))
    assert served(turn) == [(A, None), (B, A)]
    assert starts(turn) == {}, "the partner needs no retraining of its own"
    turn = hand.give(114 * S, ev.ModelSwapped(114 * S, B, 1, JOB, 0.9, 0))
    assert (hand.stream(B).version, hand.stream(B).accuracy) == (1, 0.9)
    again = hand.give(115 * S, ev.StreamLost(115 * S, A, "no signal"))
    assert (starts(turn), starts(again)) == ({}, {})


def test_partner_that_loses_by_the_weights_is_retrained_itself():
    hand, _ = prepared(*BOTH)
    hand.give(111 * S, epoch(111 * S, 1, 0.8, 0.2))
    turn = hand.give(113 * S, ev.RetrainFinished(113 * S, A, JOB, 2.0))
    assert served(turn) == [(A, None)]
    assert starts(turn) == {B: ()}


def test_accuracies_of_the_best_epoch_decide():
    hand, _ = prepared(*BOTH)
    hand.give(111 * S, epoch(111 * S, 1, 0.8, 0.2))
    hand.give(112 * S, epoch(112 * S, 2, 0.7, 0.9))
    assert served(hand.give(113 * S, ev.RetrainFinished(113 * S, A, JOB, 2.0))) == [(A, None)]


def test_partner_whose_scene_has_changed_parts():
    hand, _ = prepared(*BOTH)
    hand.give(111 * S, epoch(111 * S, 1, 0.8, 0.9))
    hand.give(112 * S, ev.DriftDetected(112 * S, B, 1, 111 * S, "told by the test"))
    assert served(hand.give(113 * S, ev.RetrainFinished(113 * S, A, JOB, 2.0))) == [(A, None)]


def test_weights_of_an_unfinished_retraining_serve_partner_at_the_window_end():
    hand, _ = prepared(*BOTH)
    hand.give(111 * S, epoch(111 * S, 1, 0.8, 0.9))
    closing = (ev.WindowClosed(200 * S, 1), ev.WindowOpened(200 * S, 2, 300 * S))
    assert set(served(hand.give(200 * S, *closing))) >= {(B, A)}


def test_partner_is_not_served_where_the_world_does_not_measure():
    hand, _ = prepared(*BOTH)
    hand.give(111 * S, epoch(111 * S, 1, 0.8))
    turn = hand.give(113 * S, ev.RetrainFinished(113 * S, A, JOB, 2.0))
    assert (served(turn), starts(turn)) == ([(A, None)], {B: ()})


def test_checkpoint_serves_partner_once():
    hand, _ = prepared(*BOTH, options=replace(JOINS, checkpoint_delay_us=S // 2))
    turns = [
        hand.give(111 * S, epoch(111 * S, 1, 0.6, 0.6)),
        hand.give(112 * S, epoch(112 * S, 2, 0.8, 0.9)),
        hand.give(113 * S, epoch(113 * S, 3, 0.7, 0.9)),
    ]
    assert [one for turn in turns for one in served(turn)] == [(A, None), (B, A)]
    last = hand.give(114 * S, ev.RetrainFinished(114 * S, A, JOB, 3.0))
    assert (served(last), starts(last)) == ([], {})


def test_partner_with_newer_labels_parts():
    """Their accuracy on the older ones says nothing beside that of the serving model on the newer."""
    hand, _ = prepared(*BOTH)
    hand.give(111 * S, epoch(111 * S, 1, 0.8, 0.9))
    hand.give(112 * S, ev.DriftDetected(112 * S, B, 1, 101 * S, "told by the test"))
    hand.give(114 * S, replace(labels(114 * S, B, accuracy=0.6), since_us=101 * S))
    turn = hand.give(115 * S, ev.RetrainFinished(115 * S, A, JOB, 2.0))
    assert served(turn) == [(A, None)]


def test_partner_at_a_checkpoint_is_retrained_itself_if_the_joint_retraining_is_stopped():
    hand, _ = prepared(*BOTH, options=replace(JOINS, checkpoint_delay_us=S // 2))
    hand.give(111 * S, epoch(111 * S, 1, 0.6, 0.6))
    turn = hand.give(112 * S, epoch(112 * S, 2, 0.8, 0.9))
    assert (B, A) in served(turn)
    assert starts(hand.give(113 * S, ev.StreamEnded(113 * S, A))) == {B: ()}
