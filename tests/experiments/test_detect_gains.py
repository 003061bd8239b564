"""Gains of adapted detectors: intervals over seeds, means over videos, and videos that lose."""

import pytest
from detect_gains import ADAPTED, FROZEN, Estimate, Row, gains, lower

STREET, GATE, YARD = "street.mp4", "gate.mp4", "yard.mp4"


def rows(video, seed, whole, later, price="real"):
    """Returns the rows of both ways; the student starts at 40% and gains this much."""
    none = later is None
    return [
        Row(video, seed, price, FROZEN, 0.4, None if none else 0.5, 1.0),
        Row(video, seed, price, ADAPTED, 0.4 + whole, None if none else 0.5 + later, 2.0),
    ]


def test_estimate_is_students_interval():
    found = Estimate.over_seeds([0.1, 0.2, 0.3])
    assert (found.mean, found.low, found.high) == pytest.approx((0.2, -0.0484, 0.4484), abs=1e-4)
    assert found.in_points() == "+20.0 (-4.8 to +44.8)"
    assert Estimate.over_seeds([0.05]) == Estimate(0.05, None, None)
    assert Estimate.over_seeds([0.05]).in_points() == "+5.0"


def test_gains_are_by_video_and_in_the_mean_over_videos_of_each_seed():
    every = [
        *rows(STREET, 1, 0.20, 0.30),
        *rows(STREET, 2, 0.30, 0.40),
        *rows(GATE, 1, 0.00, None),
        *rows(GATE, 2, 0.02, 0.04),
        *rows(GATE, 2, 0.9, 0.9, price="20"),
    ]
    street, gate, both, others = gains(every, "real", {STREET})
    assert (street.over, street.seeds) == (STREET, 2)
    assert (street.whole.mean, street.after.mean) == pytest.approx((0.25, 0.35))
    assert (gate.whole.mean, gate.after.mean) == pytest.approx((0.01, 0.02)), "no hot swap gains nothing"
    expected = Estimate.over_seeds([0.10, 0.16])
    assert (both.whole.mean, both.whole.low) == pytest.approx((expected.mean, expected.low))
    assert (others.whole, others.after) == (gate.whole, gate.after)
    assert [gain.over for gain in gains(every, "20")] == [GATE]


def test_video_without_objects_is_left_out():
    empty = [Row(YARD, 1, "real", way, None, None, 1.0) for way in (ADAPTED, FROZEN)]
    assert [gain.over for gain in gains([*rows(STREET, 1, 0.1, 0.1), *empty], "real")] == [STREET]


def test_videos_that_lose_more_than_two_points_are_named():
    every = [*rows(STREET, 1, 0.2, -0.03), *rows(GATE, 1, -0.019, 0.0), *rows(YARD, 1, -0.021, 0.1)]
    assert lower(list(gains(every, "real")), {STREET, GATE, YARD}) == [STREET, YARD]
