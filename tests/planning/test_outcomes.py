"""What the outcomes of retrainings teach: how far labels lead, and which families and streams differ."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.configs import RetrainConfig
from ekya.core.profile import family_of
from ekya.core.units import StreamId
from ekya.planning.profiling.history import Observation, ProfileHistory
from ekya.planning.profiling.outcomes import (
    USUALLY_LEFT,
    USUALLY_REACHED,
    error_part,
    learn_outcomes,
)

USUAL = RetrainConfig(epochs=16, batch_size=16, head_width=0, trainable_blocks=0, data_fraction=1.0)
DEEP = replace(USUAL, trainable_blocks=2)
A, B = StreamId("a"), StreamId("b")


def history(*pairs, config=USUAL, labels=60):
    """Returns a history of retrainings, each with the accuracy before and after."""
    seen = (
        Observation(window, config, after - before, 1.0, before=before, validation_crops=labels)
        for window, (before, after) in enumerate(pairs)
    )
    return ProfileHistory(tuple(seen))


def expected(histories, serving, stream=A, config=USUAL):
    """Returns the accuracy that is expected after a retraining."""
    error = learn_outcomes(histories).expected_error(stream, family_of(config), serving)
    return 1.0 - error * error_part(config)


def test_before_anything_is_known_the_usual_is_expected():
    profiled = ProfileHistory((Observation(1, USUAL, 0.3, 1.0),))
    for known in ({}, {A: profiled}):
        assert expected(known, 0.1) == pytest.approx(1 - USUALLY_REACHED, abs=0.06)
        assert expected(known, 0.95) == pytest.approx(1 - 0.05 * USUALLY_LEFT, abs=0.002)


def test_error_part_falls_with_epochs_labels_and_depth():
    assert error_part(USUAL) == 1.0
    less = (replace(USUAL, epochs=4), replace(USUAL, data_fraction=0.5))
    assert all(error_part(config) > 1.0 for config in less)
    assert error_part(DEEP) < 1.0


def test_streets_on_which_any_model_gets_far_are_told_from_those_on_which_each_gains_a_fifth():
    far = {A: history((0.3, 0.76), (0.5, 0.76), (0.6, 0.75), (0.7, 0.78))}
    fifth = {A: history((0.3, 0.44), (0.5, 0.6), (0.6, 0.68), (0.9, 0.92))}
    assert expected(far, 0.2) == pytest.approx(0.76, abs=0.03)
    assert expected(fifth, 0.2) < 0.5
    assert expected(fifth, 0.96) - 0.96 < 0.012, "a good model has little to gain"


def test_one_lucky_retraining_on_few_labels_changes_little():
    lucky = {A: history((0.5, 1.0), labels=3)}
    assert expected(lucky, 0.5) - expected({}, 0.5) < 0.08


def test_a_family_that_leaves_less_is_found():
    both = {A: history(*[(0.5, 0.7)] * 4), B: history(*[(0.5, 0.85)] * 4, config=DEEP)}
    assert expected(both, 0.5, StreamId("new"), DEEP) > 0.8 > expected(both, 0.5, StreamId("new"))


def test_streams_that_differ_are_told_apart_and_a_new_one_has_what_both_have_shown():
    both = {A: history(*[(0.5, 0.65)] * 6), B: history(*[(0.5, 0.9)] * 6)}
    of_a, of_b, new = (expected(both, 0.5, stream) for stream in (A, B, StreamId("new")))
    assert of_a < new < of_b


accuracies = st.integers(0, 100).map(lambda percent: percent / 100)


@given(st.lists(st.tuples(accuracies, accuracies), max_size=5), accuracies, accuracies)
def test_what_is_expected_is_a_share_of_the_errors_and_never_rises_with_accuracy(pairs, one, other):
    known = {A: history(*pairs)}
    worse, better = (
        learn_outcomes(known).expected_error(A, family_of(USUAL), of) for of in sorted((one, other))
    )
    assert worse >= better - 1e-9
    assert better >= 0.0
    assert abs(sum(weight for *_, weight in learn_outcomes(known).hypotheses) - 1.0) < 1e-9
