"""Speed curves for plans, from measured rates."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.speed import LINEAR, CoRun, KindSpeeds, Pace, SpeedCurve
from ekya.planning.profiling.speed_curves import among_others, curve_through, joint_throughput, refine_curve

V100 = {100: 6.58, 200: 9.32, 300: 11.88, 400: 13.61, 500: 15.24, 800: 17.83, 1000: 18.32}
"""Epochs in a hundred seconds (100 / 15.19 s, ...), from the first public implementation's measurement."""

rates = st.dictionaries(st.integers(1, 999), st.floats(0.01, 100), max_size=6).flatmap(
    lambda some: st.floats(0.1, 100).map(lambda full: {**some, 1000: full})
)


def test_curve_through_scales_to_full_rate():
    curve = curve_through(V100)
    assert curve.speed_at(100) == pytest.approx(0.359, abs=1e-3)
    assert curve.speed_at(500) == pytest.approx(0.832, abs=1e-3)
    assert curve.speed_at(1000) == 1.0


def test_curve_through_averages_falling_noise():
    curve = curve_through({500: 5.0, 800: 10.4, 1000: 9.6})
    assert curve.points == ((0, 0.0), (500, 0.5), (800, 1.0), (1000, 1.0))


@given(rates)
def test_curve_through_any_rates_is_valid(measured):
    curve = curve_through(measured)
    assert [share for share, _ in curve.points] == [0, *sorted(measured)]


@pytest.mark.parametrize("measured", [{}, {500: 1.0}, {500: 1.0, 1000: 0.0}])
def test_curve_through_without_full_rate_raises(measured):
    with pytest.raises(ValueError, match="whole GPU"):
        curve_through(measured)


def test_among_others_halves_reach_measured_total():
    """Alone half a GPU runs at 0.83; two halves made 1.3 GPUs together, four quarters 1.4."""
    alone = curve_through(V100)
    planned = among_others(KindSpeeds(alone, (CoRun(2, 1.3), CoRun(4, 1.4))))
    assert 2 * planned.speed_at(500) == pytest.approx(1.3)
    assert 4 * planned.speed_at(250) == pytest.approx(1.4)
    assert planned.speed_at(1000) == 1.0
    part = planned.speed_at(250) / alone.speed_at(250)
    assert planned.speed_at(100) == pytest.approx(part * alone.speed_at(100))


def test_among_others_without_interference_is_alone():
    measured = KindSpeeds(SpeedCurve(((0, 0.0), (500, 0.5), (1000, 1.0))), (CoRun(2, 1.02), CoRun(4, 1.1)))
    for share in range(0, 1001, 50):
        assert among_others(measured).speed_at(share) == pytest.approx(LINEAR.speed_at(share))


@given(rates, st.floats(0.2, 2.0), st.floats(0.2, 4.0))
def test_among_others_never_exceeds_measurements(measured, of_two, of_four):
    alone = curve_through(measured)
    planned = among_others(KindSpeeds(alone, (CoRun(2, of_two), CoRun(4, of_four))))
    assert 2 * planned.speed_at(500) <= of_two + 1e-9
    assert 4 * planned.speed_at(250) <= of_four + 1e-9
    assert all(speed <= alone.speed_at(share) + 1e-9 for share, speed in planned.points)


def test_throughput_sums_rates():
    assert joint_throughput((3.0, 4.0), 5.0) == CoRun(2, 1.4)


TRUE = SpeedCurve(((0, 0.0), (100, 0.36), (500, 0.83), (1000, 1.0)))
GUESS = SpeedCurve(((0, 0.0), (100, 0.1), (500, 0.5), (1000, 1.0)))


def paces(work_s, *shares, job=1, epochs=3):
    """Paces of a job by the true curve; its epochs take ``work_s`` on a whole GPU."""
    return [Pace(job, share, work_s / TRUE.speed_at(share)) for share in shares for _ in range(epochs)]


def error(curve):
    return max(abs(math.log(curve.speed_at(share) / TRUE.speed_at(share))) for share in (100, 500))


def test_refined_by_shared_jobs_approaches_truth():
    few = refine_curve(GUESS, paces(2.0, 100, 500, 1000))
    many = refine_curve(GUESS, [p for job in range(40) for p in paces(0.1 + job, 100, 500, 1000, job=job)])
    assert error(many) < error(few) < error(GUESS)
    assert error(many) < 0.15
    assert many.speed_at(1000) == 1.0


def test_refined_by_constant_shares_stays():
    assert refine_curve(GUESS, [*paces(1.0, 100), *paces(9.0, 500, job=2)]) == GUESS
    assert refine_curve(GUESS, []) == GUESS


def test_refined_by_expected_paces_stays():
    for shares in [(100, 500, 1000), (50, 300, 700), (230, 900)]:
        curve = refine_curve(TRUE, paces(3.0, *shares))
        assert curve.points == tuple((share, pytest.approx(speed)) for share, speed in TRUE.points)


def test_refined_linear_curve_stays_linear():
    assert refine_curve(LINEAR, paces(2.0, 100, 500, 1000)) == LINEAR


def test_refined_counts_shares_between_points():
    between = refine_curve(GUESS, paces(1.0, 50, 300, epochs=9))
    assert error(between) < error(GUESS)


def test_refined_by_one_stalled_epoch_hardly_moves():
    stalled = [*paces(2.0, 100, 1000, epochs=5), Pace(1, 100, 500.0)]
    assert refine_curve(GUESS, stalled).speed_at(100) == pytest.approx(
        refine_curve(GUESS, paces(2.0, 100, 1000, epochs=5)).speed_at(100)
    )


some_paces = st.lists(
    st.builds(Pace, st.integers(1, 3), st.integers(0, 1200), st.floats(0.0, 50.0)), max_size=12
)


@given(some_paces)
def test_refined_by_any_paces_is_valid(seen):
    assert refine_curve(GUESS, seen).points[-1] == (1000, 1.0)
