"""Tests of the series in which accuracy and shares of a camera are kept."""

import math
from itertools import pairwise

import pytest

from ekya.service.history import COARSE_POINTS, FINE_POINTS, CameraHistory

S = 1_000_000
DAY_S = 24 * 3600


def history_until(end_s, every_s=10, value=lambda at_s: at_s):
    history = CameraHistory()
    for at_s in range(0, end_s, every_s):
        history.add_point(at_s * S, (at_s, value(at_s), at_s % 1000, 2 * at_s))
    return history


def test_history_without_points_is_empty():
    series = CameraHistory().series()
    assert series.unix_s == series.accuracy == series.inference_milli == series.retraining_milli == ()


def test_history_has_one_point_in_ten_seconds():
    series = history_until(60, every_s=1).series()
    assert series.unix_s == (0, 10, 20, 30, 40, 50)


def test_history_keeps_every_point_of_the_last_hour():
    series = history_until(2 * 3600).series()
    fine = [at_s for at_s in series.unix_s if at_s >= 3600]
    assert fine == list(range(3600, 7200, 10))
    assert len(fine) == FINE_POINTS


def test_history_has_means_of_five_minutes_before_the_last_hour():
    series = history_until(2 * 3600).series()
    means = series.unix_s[:-FINE_POINTS]
    assert means == tuple(begin_s + 145 for begin_s in range(0, 3600, 300))
    assert series.accuracy[:2] == (145, 445)
    assert series.inference_milli[:4] == (
        145,
        445,
        745,
        (10 * sum(range(90, 100)) + 10 * sum(range(20))) / 30,
    )
    assert series.retraining_milli[0] == 290


def test_history_keeps_a_week_and_no_more():
    series = history_until(10 * DAY_S, every_s=60).series()
    assert len(series.unix_s) <= FINE_POINTS + COARSE_POINTS
    assert list(series.unix_s) == sorted(series.unix_s)
    assert 6.9 * DAY_S < series.unix_s[-1] - series.unix_s[0] <= 7.1 * DAY_S


def test_history_of_unknown_accuracy_is_none_and_no_part_of_a_mean():
    value = {0: math.nan, 10: 0.5, 20: 1.0}
    series = history_until(7200, value=lambda at_s: value.get(at_s % 300, math.nan)).series()
    assert series.accuracy[0] == 0.75
    assert series.accuracy[-1] is None
    assert history_until(7200, value=lambda at_s: math.nan).series().accuracy[0] is None


def test_history_has_a_gap_where_no_step_came():
    history = CameraHistory()
    for at_s in (0, 10, 900, 910):
        history.add_point(at_s * S, (at_s, 0.5, 0, 0))
    assert history.series().unix_s == (0, 10, 900, 910)


@pytest.mark.parametrize("end_s", [3590, 3600, 3610, 3900, 3910])
def test_history_is_in_order_and_without_gap_where_means_and_points_meet(end_s):
    unix_s = history_until(end_s).series().unix_s
    distances = [later - earlier for earlier, later in pairwise(unix_s)]
    assert min(distances) > 0
    assert max(distances) <= 300


@pytest.mark.parametrize("back_s", [10, 15, 200, 3600, DAY_S])
@pytest.mark.parametrize("before_s", [400, 2 * 3600, 50_000])
def test_history_stays_in_order_of_time_after_a_clock_was_set_back(before_s, back_s):
    history = history_until(before_s)
    for at_s in range(before_s, before_s + 2 * 3600, 10):
        unix_s = at_s - back_s
        history.add_point(at_s * S, (unix_s, 0.5, 0, 0))
        for series in (history.series(), history.past().fine, history.past().coarse):
            assert all(earlier < later for earlier, later in pairwise(series.unix_s))
        assert history.series().unix_s[-1] == unix_s


def test_history_keeps_what_was_before_the_time_to_which_a_clock_was_set_back():
    history = history_until(400)
    history.add_point(400 * S, (200, 0.5, 0, 0))
    assert history.series().unix_s == tuple(range(0, 201, 10))
    history.add_point(410 * S, (-50, 0.5, 0, 0))
    assert history.series().unix_s == (-50,)
