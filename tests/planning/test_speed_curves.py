"""Speed curves for plans, from measured rates."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.speed import LINEAR, CoRun, KindSpeeds, Pace, SpeedCurve
from ekya.planning.profiling.speed_curves import among_others, curve_through, refined, throughput

V100 = {100: 6.58, 200: 9.32, 300: 11.88, 400: 13.61, 500: 15.24, 800: 17.83, 1000: 18.32}
"""Epochs in a hundred seconds (100 / 15.19 s, ...), from the first public implementation's measurement."""

rates = st.dictionaries(st.integers(1, 999), st.floats(0.01, 100), max_size=6).flatmap(
    lambda some: st.floats(0.1, 100).map(lambda full: {**some, 1000: full})
)


def test_rates_become_parts_of_the_full_one():
    curve = curve_through(V100)
    assert curve.speed(100) == pytest.approx(0.359, abs=1e-3)
    assert curve.speed(500) == pytest.approx(0.832, abs=1e-3)
    assert curve.speed(1000) == 1.0


def test_noise_that_falls_is_averaged():
    curve = curve_through({500: 5.0, 800: 10.4, 1000: 9.6})
    assert curve.points == ((0, 0.0), (500, 0.5), (800, 1.0), (1000, 1.0))


@given(rates)
def test_any_rates_make_a_curve(measured):
    curve = curve_through(measured)
    assert [share for share, _ in curve.points] == [0, *sorted(measured)]


@pytest.mark.parametrize("measured", [{}, {500: 1.0}, {500: 1.0, 1000: 0.0}])
def test_without_a_whole_gpu_there_is_no_curve(measured):
    with pytest.raises(ValueError, match="whole GPU"):
        curve_through(measured)


def test_two_halves_of_a_v100_are_not_planned_to_make_more_than_was_measured():
    """Alone half a GPU runs at 0.83; two halves made 1.3 GPUs together, four quarters 1.4."""
    alone = curve_through(V100)
    planned = among_others(KindSpeeds(alone, (CoRun(2, 1.3), CoRun(4, 1.4))))
    assert 2 * planned.speed(500) == pytest.approx(1.3)
    assert 4 * planned.speed(250) == pytest.approx(1.4)
    assert planned.speed(1000) == 1.0
    part = planned.speed(250) / alone.speed(250)
    assert planned.speed(100) == pytest.approx(part * alone.speed(100))


def test_what_disturbs_nobody_leaves_the_curve_as_it_is():
    measured = KindSpeeds(SpeedCurve(((0, 0.0), (500, 0.5), (1000, 1.0))), (CoRun(2, 1.02), CoRun(4, 1.1)))
    for share in range(0, 1001, 50):
        assert among_others(measured).speed(share) == pytest.approx(LINEAR.speed(share))


@given(rates, st.floats(0.2, 2.0), st.floats(0.2, 4.0))
def test_nothing_is_planned_to_be_faster_than_alone_or_than_was_measured_together(measured, of_two, of_four):
    alone = curve_through(measured)
    planned = among_others(KindSpeeds(alone, (CoRun(2, of_two), CoRun(4, of_four))))
    assert 2 * planned.speed(500) <= of_two + 1e-9
    assert 4 * planned.speed(250) <= of_four + 1e-9
    assert all(speed <= alone.speed(share) + 1e-9 for share, speed in planned.points)


def test_throughput_is_what_all_do_together():
    assert throughput((3.0, 4.0), 5.0) == CoRun(2, 1.4)


TRUE = SpeedCurve(((0, 0.0), (100, 0.36), (500, 0.83), (1000, 1.0)))
GUESS = SpeedCurve(((0, 0.0), (100, 0.1), (500, 0.5), (1000, 1.0)))


def paces(work_s, *shares, job=1, epochs=3):
    """Paces of a job by the true curve; its epochs take ``work_s`` on a whole GPU."""
    return [Pace(job, share, work_s / TRUE.speed(share)) for share in shares for _ in range(epochs)]


def error(curve):
    return max(abs(math.log(curve.speed(share) / TRUE.speed(share))) for share in (100, 500))


def test_what_jobs_did_at_several_shares_moves_the_curve_to_the_truth():
    few = refined(GUESS, paces(2.0, 100, 500, 1000))
    many = refined(GUESS, [p for job in range(40) for p in paces(0.1 + job, 100, 500, 1000, job=job)])
    assert error(many) < error(few) < error(GUESS)
    assert error(many) < 0.15
    assert many.speed(1000) == 1.0


def test_jobs_whose_share_never_changed_say_nothing():
    assert refined(GUESS, [*paces(1.0, 100), *paces(9.0, 500, job=2)]) == GUESS
    assert refined(GUESS, []) == GUESS


def test_jobs_that_did_as_was_planned_leave_the_curve():
    for shares in [(100, 500, 1000), (50, 300, 700), (230, 900)]:
        curve = refined(TRUE, paces(3.0, *shares))
        assert curve.points == tuple((share, pytest.approx(speed)) for share, speed in TRUE.points)


def test_a_straight_line_that_nobody_measured_stays_one():
    assert refined(LINEAR, paces(2.0, 100, 500, 1000)) == LINEAR


def test_shares_between_and_below_the_points_count_too():
    between = refined(GUESS, paces(1.0, 50, 300, epochs=9))
    assert error(between) < error(GUESS)


def test_one_stalled_epoch_among_many_counts_for_little():
    stalled = [*paces(2.0, 100, 1000, epochs=5), Pace(1, 100, 500.0)]
    assert refined(GUESS, stalled).speed(100) == pytest.approx(
        refined(GUESS, paces(2.0, 100, 1000, epochs=5)).speed(100)
    )


some_paces = st.lists(
    st.builds(Pace, st.integers(1, 3), st.integers(0, 1200), st.floats(0.0, 50.0)), max_size=12
)


@given(some_paces)
def test_whatever_jobs_did_a_curve_comes_of_it(seen):
    assert refined(GUESS, seen).points[-1] == (1000, 1.0)
