"""One step: calls of the scheduler, and commands that follow directly from events."""

import copy
from dataclasses import replace

import pytest
from byhand import (
    EVERY,
    INFERENCE,
    LAMBDAS,
    LONG,
    NEEDS,
    OPTIONS,
    SHORT,
    A,
    B,
    Hand,
    S,
    Wish,
    labels,
    only,
    opened_1,
    progress,
    promised,
    retraining,
    started,
)

from ekya.control.loop import first_state
from ekya.control.options import StreamHome, StreamTerms
from ekya.control.protocols import Batch
from ekya.control.step import step
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.profile import FamilyCurve, Profiler
from ekya.core.shares import inference_holder
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.core.view import InferenceOption
from ekya.core.weights import Compared
from ekya.planning.schedulers.registry import make_scheduler
from ekya.planning.schedulers.scheduler import Needs

# Planning

PAPER = replace(OPTIONS, profiler=Profiler.PAPER)
"""With the paper's profiler, whose estimates a running retraining renews."""


def test_step_numbers_plans_and_their_commands():
    hand = started()
    assert hand.state.epoch == 1
    nothing = hand.give(10 * S, ev.ShareMeasured(10 * S, A, ev.Role.INFERENCE, 300))
    assert (nothing.plan, hand.state.epoch) == (None, 1)
    hand.wishes[B] = Wish(600)
    turn = hand.give(20 * S, ev.StreamLost(20 * S, A, "no signal"))
    assert turn.plan.epoch == hand.state.epoch == 2
    assert [command.plan_epoch for command in turn.commands] == [2]


@pytest.mark.parametrize(
    "told",
    [
        ev.ShareResized(10 * S, inference_holder(A), 1, 300, 40),
        ev.ShareOverdue(10 * S, inference_holder(A), 1, 10 * S),
    ],
)
def test_step_on_share_changes_plans_nothing(told):
    hand = started()
    turn = hand.give(10 * S, told)
    assert (turn.plan, turn.commands) == (None, ())


def test_step_in_first_window_serves_base_without_preparation():
    hand = Hand()
    turn = hand.give(0, ev.StreamAdded(0, A, LAMBDAS), ev.WindowOpened(0, 0, 100 * S))
    assert turn.commands == (cmd.SetInference(A, LAMBDAS[0].config, 300, plan_epoch=1),)
    assert hand.views[0].streams[0].retrain_options == ()


def test_step_plans_without_lent_capacity():
    hand = started()
    before = hand.views[-1].capacity_milli
    hand.give(10 * S, ev.CapacityLent(10 * S, 200))
    assert hand.views[-1].capacity_milli == before - 200
    hand.give(20 * S, ev.CapacityLent(20 * S, 0))
    assert hand.views[-1].capacity_milli == before


def test_step_with_homes_never_plans_a_gpu_twice():
    both_on_0 = (StreamHome(A, 0), StreamHome(B, 0))
    hand = started(options=replace(OPTIONS, homes=both_on_0), wishes={A: Wish(800), B: Wish(800)})
    (first,) = hand.state.phases
    assert sum(one.inference_share_milli for one in first.assignments) == 1000
    assert [one.inference_gpu for one in first.assignments] == [0, 0]

    apart = replace(OPTIONS, homes=(StreamHome(A, 0), StreamHome(B, 1)))
    hand = opened_1(options=apart, wishes={A: Wish(800), B: Wish(800)})
    shares = {one.stream: one.inference_share_milli for one in hand.state.phases[0].assignments}
    assert shares == {A: 500, B: 800}  # The preparation holds its share on the first GPU.
    hand.give(120 * S, ev.PreparationEnded(120 * S, 1), ev.CapacityLent(120 * S, 300))
    shares = {one.stream: one.inference_share_milli for one in hand.state.phases[0].assignments}
    assert shares == {A: 800, B: 700}  # And guests' shares are not planned with on the last GPU.


def test_step_plans_a_stream_that_was_added_on_its_gpu():
    options = replace(OPTIONS, homes=(StreamHome(A, 0), StreamHome(B, 1)))
    new = StreamId("new")
    wishes = dict.fromkeys((A, B, new), Wish(800))
    hand = started(options=options, wishes=wishes)
    hand.give(10 * S, ev.StreamAdded(10 * S, new, LAMBDAS, gpu=1))
    shares = {one.stream: one.inference_share_milli for one in hand.state.phases[0].assignments}
    assert (shares[A], shares[B] + shares[new]) == (800, 1000)
    assert [one.inference_gpu for one in hand.state.phases[0].assignments] == [0, 1, 1]


def test_step_view_has_terms():
    promised_b = StreamTerms(B, weight=3.0, max_age_us=400_000)
    hand = started(options=replace(OPTIONS, terms=(promised_b,)))
    terms = [(s.stream, s.weight, s.max_age_us) for s in hand.views[-1].streams]
    assert terms == [(A, 1.0, None), (B, 3.0, 400_000)]


MATTERS = [
    ev.PreparationEnded(120 * S, 1),
    ev.RetrainFinished(120 * S, A, JobId(1), 9.0),
    ev.RetrainFailed(120 * S, A, JobId(1), "why"),
    ev.WorkerDied(120 * S, A, INFERENCE, "why"),
    ev.WorkerBack(120 * S, A, INFERENCE),
    ev.StreamLost(120 * S, A, "why"),
    ev.StreamBack(120 * S, A),
    ev.StreamEnded(120 * S, A),
]
DOES_NOT = [
    ev.ShareMeasured(120 * S, A, INFERENCE, 200),
    ev.ModelSwapped(120 * S, A, ModelVersion(1), JobId(1), 0.7, 100),
    labels(120 * S, B),
    ev.ProfileReady(120 * S, A, 1, FamilyCurve(16, 0, 1, 64, (0.4, 0.5), 1.0, 0.5), 0.2),
    ev.InferenceProfiled(120 * S, B, 1, LAMBDAS, 0.2),
    progress(120 * S, 1, 0.7),
]


def name_of(event):
    return type(event).__name__


@pytest.mark.parametrize("event", MATTERS, ids=name_of)
def test_step_on_replanning_event_plans(event):
    assert retraining().give(120 * S, event).plan is not None


@pytest.mark.parametrize("event", DOES_NOT, ids=name_of)
def test_step_on_other_event_plans_nothing(event):
    assert retraining().give(120 * S, event).plan is None


def needs(t_us, share_milli):
    return ev.NeedMeasured(t_us, A, EVERY, share_milli)


def test_step_on_falling_behind_plans_once():
    """Streams hold 300: enough for 19 of 20 frames as long as all frames take no more than 315."""
    hand = started()
    assert hand.give(10 * S, needs(10 * S, 314)).plan is None
    assert hand.give(15 * S, needs(15 * S, 400)).plan is not None
    view = next(stream for stream in hand.views[-1].streams if stream.stream == A)
    told = [(option.share_needed_milli, option.ample_milli) for option in view.inference_options]
    assert told == [(380, 460), (190, 230)]
    assert hand.give(20 * S, needs(20 * S, 430)).plan is None


def test_step_keeps_measured_need_after_profile():
    hand = retraining()
    hand.give(115 * S, needs(115 * S, 270))
    hand.give(120 * S, ev.InferenceProfiled(120 * S, A, 1, LAMBDAS[:1], 0.2))
    hand.give(125 * S, ev.StreamLost(125 * S, B, "why"))
    (view,) = hand.views[-1].streams
    assert [option.ample_milli for option in view.inference_options] == [311]


def test_step_before_first_window_plans_nothing():
    turn = retraining().give(120 * S)
    assert (turn.plan, turn.commands) == (None, ())


def test_step_with_many_events_plans_once():
    """The helper asserts a single call of the planner, which sees the effect of all events."""
    hand = retraining()
    turn = hand.give(120 * S, *DOES_NOT, ev.StreamLost(120 * S, B, "why"), *MATTERS[1:2])
    assert turn.plan is not None
    assert [stream.stream for stream in hand.views[-1].streams] == [A]
    assert hand.views[-1].streams[0].accuracy == 0.7


def test_step_ignores_order_of_kinds_in_batch():
    events = [ev.WindowClosed(200 * S, 1), ev.WindowOpened(200 * S, 2, 300 * S), progress(200 * S, 1, 0.9)]
    hands = [retraining(), retraining()]
    turns = [hand.give(200 * S, *order) for hand, order in zip(hands, (events, events[::-1]), strict=True)]
    assert turns[0] == turns[1]


def test_step_leaves_given_state_unchanged():
    hand = retraining()
    before, held = hand.state, copy.deepcopy(hand.state)
    hand.give(120 * S, *MATTERS)
    assert before == held
    assert hand.state != held


def test_step_with_same_plan_issues_no_commands():
    hand = retraining()
    turn = hand.give(120 * S, ev.StreamBack(120 * S, B))
    assert turn.plan is not None
    assert turn.commands == ()


def test_step_after_window_end_plans_nothing():
    """The loop is late: the batch holds only the old window's end, or comes after the new one's."""
    assert retraining().give(200 * S, ev.RetrainFinished(199 * S, A, JobId(1), 9.0)).plan is None
    late = opened_1()
    assert late.give(350 * S, ev.WindowOpened(200 * S, 2, 300 * S)).plan is None


def test_step_without_serving_stream_plans_nothing():
    hand = started()
    hand.give(10 * S, ev.StreamLost(10 * S, A, "why"))
    assert hand.give(11 * S, ev.StreamEnded(11 * S, B)).plan is None


def test_step_grants_shares_in_backend_steps():
    hand = started(options=replace(OPTIONS, share_step_milli=125), wishes={A: Wish(300), B: Wish(130)})
    assert (hand.stream(A).inference_share_milli, hand.stream(B).inference_share_milli) == (250, 125)


# Borders of windows


def test_step_at_window_start_prepares_serving_streams():
    hand = started()
    hand.give(50 * S, ev.StreamLost(50 * S, B, "why"))
    turn = hand.open_window(1)
    (begun,) = only(cmd.BeginPreparation, turn)
    assert (begun.window, begun.share_milli) == (1, 500)
    assert [(asked.stream, asked.inference, asked.families) for asked in begun.streams] == [
        (A, OPTIONS.inference_configs, ())
    ]
    assert hand.views[-1].capacity_milli == 1500
    assert hand.state.fleet.preparing


def test_step_shrinks_inference_before_preparation():
    hand = started(wishes={A: Wish(1000), B: Wish(1000)})
    hand.wishes = {A: Wish(700), B: Wish(800)}
    turn = hand.open_window(1)
    assert [type(command) for command in turn.commands] == [
        cmd.SetInference,
        cmd.SetInference,
        cmd.BeginPreparation,
    ]


def test_step_on_late_window_does_not_prepare():
    hand = opened_1(needs=Needs(labels=False, inference_profile=False, micro_profile=False))
    hand.needs = NEEDS
    assert hand.give(350 * S, ev.WindowOpened(200 * S, 2, 300 * S)).commands == ()
    assert not hand.state.fleet.preparing


def test_step_prepares_what_scheduler_needs():
    hand = opened_1(needs=Needs(labels=False, inference_profile=False, micro_profile=False))
    assert not hand.state.fleet.preparing
    assert hand.views[-1].capacity_milli == 2000
    estimates = Needs(labels=True, inference_profile=False, micro_profile=True)
    for profiler, families in ((Profiler.EKYA, 0), (Profiler.PAPER, 2)):
        hand = started(needs=estimates, options=replace(OPTIONS, profiler=profiler))
        (begun,) = only(cmd.BeginPreparation, hand.open_window(1))
        assert [asked.inference for asked in begun.streams] == [(), ()]
        assert all(len(asked.families) == families for asked in begun.streams)


def test_step_retrains_only_after_preparation():
    hand = opened_1(wishes={A: Wish(retrain=SHORT, retrain_milli=200), B: Wish(retrain=SHORT)})
    hand.give(103 * S, labels(103 * S, A))
    hand.give(104 * S, ev.WorkerBack(104 * S, A, INFERENCE))
    assert all(stream.retrain_options == () for stream in hand.views[-1].streams)
    turn = hand.end_preparation(105)
    assert turn.commands[0] == cmd.EndPreparation(1)
    offered = {stream.stream: stream.retrain_options for stream in hand.views[-1].streams}
    assert (len(offered[A]), len(offered[B])) == (2, 0)
    assert hand.views[-1].capacity_milli == 2000
    assert [start.stream for start in only(cmd.StartRetraining, turn)] == [A]


def test_step_ends_preparation_once():
    hand = opened_1()
    twice = hand.give(115 * S, ev.PreparationEnded(115 * S, 1), ev.PreparationEnded(115 * S, 1))
    assert len(only(cmd.EndPreparation, twice)) == 1
    assert only(cmd.EndPreparation, hand.end_preparation(116)) == []


def test_step_at_border_ends_and_begins_preparation():
    hand = opened_1()
    turn = hand.open_window(2)
    assert [command.window for command in only(cmd.EndPreparation, turn)] == [1]
    assert [command.window for command in only(cmd.BeginPreparation, turn)] == [2]
    assert turn.commands[0] == cmd.EndPreparation(1)


def test_step_ignores_end_of_old_preparation():
    hand = opened_1()
    assert only(cmd.EndPreparation, hand.end_preparation(101, 0)) == []
    assert hand.state.fleet.preparing


def about_job_1(turn):
    kinds = (cmd.ServeModel, cmd.KeepServing, cmd.StopRetraining, cmd.ResizeRetraining)
    return [command for command in turn.commands if isinstance(command, kinds)]


def test_step_at_window_end_serves_better_unfinished_weights():
    hand = retraining(accuracy=0.5)
    for epoch, accuracy in enumerate((0.40, 0.505, 0.45), start=1):
        hand.give((190 + epoch) * S, progress((190 + epoch) * S, epoch, accuracy))
    assert hand.stream().job.served_epoch == 0
    assert about_job_1(hand.open_window(2)) == [
        cmd.ServeModel(A, JobId(1), 2),
        cmd.StopRetraining(A, JobId(1)),
    ]
    assert hand.stream().job is None


def test_step_at_window_end_stops_job_without_epochs():
    assert about_job_1(retraining(accuracy=0.5).open_window(2)) == [cmd.StopRetraining(A, JobId(1))]


def test_step_at_window_end_keeps_serving_with_reason():
    hand = retraining(accuracy=0.5)
    for epoch, accuracy in enumerate((0.3, 0.49), start=1):
        hand.give((190 + epoch) * S, progress((190 + epoch) * S, epoch, accuracy))
    kept, stopped = about_job_1(hand.open_window(2))
    assert stopped == cmd.StopRetraining(A, JobId(1))
    assert (kept.stream, kept.job, kept.epoch) == (A, JobId(1), 2)
    assert "49.0%" in kept.reason
    assert "50.0%" in kept.reason


def test_step_never_serves_a_checkpoint_twice():
    hand = retraining(accuracy=0.5)
    turn = hand.give(120 * S, progress(120 * S, 1, 0.7))
    assert turn.commands == (cmd.ServeModel(A, JobId(1), 1),)
    hand.give(121 * S, ev.ModelSwapped(121 * S, A, ModelVersion(1), JobId(1), 0.7, 100))
    assert about_job_1(hand.give(130 * S, progress(130 * S, 2, 0.65))) == []
    assert about_job_1(hand.open_window(2)) == [cmd.StopRetraining(A, JobId(1))]


def test_step_in_next_window_forgets_jobs():
    hand = retraining()
    hand.open_window(2)
    assert hand.views[-1].streams[0].running is None
    late = hand.give(201 * S, progress(200 * S, 9, 0.99), ev.RetrainFinished(200 * S, A, JobId(1), 9.0))
    assert about_job_1(late) == []
    assert hand.stream().accuracy == 0.5


# A retraining from start to end


def test_step_locks_gamma_and_offers_none_afterwards():
    hand = retraining(gamma=LONG)
    hand.wishes[A] = Wish(retrain=SHORT, retrain_milli=900)
    turn = hand.give(120 * S, ev.StreamBack(120 * S, B))
    assert turn.commands == (cmd.ResizeRetraining(A, JobId(1), 900, turn.plan.epoch),)
    assert hand.stream().job.config == LONG
    assert hand.views[-1].streams[0].running.option.config == LONG
    assert hand.views[-1].streams[0].retrain_options == ()
    done = hand.give(150 * S, ev.RetrainFinished(150 * S, A, JobId(1), 9.0))
    assert only(cmd.StartRetraining, done) == []
    assert hand.views[-1].streams[0].retrain_options == ()


def test_step_serves_finished_weights_and_plans_with_them():
    hand = retraining(accuracy=0.5)
    epochs = [progress(150 * S, epoch, 0.4 + 0.04 * epoch) for epoch in range(1, 11)]
    turn = hand.give(150 * S, *epochs, ev.RetrainFinished(150 * S, A, JobId(1), 10.0))
    assert only(cmd.ServeModel, turn)[-1] == cmd.ServeModel(A, JobId(1), 10)
    assert hand.views[-1].streams[0].accuracy == 0.8


def test_step_refuses_worse_finished_weights():
    hand = retraining(accuracy=0.5)
    hand.give(150 * S, progress(150 * S, 10, 0.4))
    (kept,) = about_job_1(hand.give(151 * S, ev.RetrainFinished(151 * S, A, JobId(1), 9.0)))
    assert isinstance(kept, cmd.KeepServing)
    assert hand.stream().accuracy == 0.5


def test_step_with_margin_serves_slightly_worse_weights():
    hand = retraining(accuracy=0.5, options=replace(OPTIONS, serve_margin=0.15))
    hand.give(150 * S, progress(150 * S, 1, 0.4))
    turn = hand.give(151 * S, ev.RetrainFinished(151 * S, A, JobId(1), 9.0))
    assert about_job_1(turn) == [cmd.ServeModel(A, JobId(1), 1)]


def compared(t_us, new, old, window=1):
    return replace(labels(t_us, A, window), compared=Compared(new, old, 16))


def test_step_rolls_back_worse_weights_with_reason():
    hand = opened_1()
    (command,) = hand.give(105 * S, compared(105 * S, 0.5, 0.7)).commands
    assert (type(command), command.stream) == (cmd.RollBack, A)
    assert "16 objects" in command.reason
    hand.give(106 * S, ev.RolledBack(106 * S, A, ModelVersion(3), ModelVersion(1), 200))
    assert hand.stream().version == 3


def test_step_keeps_weights_within_roll_back_margin():
    assert opened_1().give(105 * S, compared(105 * S, 0.7, 0.7)).commands == ()
    assert opened_1().give(105 * S, compared(105 * S, 0.6, 0.7)).commands == ()
    never = replace(OPTIONS, roll_back_margin=1.0)
    assert opened_1(options=never).give(105 * S, compared(105 * S, 0.0, 1.0)).commands == ()


def test_step_ignores_old_labels_and_ended_cameras():
    hand = opened_1()
    assert hand.give(105 * S, compared(105 * S, 0.1, 0.9, window=0)).commands == ()
    hand.give(106 * S, ev.StreamEnded(106 * S, A))
    assert only(cmd.RollBack, hand.give(107 * S, compared(107 * S, 0.1, 0.9))) == []


def test_step_serves_best_of_failed_retraining():
    hand = retraining(accuracy=0.5)
    hand.give(195 * S, progress(195 * S, 1, 0.501))
    turn = hand.give(196 * S, ev.RetrainFailed(196 * S, A, JobId(1), "no memory"))
    assert turn.commands == (cmd.ServeModel(A, JobId(1), 1),)


def test_step_on_changed_estimate_plans():
    """The profile promised 0.8 after epoch 10, which the first two epochs do not suggest."""
    hand = retraining(accuracy=0.5, options=PAPER)
    promised(hand, 0.8)
    first = hand.give(120 * S, progress(120 * S, 1, 0.50))
    assert first.plan is None, "estimated every second epoch"
    second = hand.give(125 * S, progress(125 * S, 2, 0.50))
    assert second.plan is not None
    seen = hand.views[-1].streams[0].running.option
    assert seen.accuracy_after == pytest.approx(0.8 * 0.8 + 0.2 * 0.5)
    assert seen.gpu_s == pytest.approx(8.0)
    assert hand.stream().job.promised_accuracy == 0.8


def test_step_with_estimates_by_outcomes_lets_a_retraining_go_on():
    hand = retraining(accuracy=0.5)
    promised(hand, 0.8)
    hand.give(120 * S, progress(120 * S, 1, 0.50))
    assert hand.give(125 * S, progress(125 * S, 2, 0.50)).plan is None
    assert hand.stream().job.expected_accuracy == 0.8


def test_step_on_stable_estimate_plans_nothing():
    hand = retraining(accuracy=0.5, options=PAPER)
    promised(hand, 0.52)
    hand.give(120 * S, progress(120 * S, 1, 0.50))
    assert hand.give(125 * S, progress(125 * S, 2, 0.50)).plan is None
    assert hand.stream().job.expected_accuracy == 0.52


def test_step_keeps_job_that_exceeds_promise_running():
    """Its best epoch serves already; a lower estimate of its end would make further epochs look harmful."""
    hand = retraining(accuracy=0.5, options=PAPER)
    promised(hand, 0.6)
    hand.give(120 * S, progress(120 * S, 1, 0.70))
    hand.give(121 * S, ev.ModelSwapped(121 * S, A, ModelVersion(1), JobId(1), 0.70, 100))
    hand.give(121 * S, ev.StreamBack(121 * S, B))
    assert hand.views[-1].streams[0].running.option.accuracy_after == 0.70
    hand.give(122 * S, progress(122 * S, 2, 0.72))
    hand.give(123 * S, ev.ModelSwapped(123 * S, A, ModelVersion(2), JobId(1), 0.72, 100))
    assert hand.stream().job.expected_accuracy >= 0.72
    hand.give(124 * S, ev.StreamBack(124 * S, B))
    phase = make_scheduler("thief").plan(hand.views[-1]).phases[0]
    assert phase.assignments[0].retrain_share_milli > 0


def test_step_plans_with_profiled_lambdas():
    hand = opened_1()
    measured = (InferenceOption(LAMBDAS[0].config, 1.0, 777), InferenceOption(LAMBDAS[1].config, 0.9, 444))
    hand.give(103 * S, ev.InferenceProfiled(103 * S, A, 1, measured, 0.1))
    hand.end_preparation(105)
    assert hand.views[-1].streams[0].inference_options == measured


def test_step_with_unknown_stream_raises():
    with pytest.raises(KeyError):
        step(first_state(), Batch(0, (ev.StreamBack(0, A),)), OPTIONS, NEEDS, Hand().plan)
