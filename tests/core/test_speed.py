import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.speed import LINEAR, SpeedCurve

BENT = SpeedCurve(((0, 0.0), (100, 0.36), (500, 0.83), (1000, 1.0)))


@pytest.mark.parametrize(("share", "speed"), [(0, 0.0), (50, 0.18), (100, 0.36), (300, 0.595), (750, 0.915)])
def test_lines_between_the_points(share, speed):
    assert BENT.speed(share) == pytest.approx(speed)


@given(st.integers(-10, 3000), st.integers(-10, 3000))
def test_more_share_is_never_slower_and_one_gpu_is_all(a, b):
    low, high = sorted((a, b))
    assert 0.0 <= BENT.speed(low) <= BENT.speed(high) <= 1.0
    assert LINEAR.speed(high) == min(max(high, 0), 1000) / 1000


@given(st.integers(-10, 3000))
def test_the_share_that_would_be_as_fast_in_proportion(share):
    assert BENT.linear_milli(share) == pytest.approx(
        max(1000 * BENT.speed(share), share if share > 1000 else 0)
    )
    # Bit-identical: plans made in proportion stay as they were.
    assert LINEAR.linear_milli(share) == max(share, 0)


@given(st.floats(0.001, 3.0))
def test_the_share_for_a_speed_needs_that_speed(speed):
    for curve in (BENT, LINEAR):
        assert curve.speed_needed(curve.share_for(speed)) == pytest.approx(speed, abs=0.004)


@pytest.mark.parametrize(
    "points",
    [
        ((0, 0.1), (1000, 1.0)),
        ((0, 0.0), (900, 1.0)),
        ((0, 0.0), (1000, 0.9)),
        ((0, 0.0), (500, 0.5), (500, 0.6), (1000, 1.0)),
        ((0, 0.0), (400, 0.6), (500, 0.5), (1000, 1.0)),
    ],
)
def test_a_curve_that_makes_no_sense_is_refused(points):
    with pytest.raises(ValueError, match="speed curve"):
        SpeedCurve(points)


@pytest.mark.parametrize(("share", "worth"), [(100, 3.6), (1000, 1.0), (2000, 1.0), (0, 0.0)])
def test_a_second_used_at_a_share_is_worth_what_a_whole_gpu_does_in_it(share, worth):
    assert BENT.worth(1.0, share) == pytest.approx(worth)


@given(st.floats(0, 1e6), st.integers(1, 1000))
def test_where_speed_is_linear_used_time_is_what_it_is_worth(used, share):
    assert LINEAR.worth(used, share) == pytest.approx(used)


@pytest.mark.parametrize(
    ("speed", "share"),
    [(0.0, 0), (0.18, 50), (0.36, 100), (0.595, 300), (0.83, 500), (1.0, 1000), (1.2, 1200)],
)
def test_the_share_that_a_speed_needs(speed, share):
    assert BENT.share_for(speed) == share


@given(st.floats(0.0, 1.0))
def test_the_share_for_a_speed_reaches_it_and_one_less_does_not(speed):
    share = BENT.share_for(speed)
    assert BENT.speed(share) >= speed - 1e-6
    assert share == 0 or BENT.speed(share - 1) < speed


def test_where_a_curve_is_flat_the_least_share_is_taken():
    flat = SpeedCurve(((0, 0.0), (300, 0.5), (700, 0.5), (1000, 1.0)))
    assert flat.share_for(0.5) == 300
    assert flat.share_for(0.75) == 850
