"""Tests of what a preparation costs inference, and of the share and streams that are worth it."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st
from views import GAMMAS, window_views

from ekya.planning.preparation.worth import NOTHING, Prospect, best_investment, inference_values
from ekya.planning.profiling.history import (
    DRIFT_LOSS,
    LabelledWindow,
    Observation,
    ProfileHistory,
    expected_gain,
    unseen_error,
)
from ekya.planning.schedulers.exact import Exact

gains = st.floats(0.0, 1.0)
costs_gpu_s = st.floats(0.01, 20.0)


def serving_only(view):
    """Returns the view without retrainings and constraints."""
    streams = tuple(
        replace(stream, retrain_options=(), running=None, max_age_us=None) for stream in view.streams
    )
    return replace(view, streams=streams, min_accuracy=0.0)


def prospects_of(view, draw):
    return [
        Prospect(stream.stream, draw(gains), draw(costs_gpu_s), draw(costs_gpu_s)) for stream in view.streams
    ]


def limit_us(_share_milli):
    return 30_000_000


@given(view=window_views())
def test_inference_values_rise_to_at_least_that_of_the_best_plan(view):
    assume(view.streams)
    view = serving_only(view)
    values = inference_values(view)
    assert (values[1:] >= values[:-1]).all()
    # The plan also keeps up with as many streams as it can.
    assert values[-1] >= Exact().plan(view).expected_accuracy - 1e-9


@given(view=window_views(), draw=st.data())
def test_best_investment_stays_within_its_bounds(view, draw):
    prospects = prospects_of(view, draw.draw)
    most_milli = draw.draw(st.integers(0, 10)) * view.quantum_milli
    best = best_investment(view, prospects, most_milli, limit_us)
    assert 0 <= best.share_milli <= min(most_milli, max(view.capacity_milli, 0))
    assert set(best.streams) <= {one.stream for one in prospects}
    assert bool(best.streams) == (best.worth > 0.0) == (best.share_milli > 0)
    chosen = [one for one in prospects if one.stream in best.streams]
    speed = view.training_speed.speed_at(best.share_milli)
    in_time = sum(one.prepare_gpu_s for one in chosen) <= 30.0 * speed * (1 + 1e-5)
    assert in_time or len(chosen) == 1


@given(view=window_views(), draw=st.data(), more=st.floats(0.0, 0.5))
def test_best_investment_is_worth_no_less_where_more_is_gained(view, draw, more):
    prospects = prospects_of(view, draw.draw)
    better = [replace(one, gain=one.gain + more) for one in prospects]
    most_milli = 10 * view.quantum_milli
    before, after = (best_investment(view, some, most_milli, limit_us) for some in (prospects, better))
    # A prefix of another order may be a little better, so only the sign is a law.
    assert after.worth > 0.0 or before.worth == 0.0


@given(view=window_views(), draw=st.data())
def test_best_investment_prepares_a_stream_whose_cost_seems_larger_than_the_limit(view, draw):
    """Only labels tell what they cost, so a mistaken cost must not keep them from being made."""
    assume(view.streams)
    known = prospects_of(view, draw.draw)[:1]
    most_milli = 10 * view.quantum_milli
    best = best_investment(view, known, most_milli, limit_us)
    assert best_investment(view, known, most_milli, lambda share_milli: 1).streams == best.streams


@given(view=window_views(), draw=st.data())
def test_best_investment_without_gain_is_none(view, draw):
    none = [replace(one, gain=0.0) for one in prospects_of(view, draw.draw)]
    assert best_investment(view, none, 10 * view.quantum_milli, limit_us) == NOTHING


def labelled(*accuracies_and_gains):
    windows = []
    for index, (accuracy, loss, gain) in enumerate(accuracies_and_gains, start=1):
        windows.append(LabelledWindow(index, accuracy, loss, gain))
    return ProfileHistory(labelled=tuple(windows))


def test_expected_gain_of_steady_good_model_falls_with_every_window():
    steady = [(0.98, None, 0.0), *[(0.98, 0.0, 0.0)] * 4]
    expected = [
        expected_gain(labelled(*steady[:count]), 0.98, count + 1, drifted=False) for count in range(1, 6)
    ]
    assert expected == sorted(expected, reverse=True)
    assert expected[-1] < 0.025


def test_expected_gain_grows_while_unlabelled_and_with_a_drift():
    history = labelled((0.9, None, 0.0), (0.9, 0.0, 0.0))
    next_, later = (expected_gain(history, 0.9, window, drifted=False) for window in (3, 5))
    assert later > next_
    assert expected_gain(history, 0.9, 3, drifted=True) >= 0.3 * DRIFT_LOSS > next_


def test_expected_gain_where_retrainings_gained_nothing_is_less():
    failing = labelled((0.5, None, 0.0), (0.5, 0.0, 0.0), (0.5, 0.0, -0.1))
    helping = labelled((0.5, None, 0.0), (0.5, 0.0, 0.4), (0.5, 0.0, 0.4))
    assert expected_gain(failing, 0.5, 4, drifted=False) < 0.1
    assert expected_gain(helping, 0.5, 4, drifted=False) > 0.35


def test_expected_gain_before_labels_is_less_where_the_fleets_models_are_good():
    good, bad = ([labelled((accuracy, None, 0.0))] * 3 for accuracy in (0.98, 0.2))
    of_good, first, of_bad = (
        expected_gain(ProfileHistory(), None, 2, drifted=False, unseen=unseen_error([ProfileHistory(), *of]))
        for of in (good, [], bad)
    )
    assert of_good < 0.4 * first
    assert of_bad > first == expected_gain(ProfileHistory(), None, 2, drifted=False)


def test_history_keeps_labels_beside_observations():
    history = labelled((0.5, None, 0.0))
    kept = history.with_observation(Observation(1, GAMMAS[0], 0.2, 1.0, predicted_gain=0.3))
    assert kept.labelled == history.labelled
    assert (kept.gained_in(1), kept.gained_in(2)) == (0.2, 0.0)
