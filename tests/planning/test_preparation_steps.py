"""Order of the steps of a preparation, and whose turn it is."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

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
from ekya.planning.profiling.pruning import ENOUGH_ACCURACY

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
        TrialStep(B, CHEAP),
        TrialStep(A, CHEAP),
        InferenceStep(A, LAMBDAS),
        InferenceStep(B, LAMBDAS),
        TrialStep(B, DEEP),
        TrialStep(A, DEEP),
    ]


def test_preparation_steps_without_labels_skip_stream():
    steps = carried_out([asked(A), asked(B)], {B: Labelled(0.2, False)})
    assert steps == [LabelStep(A), LabelStep(B), InferenceStep(B, LAMBDAS)]


def test_preparation_steps_profile_first_what_asks_for_it():
    plan = [asked(A), replace(asked(B), labels=False, inference_first=True)]
    plan.append(replace(asked(C, families=()), inference_first=True))
    steps = carried_out(plan, {A: Labelled(0.7, False)})
    assert steps == [
        InferenceStep(B, LAMBDAS),
        InferenceStep(C, LAMBDAS),
        LabelStep(A),
        LabelStep(C),
        InferenceStep(A, LAMBDAS),
    ]


def test_preparation_steps_skip_accurate_models():
    outcomes = {A: Labelled(ENOUGH_ACCURACY, True), B: Labelled(0.5, True)}
    steps = carried_out([asked(A, ()), asked(B, (), (DEEP,))], outcomes)
    assert steps == [LabelStep(A), LabelStep(B), TrialStep(B, DEEP)]


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
