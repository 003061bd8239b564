"""What is prepared first, and what is left out."""

from hypothesis import given
from hypothesis import strategies as st

from ekya.core.commands import PrepareStream
from ekya.core.configs import InferenceConfig
from ekya.core.ids import StreamId
from ekya.core.profile import Family
from ekya.profiling.pruning import ENOUGH_ACCURACY
from ekya.profiling.steps import InferenceStep, Labelled, LabelStep, TrialStep, preparation_steps

A, B, C = StreamId("a"), StreamId("b"), StreamId("c")
LAMBDAS = (InferenceConfig(1, 32), InferenceConfig(2, 32))
CHEAP, DEEP = Family(0, 0, 16), Family(2, 0, 16)


def asked(stream, inference=LAMBDAS, families=(CHEAP, DEEP)):
    return PrepareStream(stream, inference, families)


def carried_out(streams, outcomes):
    """All steps, with labelling that turns out as it is written."""
    labelled, steps = {}, []
    for step in preparation_steps(streams, labelled):
        steps.append(step)
        if isinstance(step, LabelStep) and step.stream in outcomes:
            labelled[step.stream] = outcomes[step.stream]
    return steps


def test_what_is_worth_most_is_done_for_all_before_the_next_and_the_worst_stream_comes_first():
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


def test_a_stream_without_labels_is_left_alone_and_one_that_cannot_train_keeps_its_inference_profile():
    steps = carried_out([asked(A), asked(B)], {B: Labelled(0.2, False)})
    assert steps == [LabelStep(A), LabelStep(B), InferenceStep(B, LAMBDAS)]


def test_a_model_that_is_good_already_is_not_profiled():
    outcomes = {A: Labelled(ENOUGH_ACCURACY, True), B: Labelled(0.5, True)}
    steps = carried_out([asked(A, ()), asked(B, (), (DEEP,))], outcomes)
    assert steps == [LabelStep(A), LabelStep(B), TrialStep(B, DEEP, first=True)]


families = st.lists(st.sampled_from([CHEAP, DEEP, Family(4, 0, 16)]), unique=True).map(tuple)
outcomes = st.one_of(st.none(), st.builds(Labelled, st.floats(0, 1), st.booleans()))


@given(st.dictionaries(st.sampled_from([A, B, C]), st.tuples(families, outcomes)))
def test_every_family_that_may_be_tried_is_tried_once_and_fairly(streams):
    plan = [asked(stream, (), of) for stream, (of, _) in streams.items()]
    known = {stream: outcome for stream, (_, outcome) in streams.items() if outcome is not None}
    trials = [step for step in carried_out(plan, known) if isinstance(step, TrialStep)]
    may = {s for s, outcome in known.items() if outcome.can_train and outcome.accuracy < ENOUGH_ACCURACY}
    for stream, (of, _) in streams.items():
        own = tuple(step.family for step in trials if step.stream == stream)
        assert own == (of if stream in may else ())
    ranks = [streams[step.stream][0].index(step.family) for step in trials]
    assert ranks == sorted(ranks)
