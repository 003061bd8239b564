from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.planning.profiling.learning_curve import fit_optimus

accuracies = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8)


def true_curve(x, start=0.5, end=0.9, half=300):
    return start + (end - start) * x / (x + half)


def steps(count, crops=64):
    return [crops * index for index in range(count)]


@settings(max_examples=60)
@given(accuracies)
def test_any_points_give_a_rising_curve_in_range(points):
    curve = fit_optimus(steps(len(points)), points)
    values = [curve.accuracy_at(x) for x in np.linspace(0, 5000, 60)]
    assert all(0.0 <= value <= 1.0 for value in values)
    assert all(b >= a - 1e-9 for a, b in pairwise(values))


@settings(max_examples=30)
@given(accuracies, st.sampled_from([0.01, 50.0]))
def test_fit_in_other_units_gives_same_curve(points, unit):
    plain = fit_optimus(steps(len(points)), points)
    scaled = fit_optimus([x * unit for x in steps(len(points))], points)
    assert scaled.accuracy_at(1000 * unit) == pytest.approx(plain.accuracy_at(1000), abs=1e-6)


def test_fit_optimus_on_inverse_points_continues_them():
    xs = steps(6, crops=150)
    curve = fit_optimus(xs, [true_curve(x) for x in xs])
    for x in (0, 300, 750, 1500, 3000):
        assert curve.accuracy_at(x) == pytest.approx(true_curve(x), abs=0.01)


@pytest.mark.parametrize("points", [[0.7], [0.7, 0.7], [0.7] * 6, [0.7, 0.69, 0.68, 0.67], [0.9, 0.7, 0.5]])
def test_fit_optimus_of_falling_points_is_flat(points):
    curve = fit_optimus(steps(len(points)), points)
    assert curve.accuracy_at(10_000) == pytest.approx(curve.accuracy_at(0), abs=1e-9)
    assert min(points) - 1e-9 <= curve.accuracy_at(0) <= max(points) + 1e-9


@pytest.mark.parametrize(
    ("xs", "points"), [([], []), ([0, 1], [0.5]), ([1, 1], [0.5, 0.5]), ([0], [1.2]), ([-1], [0.5])]
)
def test_fit_of_impossible_points_raises(xs, points):
    with pytest.raises(ValueError, match=r"curve|accuracies"):
        fit_optimus(xs, points)
