"""A run that adapted nothing says so, with the reason, unless nothing had to be adapted."""

from dataclasses import replace

import pytest

from ekya.core.units import JobId, StreamId
from ekya.results.metrics.adaptation import Adapted, judge_adaptation
from ekya.results.metrics.run_history import WindowSpan, summarize_steps
from tests.results.test_summary import run

A = StreamId("a")
NOTHING = replace(summarize_steps([]), windows=(WindowSpan(0, 0, 39_000_000),))
LABELLED = replace(NOTHING, labellings=1, labels=50, validation_accuracy={(A, 1): 0.4})


def judged(history, *, asked=True, golden=0.0):
    return judge_adaptation(history, asked=asked, golden_parts={A: golden})


@pytest.mark.parametrize(
    ("history", "says"),
    [
        (NOTHING, "a run of one window had no labels; use shorter windows"),
        (replace(NOTHING, labellings=2), "found no object in what it labelled"),
        (LABELLED, "no retraining that pays would have ended"),
        (replace(LABELLED, retrainings=(run(1, "stopped"),)), "of 1 retrainings none ended in its window"),
        (replace(LABELLED, retrainings=(run(1, "finished"),)), "of 1 retrainings none gave better weights"),
    ],
)
def test_a_run_that_adapted_nothing_says_why(history, says):
    found = judged(history)
    assert found.missed
    assert says in found.sentence
    assert judged(history, asked=False).sentence is None


@pytest.mark.parametrize(
    ("history", "golden", "says"),
    [
        (replace(LABELLED, validation_accuracy={(A, 1): 0.95}), 0.0, "the models reach 95% on new labels"),
        (NOTHING, 0.9, "the golden detector answered 90% of the frames itself"),
    ],
)
def test_where_nothing_had_to_be_adapted_it_is_said_and_is_no_failure(history, golden, says):
    found = judged(history, golden=golden)
    assert not found.missed
    assert says in found.sentence


def test_where_something_served_there_is_nothing_to_say():
    assert judged(replace(LABELLED, served=frozenset({JobId(1)}))) == Adapted(50, 1)
