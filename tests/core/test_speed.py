import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.speed import LINEAR, SpeedCurve

BENT = SpeedCurve(((0, 0.0), (100, 0.36), (500, 0.83), (1000, 1.0)))


@pytest.mark.parametrize(("share", "speed"), [(0, 0.0), (50, 0.18), (100, 0.36), (300, 0.595), (750, 0.915)])
def test_speed_interpolates_between_points(share, speed):
    assert BENT.speed_at(share) == pytest.approx(speed)


@given(st.integers(-10, 3000), st.integers(-10, 3000))
def test_speed_rises_up_to_one_gpu(a, b):
    low, high = sorted((a, b))
    assert 0.0 <= BENT.speed_at(low) <= BENT.speed_at(high) <= 1.0
    assert LINEAR.speed_at(high) == min(max(high, 0), 1000) / 1000


@given(st.integers(-10, 3000))
def test_linear_milli_is_share_of_equal_speed(share):
    assert BENT.linear_milli(share) == pytest.approx(
        max(1000 * BENT.speed_at(share), share if share > 1000 else 0)
    )
    # Bit-identical: plans made in proportion stay as they were.
    assert LINEAR.linear_milli(share) == max(share, 0)


@given(st.floats(0.001, 3.0))
def test_share_for_inverts_speed_needed(speed):
    for curve in (BENT, LINEAR):
        assert curve.speed_needed(curve.share_for(speed)) == pytest.approx(speed, abs=0.004)


@pytest.mark.parametrize(
    "points",
    [
        ((0, 0.1), (1000, 1.0)),
        ((0, 0.0), (900, 1.0)),
        ((0, 0.0), (1000, 1.1)),
        ((0, 0.0), (500, 0.5), (500, 0.6), (1000, 1.0)),
        ((0, 0.0), (400, 0.6), (500, 0.5), (1000, 1.0)),
    ],
)
def test_curve_with_invalid_points_raises(points):
    with pytest.raises(ValueError, match="speed curve"):
        SpeedCurve(points)


@pytest.mark.parametrize(("share", "worth"), [(100, 3.6), (1000, 1.0), (2000, 1.0), (0, 0.0)])
def test_worth_is_whole_gpu_time(share, worth):
    assert BENT.whole_gpu_time(1.0, share) == pytest.approx(worth)


@given(st.floats(0, 1e6), st.integers(1, 1000))
def test_worth_on_linear_curve_is_used_time(used, share):
    assert LINEAR.whole_gpu_time(used, share) == pytest.approx(used)


@pytest.mark.parametrize(
    ("speed", "share"),
    [(0.0, 0), (0.18, 50), (0.36, 100), (0.595, 300), (0.83, 500), (1.0, 1000), (1.2, 1200)],
)
def test_share_for_speed_is_interpolated(speed, share):
    assert BENT.share_for(speed) == share


@given(st.floats(0.0, 1.0))
def test_share_for_is_smallest_that_reaches_speed(speed):
    share = BENT.share_for(speed)
    assert BENT.speed_at(share) >= speed - 1e-6
    assert share == 0 or BENT.speed_at(share - 1) < speed


def test_share_for_on_flat_part_is_least():
    flat = SpeedCurve(((0, 0.0), (300, 0.5), (700, 0.5), (1000, 1.0)))
    assert flat.share_for(0.5) == 300
    assert flat.share_for(0.75) == 850


def test_process_of_a_whole_gpu_is_not_limited():
    assert BENT.up_to(1000) == BENT


@given(st.integers(1, 999), st.integers(1, 1200))
def test_limited_process_is_as_fast_as_its_part_and_waits_for_a_smaller_share(cap, share):
    limited = BENT.up_to(cap)
    assert limited.speed_at(share) == pytest.approx(BENT.speed_at(cap) * min(share / cap, 1.0))
