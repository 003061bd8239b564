"""What a preparation costs inference, the share and streams that are worth it, and the order of its steps."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st
from views import GAMMAS, window_views

from ekya.core.commands import PrepareStream
from ekya.core.configs import InferenceConfig
from ekya.core.profile import Family
from ekya.core.state import StreamState
from ekya.core.units import StreamId
from ekya.planning.preparation.steps import (
    InferenceStep,
    Labelled,
    LabelStep,
    TrialStep,
    next_prepared,
    preparation_steps,
)
from ekya.planning.preparation.worth import NOTHING, Prospect, best_investment, inference_values
from ekya.planning.profiling.history import (
    DRIFT_LOSS,
    LabelledWindow,
    Observation,
    ProfileHistory,
    expected_gain,
    unseen_error,
)
from ekya.planning.profiling.pruning import ENOUGH_ACCURACY
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


A, B, C = StreamId("a"), StreamId("b"), StreamId("c")
LAMBDAS = (InferenceConfig(1, 32), InferenceConfig(2, 32))
CHEAP, DEEP = Family(0, 0, 16), Family(2, 0, 16)


def waiting_stream(name, prepared_in, accuracy):
    return StreamState(name, (), prepared_in=prepared_in, accuracy=accuracy)


def asked(stream, inference=LAMBDAS, families=(CHEAP, DEEP)):
    return PrepareStream(stream, inference, families)


def carried_out(streams, outcomes):
    """Returns all steps, with these outcomes of labelling."""
    labelled, steps = {}, []
    for step in preparation_steps(streams, labelled):
        steps.append(step)
        if isinstance(step, LabelStep) and step.stream in outcomes:
            labelled[step.stream] = outcomes[step.stream]
    return steps


def test_preparation_steps_do_most_valuable_first():
    steps = carried_out([asked(A), asked(B)], {A: Labelled(0.7, True), B: Labelled(0.2, True)})
    assert steps == [
        LabelStep(A),
        LabelStep(B),
        TrialStep(B, CHEAP, first=True),
        TrialStep(A, CHEAP, first=True),
        InferenceStep(A, LAMBDAS),
        InferenceStep(B, LAMBDAS),
        TrialStep(B, DEEP, first=False),
        TrialStep(A, DEEP, first=False),
    ]


def test_preparation_steps_without_labels_skip_stream():
    steps = carried_out([asked(A), asked(B)], {B: Labelled(0.2, False)})
    assert steps == [LabelStep(A), LabelStep(B), InferenceStep(B, LAMBDAS)]


def test_preparation_steps_skip_accurate_models():
    outcomes = {A: Labelled(ENOUGH_ACCURACY, True), B: Labelled(0.5, True)}
    steps = carried_out([asked(A, ()), asked(B, (), (DEEP,))], outcomes)
    assert steps == [LabelStep(A), LabelStep(B), TrialStep(B, DEEP, first=True)]


families = st.lists(st.sampled_from([CHEAP, DEEP, Family(4, 0, 16)]), unique=True).map(tuple)
outcomes = st.one_of(st.none(), st.builds(Labelled, st.floats(0, 1), st.booleans()))


@given(st.dictionaries(st.sampled_from([A, B, C]), st.tuples(families, outcomes)))
def test_preparation_steps_try_each_family_once_fairly(streams):
    plan = [asked(stream, (), of) for stream, (of, _) in streams.items()]
    known = {stream: outcome for stream, (_, outcome) in streams.items() if outcome is not None}
    trials = [step for step in carried_out(plan, known) if isinstance(step, TrialStep)]
    may = {s for s, outcome in known.items() if outcome.can_train and outcome.accuracy < ENOUGH_ACCURACY}
    for stream, (of, _) in streams.items():
        own = tuple(step.family for step in trials if step.stream == stream)
        assert own == (of if stream in may else ())
    ranks = [streams[step.stream][0].index(step.family) for step in trials]
    assert ranks == sorted(ranks)


@given(st.integers(1, 30), st.integers(1, 30), st.randoms(use_true_random=False))
def test_next_prepared_reaches_every_stream(count, places, draw):
    """A stream waits at most as many windows as half of the places need for all streams."""
    names = [StreamId(f"cam-{number:02}") for number in range(count)]
    prepared, accuracy = dict.fromkeys(names), dict.fromkeys(names)
    longest = -(-count // -(-places // 2))
    for window in range(1, 3 * longest + 1):
        waiting = [waiting_stream(name, prepared[name], accuracy[name]) for name in names]
        chosen = next_prepared(waiting, places)
        assert len(set(chosen)) == len(chosen) == min(places, count)
        for name in chosen:
            prepared[name], accuracy[name] = window, draw.random()
        if window >= longest:
            assert all(window - (prepared[name] or 0) < longest for name in names)


def test_next_prepared_gives_half_to_worst_in_need():
    waiting = [
        waiting_stream(A, 1, 0.9),
        waiting_stream(B, 2, 0.5),
        waiting_stream(C, 3, 0.4),
        waiting_stream(StreamId("d"), 3, ENOUGH_ACCURACY),
    ]
    assert next_prepared(waiting, 1) == (A,)
    assert next_prepared(waiting, 2) == (A, C)
    assert next_prepared(waiting, 4) == (A, B, C, StreamId("d"))
    assert next_prepared([*waiting, waiting_stream(StreamId("new"), None, None)], 2) == (StreamId("new"), C)
