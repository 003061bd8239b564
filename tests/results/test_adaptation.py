"""A run that adapted nothing says so, with the reason, unless nothing had to be adapted."""

from dataclasses import replace

import pytest

from ekya.core.units import JobId, StreamId
from ekya.results.metrics.adaptation import judge_adaptation
from ekya.results.metrics.run_history import WindowSpan, summarize_steps
from tests.results.test_summary import run

A = StreamId("a")
NOTHING = replace(summarize_steps([]), windows=(WindowSpan(0, 0, 39_000_000),))
LABELLED = replace(NOTHING, labellings=1, labels=50, validation_accuracy={(A, 1): 0.4})


def sentence(history, *, asked=True, golden=0.0):
    return judge_adaptation(history, asked=asked, golden_parts={A: golden}).sentence


@pytest.mark.parametrize(
    ("history", "says"),
    [
        (NOTHING, "no window was labelled in a run of 1; use shorter windows"),
        (replace(NOTHING, labellings=2), "found no object in what it labelled"),
        (LABELLED, "no retraining that pays would have ended"),
        (replace(LABELLED, retrainings=(run(1, "stopped"),)), "1 retrainings were begun, and none ended"),
        (replace(LABELLED, retrainings=(run(1, "finished"),)), "none of 1 retrainings gave better weights"),
    ],
)
def test_a_run_that_adapted_nothing_says_why(history, says):
    assert says in sentence(history)
    assert sentence(history, asked=False) is None


def test_nothing_is_missed_where_something_served_or_nothing_had_to():
    assert sentence(replace(LABELLED, served=frozenset({JobId(1)}))) is None
    assert sentence(replace(LABELLED, validation_accuracy={(A, 1): 0.95})) is None
    assert sentence(LABELLED, golden=0.9) is None


def test_the_summary_has_the_counts():
    found = judge_adaptation(replace(LABELLED, served=frozenset({JobId(1)})), asked=True, golden_parts={})
    assert found.values == {"labelled": 50, "served": 1, "sentence": None}
