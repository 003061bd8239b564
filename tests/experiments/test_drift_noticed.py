"""Alarms that are right or false, and a profiler's estimates beside the truth (Figure 11a)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drift_noticed import FIGURE_SEEDS, STEADY, TUNING_SEEDS, Alarms, Seen, _frame, _read, _write, point_of
from estimate_figures import (
    FIGURE11A,
    Row,
    by_window,
    cost_of_trials,
    lose_by_choosing,
    rank_window,
)
from recipe_table import Asked


def alarms(kind, *at_s, change_s=50.0, seconds=100.0):
    change_s = None if kind == STEADY else change_s
    return Alarms(kind, 0, 0.1, seconds, change_s, at_s, ("why",) * len(at_s))


@pytest.mark.parametrize(
    ("kind", "at_s", "delay_s", "false"),
    [
        ("moved", (20.0, 53.0, 75.0), 3.0, 2),
        ("rain", (58.0, 71.0, 80.0), 8.0, 1),
        ("dusk", (81.0,), None, 1),
        (STEADY, (3.0, 4.0), None, 2),
    ],
    ids=["first after the change", "while a ramp lasts", "too late", "in a steady scene"],
)
def test_alarm_is_right_or_false(kind, at_s, delay_s, false):
    row = alarms(kind, *at_s)
    assert (row.delay_s, row.false) == (delay_s, false)


def test_point_counts_all_cameras():
    rows = [alarms("moved", 52.0), alarms("moved", 54.0), alarms("dusk"), alarms(STEADY, 9.0, seconds=1800.0)]
    point = point_of(rows, 0.1)
    assert (point.false, point.hours, point.precision) == (1, 0.5, 1.0)
    assert point.recall == pytest.approx(2 / 3)
    assert point.by_kind == {"moved": (1.0, 3.0), "dusk": (0.0, None)}
    assert point.most_per_hour == pytest.approx(4.744 / 0.5, rel=1e-3)


def test_seeds_for_tuning_are_not_those_of_the_figure():
    again = {seed % 1000 for seed in TUNING_SEEDS}
    assert again.isdisjoint(seed % 1000 for seed in FIGURE_SEEDS)


@pytest.mark.parametrize("change_s", [None, 7.5])
def test_seen_is_kept_in_a_file(tmp_path, change_s):
    frames = tuple(
        _frame(at * 200_000, 32, [0.5] * at, [1] * at, np.full(4, 20.0 * at, np.float32)) for at in range(3)
    )
    path = tmp_path / "seen.npz"
    _write(Seen(frames, change_s), path)
    kept = _read(path)
    assert kept.change_s == change_s
    for one, other in zip(kept.frames, frames, strict=True):
        assert (one.t_us, one.version, one.resolution) == (other.t_us, other.version, other.resolution)
        np.testing.assert_array_equal(one.confidence, other.confidence)
        np.testing.assert_array_equal(one.classes, other.classes)
        np.testing.assert_array_equal(one.picture, other.picture)


CITY = Path(__file__).resolve().parents[2] / "experiments/traces/city.parquet"
GAMMA = Row("city", "cam-1", 1, "-1", "ekya", "a", 0.8, 0.7, 10.0, 10.0, 0.5)


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


def test_trials_of_a_window_cost_once():
    rows = [*window((0.8, 0.7), (0.8, 0.6)), *window((0.8, 0.7), number=2)]
    assert [len(own) for own in by_window(rows)] == [2, 1]
    assert cost_of_trials(rows) == pytest.approx((0.5 + 0.5) / 30.0)


def test_recorded_trace_gives_an_estimate_of_every_configuration():
    rows = list(FIGURE11A.play(Asked(traces=(CITY,))))
    assert {row.profiler for row in rows} == {"ekya"}
    assert {len(own) for own in by_window(rows)} == {12}
    assert all(0.0 <= row.true <= 1.0 and row.gpu_s > 0.0 for row in rows)
