"""Weights from the middle of a retraining: when they serve, and what the scheduler sees of them."""

from dataclasses import replace

import pytest
from byhand import LAMBDAS, LONG, NEEDS, OPTIONS, SHORT, A, S
from hypothesis import given
from hypothesis import strategies as st

from ekya.control.checkpointing import early_part, gpu_s_left, worth_serving
from ekya.control.views import window_view
from ekya.core.profile import FamilyCurve, Profiler
from ekya.core.state import FleetState, RetrainJob, StreamState, WindowLabels, WindowProfiles
from ekya.core.units import JobId
from ekya.core.view import RetrainOption
from ekya.core.weights import Elsewhere
from ekya.planning.schedulers.checkpoint_gain import bend_of, early_part_left, part_in_steps

END_US = 200 * S


def job(accuracies=(0.6,), share_milli=500, gpu_s=None, **changes):
    """LONG has 10 epochs; each has taken one GPU-second so far."""
    spent = float(len(accuracies)) if gpu_s is None else gpu_s
    return replace(
        RetrainJob(
            JobId(1),
            LONG,
            1,
            share_milli,
            0.8,
            0.8,
            10.0,
            accuracies=accuracies,
            gpu_s=spent,
            first_epoch_gpu_s=1.0,
        ),
        **changes,
    )


def worth(a_job, accuracy=0.5, now_us=150 * S, delay_us=S // 2):
    stream = StreamState(A, LAMBDAS, accuracy=accuracy, job=a_job)
    return worth_serving(stream, a_job, now_us, END_US, replace(OPTIONS, checkpoint_delay_us=delay_us))


def test_worth_serving_at_break_even_is_strict():
    """Gain 0.1 for the 18 s that 9 epochs take at half a GPU; the delay costs 0.8 while it lasts."""
    assert worth(job(), delay_us=round(0.1 * 18 / 0.8 * S) - 1)
    assert not worth(job(), delay_us=round(0.1 * 18 / 0.8 * S) + 1)


def test_worth_serving_without_checkpoints_is_false():
    early_and_better = job(accuracies=(0.9,))
    assert worth(early_and_better, now_us=S, delay_us=0)
    assert not worth(early_and_better, now_us=S, delay_us=None)


def test_worth_serving_counts_until_window_end():
    delay_us = round(0.1 * 5 / 0.8 * S)
    assert worth(job(), now_us=END_US - 5 * S - 100, delay_us=delay_us)
    assert not worth(job(), now_us=END_US - 5 * S + 100, delay_us=delay_us)


def test_worth_serving_sooner_for_slow_retraining():
    delay_us = round(0.1 * 30 / 0.8 * S)
    assert not worth(job(share_milli=500), delay_us=delay_us)
    assert worth(job(share_milli=250), delay_us=delay_us)
    assert worth(job(share_milli=0), delay_us=delay_us), "a paused one brings nothing else in this window"


def test_worth_serving_costs_more_with_better_best():
    """A delay costs the accuracy reached so far, even if the estimate is lower."""
    behind = job(accuracies=(0.6,), expected_accuracy=0.3)
    assert worth(behind, delay_us=round(0.1 * 18 / 0.6 * S) - 1)
    assert not worth(behind, delay_us=round(0.1 * 18 / 0.6 * S) + 1)


@pytest.mark.parametrize(
    ("a_job", "accuracy"),
    [
        (job(accuracies=()), 0.5),
        (job(accuracies=(0.5,)), 0.5),
        (job(accuracies=(0.4,)), 0.5),
        (job(accuracies=(0.6, 0.5), served_epoch=1), 0.5),
        (job(accuracies=tuple(0.5 + n / 100 for n in range(10))), 0.5),
    ],
    ids=["no epoch yet", "no gain", "worse", "the best serves already", "the end comes now"],
)
def test_worth_serving_without_gain_is_false(a_job, accuracy):
    assert not worth(a_job, accuracy, delay_us=0)


def away(arrives_us, **changes):
    """Returns a job on other servers, which does not report the GPU time that it has used."""
    return job(share_milli=0, gpu_s=0.0, elsewhere=Elsewhere(arrives_us), **changes)


def test_worth_serving_remote_until_its_arrival():
    assert worth(away(168 * S), delay_us=round(0.1 * 18 / 0.8 * S) - 1)
    assert not worth(away(168 * S), delay_us=round(0.1 * 18 / 0.8 * S) + 1)


def test_worth_serving_late_remote_until_window_end():
    assert worth(away(149 * S), delay_us=round(0.1 * 50 / 0.8 * S) - 1)
    assert not worth(away(149 * S), delay_us=round(0.1 * 50 / 0.8 * S) + 1)


def test_gpu_s_left_remote_follows_epochs():
    assert gpu_s_left(away(168 * S, accuracies=())) == 10.0
    assert gpu_s_left(away(168 * S, accuracies=(0.0, 0.6))) == pytest.approx(8.0)
    assert gpu_s_left(away(168 * S, accuracies=(0.6,) * 10)) == 0.0


def test_worth_serving_takes_best_epoch():
    assert worth(job(accuracies=(0.7, 0.5)), accuracy=0.6)


@given(
    st.integers(0, 100),
    st.integers(0, 100),
    st.integers(0, 10 * S),
    st.integers(0, 10 * S),
    st.integers(100 * S, END_US),
    st.integers(100 * S, END_US),
)
def test_worth_serving_grows_with_time_and_less_delay(best, now, delay_a, delay_b, at_a, at_b):
    less, more = sorted((delay_a, delay_b))
    sooner, later = sorted((at_a, at_b))
    a_job = job(accuracies=(best / 100,))
    if worth(a_job, now / 100, later, more):
        assert worth(a_job, now / 100, sooner, less)
        assert best > now


def test_gpu_s_left_follows_own_pace():
    assert gpu_s_left(job(accuracies=(), gpu_s=4.0)) == 6.0
    assert gpu_s_left(job(accuracies=(), gpu_s=25.0)) == 0.0
    assert gpu_s_left(job(accuracies=(0.5,), gpu_s=4.0)) == 6.0, "as it was profiled: no pace yet"
    assert gpu_s_left(job(accuracies=(0.5, 0.6), gpu_s=4.0)) == 24.0
    assert gpu_s_left(job(accuracies=(0.5,) * 10, gpu_s=6.0)) == 0.0


def test_gpu_s_left_excludes_long_preparation():
    """Only the head trains: nine tenths of its time are preparation, and no checkpoint is worth it."""
    head_only = job(accuracies=(0.6,), gpu_s=0.9, expected_gpu_s=1.0, first_epoch_gpu_s=0.9)
    assert gpu_s_left(head_only) == pytest.approx(0.1)
    assert not worth(head_only, delay_us=S // 4)


RISING = RetrainOption(LONG, 0.9, 10.0, early_part=0.7)


def early(option=RISING, accuracy=0.5, delay_us=0):
    return early_part(option, accuracy, replace(OPTIONS, checkpoint_delay_us=delay_us))


def test_early_part_lags_by_one_epoch():
    assert early() == pytest.approx(part_in_steps(bend_of(0.7), LONG.epochs))
    assert early() < 0.7


def test_early_part_where_none_serve_is_zero():
    assert early(delay_us=None) == 0.0


def test_early_part_falls_with_checkpoint_cost():
    """Nine delays of 0.5 s would cost 0.9 for 4.5 s, more than the gain of 0.4 brings in 10 s."""
    free, cheap, dear = (early(delay_us=delay_us) for delay_us in (0, S // 100, S // 2))
    assert free > cheap == pytest.approx(free - 9 * 0.01 * 0.9 / (0.4 * 10))
    one = part_in_steps(bend_of(0.7), 2) - 0.5 * 0.9 / (0.4 * 10)
    assert cheap > dear >= one > 0.0
    assert early(delay_us=100 * S) == 0.0


@pytest.mark.parametrize(
    "option",
    [
        replace(RISING, early_part=0.0),
        replace(RISING, accuracy_after=0.5),
        replace(RISING, config=replace(LONG, epochs=1)),
        replace(RISING, gpu_s=0.0),
    ],
    ids=["says nothing", "no gain", "one epoch", "no work"],
)
def test_early_part_without_checkpoints_is_zero(option):
    assert early(option) == 0.0


# Views


TOLD = replace(NEEDS, micro_profile=True, early_parts=True)
PROFILED = RetrainOption(LONG, 0.9, 10.0, early_part=0.7)
PROFILES = WindowProfiles(options=(PROFILED,))
CURVE = FamilyCurve(16, 0, 0, 40, (0.4, 0.6, 0.7), 0.1, 0.1, validation_crops=100)
JOB = RetrainJob(JobId(1), LONG, 1, 500, 0.9, 0.9, 10.0, (0.6, 0.7), 4.0, 2.0, early_part=0.7)


def seen(needs=TOLD, options=OPTIONS, **changes):
    stream = replace(
        StreamState(A, LAMBDAS, accuracy=0.5, labels=WindowLabels(80, 20), profiles=PROFILES),
        **changes,
    )
    state = FleetState((stream,), window=1, window_open_us=100 * S, window_end_us=200 * S)
    return window_view(state, 120 * S, options, needs, {}).streams[0]


def test_view_option_has_net_early_part():
    (option,) = seen().retrain_options
    assert option.early_part == early_part(PROFILED, 0.5, OPTIONS) > 0.0


def test_view_for_paper_planners_has_no_early_part():
    (option,) = seen(replace(TOLD, early_parts=False)).retrain_options
    assert option == replace(PROFILED, early_part=0.0)


def test_view_of_a_profiled_stream_has_the_papers_options():
    profiled = replace(OPTIONS, profiler=Profiler.PAPER)
    (option,) = seen(profiles=WindowProfiles((CURVE,)), options=profiled).retrain_options
    assert (option.config, option.early_part) == (SHORT, 0.0)


def test_view_of_running_job_has_remaining_early_part():
    running = seen(job=JOB).running.option
    assert (running.gpu_s, running.accuracy_after) == (16.0, 0.9)
    assert running.early_part == pytest.approx(early_part_left(0.7, 16.0 / 20.0))


def test_view_accuracy_follows_served_checkpoint():
    measured = WindowLabels(80, 20, accuracy_on_all=0.4)
    before, since = (seen(job=replace(JOB, served_epoch=epoch), labels=measured) for epoch in (0, 2))
    assert (before.accuracy, since.accuracy) == (0.4, 0.5)
    assert seen(finished=JOB, labels=measured).accuracy == 0.5
    assert seen(labels=replace(measured, new_classes=True)).accuracy == 0.5


def test_view_of_a_labelled_stream_offers_usual_options():
    """Each γ costs what the cost card says, and promises the usual accuracy."""
    options = seen(profiles=WindowProfiles()).retrain_options
    by_card = seen(replace(TOLD, micro_profile=False), profiles=WindowProfiles()).retrain_options
    assert [option.config for option in options] == [option.config for option in by_card]
    costs = [option.gpu_s for option in by_card]
    assert [option.gpu_s for option in options] == pytest.approx(costs)
    assert all(0.5 < option.accuracy_after < 0.9 for option in options)
    assert seen(profiles=WindowProfiles(), accuracy=None).retrain_options == ()
    assert seen(profiles=WindowProfiles(), labels=WindowLabels(80, 0)).retrain_options == ()


def test_view_offers_nothing_on_few_labelled_objects():
    assert seen(labels=WindowLabels(5, 2)).retrain_options == ()
    assert seen(labels=WindowLabels(6, 2)).retrain_options
    # A detector's labels are counted in frames, and it is objects that it learns from.
    assert seen(labels=WindowLabels(40, 10, objects=7)).retrain_options == ()
    assert seen(labels=WindowLabels(3, 1, objects=8)).retrain_options


def test_view_of_a_labelled_stream_rises_with_accuracy():
    low, high = (
        seen(profiles=WindowProfiles(), accuracy=accuracy).retrain_options for accuracy in (0.2, 0.85)
    )
    assert all(worse.accuracy_after < better.accuracy_after for worse, better in zip(low, high, strict=True))
