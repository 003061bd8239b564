"""What Figure 11a makes of a profiler's estimates and of the truth."""

from dataclasses import replace
from pathlib import Path

import pytest
from estimate_figures import (
    FIGURE11A,
    Row,
    by_window,
    cost_of_trials,
    hold_in_80,
    lose_by_choosing,
    rank_window,
)
from recipe_table import Asked

CITY = Path(__file__).resolve().parents[2] / "experiments/traces/city.parquet"
GAMMA = Row("city", "cam-1", 1, "-1", "ekya", "a", 0.8, 0.1, 0.7, 10.0, 10.0, 0.5)


def window(*pairs, number=1):
    """A window's γ, each with its estimated and its true accuracy; later ones cost more."""
    return [
        replace(GAMMA, window=number, gamma=str(place), estimated=told, true=true, gpu_s=10.0 + place)
        for place, (told, true) in enumerate(pairs)
    ]


def test_window_is_ranked_where_its_truths_differ():
    assert rank_window(window((0.5, 0.6), (0.7, 0.8))) == pytest.approx(1.0)
    assert rank_window(window((0.7, 0.6), (0.7, 0.8))) == 0.0
    assert rank_window(window((0.5, 0.60), (0.7, 0.64))) is None


def test_choosing_takes_the_cheapest_of_equal_estimates():
    assert lose_by_choosing(window((0.8, 0.6), (0.8, 0.9), (0.5, 0.7))) == pytest.approx(0.3)
    assert lose_by_choosing(window((0.7, 0.6), (0.8, 0.9))) == 0.0


def test_intervals_count_where_they_are_given():
    rows = window((0.8, 0.7), (0.8, 0.6))
    assert hold_in_80(rows) == "50.0%"
    assert hold_in_80([replace(row, sd=0.0) for row in rows]) == "none are given"


def test_trials_of_a_window_cost_once():
    rows = [*window((0.8, 0.7), (0.8, 0.6)), *window((0.8, 0.7), number=2)]
    assert [len(own) for own in by_window(rows)] == [2, 1]
    assert cost_of_trials(rows) == pytest.approx((0.5 + 0.5) / 30.0)


def test_recorded_trace_gives_an_estimate_of_every_configuration():
    rows = list(FIGURE11A.play(Asked(traces=(CITY,))))
    assert {row.profiler for row in rows} == {"ekya"}
    assert {len(own) for own in by_window(rows)} == {12}
    assert all(0.0 <= row.true <= 1.0 and row.gpu_s > 0.0 for row in rows)
