import csv
from dataclasses import replace
from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ekya.planning.profiling.learning_curve import CURVE_FITS, fit_mixture, fit_optimus

accuracies = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8)


def true_curve(x, start=0.5, end=0.9, half=300):
    return start + (end - start) * x / (x + half)


def steps(count, crops=64):
    return [crops * index for index in range(count)]


@settings(max_examples=60)
@given(st.sampled_from(sorted(CURVE_FITS)), accuracies, st.sampled_from([None, 20, 200]))
def test_any_points_give_a_rising_curve_in_range(name, points, crops):
    curve = CURVE_FITS[name](steps(len(points)), points, validation_crops=crops)
    values = [curve.accuracy_at(x) for x in np.linspace(0, 5000, 60)]
    assert all(0.0 <= value <= 1.0 for value in values)
    assert all(b >= a - 1e-9 for a, b in pairwise(values))


@settings(max_examples=40)
@example([1.0, 1.0, 0.0, 1.0], None)
@given(accuracies, st.sampled_from([None, 20, 200]))
def test_fit_mixture_averages_its_shapes(points, crops):
    curve = fit_mixture(steps(len(points)), points, validation_crops=crops)
    assert sum(shape.weight for shape in curve.shapes) == pytest.approx(1.0)


@settings(max_examples=30)
@given(st.sampled_from(sorted(CURVE_FITS)), accuracies, st.sampled_from([0.01, 50.0]))
def test_fit_in_other_units_gives_same_curve(name, points, unit):
    plain = CURVE_FITS[name](steps(len(points)), points)
    scaled = CURVE_FITS[name]([x * unit for x in steps(len(points))], points)
    assert scaled.accuracy_at(1000 * unit) == pytest.approx(plain.accuracy_at(1000), abs=1e-6)


@settings(max_examples=30)
@given(st.lists(st.floats(0.2, 0.9), min_size=2, max_size=7), st.sampled_from([None, 20]))
def test_fit_mixture_doubling_adds_at_most_half(points, crops):
    curve = fit_mixture(steps(len(points)), points, validation_crops=crops)
    last = curve.last_x
    seen = max(0.0, curve.accuracy_at(last) - points[0])
    assert (
        curve.accuracy_at(2 * last) - curve.accuracy_at(last)
        <= max(0.5 * (curve.accuracy_at(last) - curve.accuracy_at(0)), 0.5 * seen) + 1e-9
    )


def test_fit_optimus_on_inverse_points_continues_them():
    xs = steps(6, crops=150)
    curve = fit_optimus(xs, [true_curve(x) for x in xs])
    for x in (0, 300, 750, 1500, 3000):
        assert curve.accuracy_at(x) == pytest.approx(true_curve(x), abs=0.01)


def test_fit_mixture_more_work_gains_within_limits():
    xs = steps(6)
    curve = fit_mixture(xs, [true_curve(x) for x in xs], validation_crops=200)
    assert curve.accuracy_at(320) + 0.03 < curve.accuracy_at(1600) < 0.95


@pytest.mark.parametrize("points", [[0.7], [0.7, 0.7], [0.7] * 6, [0.7, 0.69, 0.68, 0.67], [0.9, 0.7, 0.5]])
def test_fit_mixture_of_falling_points_is_flat(points):
    curve = fit_mixture(steps(len(points)), points)
    assert curve.accuracy_at(10_000) == pytest.approx(curve.accuracy_at(0), abs=1e-9)
    assert min(points) - 1e-9 <= curve.accuracy_at(0) <= max(points) + 1e-9


def test_fit_mixture_after_dip_skips_first_point():
    points = [0.70, 0.40, 0.50, 0.58, 0.64, 0.68]
    assert fit_mixture(steps(6), points).accuracy_at(1280) > 0.72


def test_fit_mixture_near_perfect_last_point_keeps_others():
    """The inverse of its error is 50 times that of the first, and says no more about the curve."""
    points = [0.5, 0.8, 0.88, 0.93, 0.99]
    curve = fit_mixture(steps(5), points)
    assert [curve.accuracy_at(x) for x in steps(4)] == pytest.approx(points[:4], abs=0.05)


def test_fit_mixture_weights_later_points_more():
    early, late = ([0.5, 0.6, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5, 0.6])
    assert fit_mixture(steps(5), late).accuracy_at(256) > fit_mixture(steps(5), early).accuracy_at(256) + 0.05


def test_fit_mixture_with_few_crops_believes_less():
    points = [0.50, 0.56, 0.60, 0.62]
    beyond = {
        crops: (curve := fit_mixture(steps(4), points, validation_crops=crops)).accuracy_at(2000)
        - curve.accuracy_at(curve.last_x)
        for crops in (10, 40, 1000)
    }
    assert 0.0 < beyond[10] < beyond[40] < beyond[1000]
    assert beyond[10] < 0.5 * beyond[1000]


def test_fit_mixture_of_perfect_points_stays_perfect():
    assert fit_mixture(steps(4), [1.0] * 4).accuracy_at(1000) == pytest.approx(1.0, abs=2e-3)
    assert fit_mixture(steps(4), [0.0] * 4).accuracy_at(1000) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("c", [0.5, 1.0])
def test_fit_mixture_tells_slow_from_fast_power_laws(c):
    """The best inverse alone overestimates or underestimates a slow power law."""
    xs = [100.0 * k for k in range(1, 7)]
    curve = fit_mixture(xs, [1.0 - 0.6 * (x / 100) ** -c for x in xs])
    unlimited = replace(curve, doubling_gain=inf)
    assert unlimited.accuracy_at(5000) == pytest.approx(1.0 - 0.6 * 50**-c, abs=0.04)


@pytest.mark.parametrize(
    ("xs", "points"), [([], []), ([0, 1], [0.5]), ([1, 1], [0.5, 0.5]), ([0], [1.2]), ([-1], [0.5])]
)
@pytest.mark.parametrize("name", sorted(CURVE_FITS))
def test_fit_of_impossible_points_raises(name, xs, points):
    with pytest.raises(ValueError, match=r"curve|accuracies"):
        CURVE_FITS[name](xs, points)


def test_fit_mixture_error_is_about_validation_noise():
    """5 epochs on 64 of 160 crops, and 60 validation crops, whose noise alone is 6 points.

    The paper reports a median absolute error of 5.8% and little bias (§6.4).
    """
    rng = np.random.default_rng(7)
    errors = []
    for _ in range(120):
        start = rng.uniform(0.4, 0.75)
        end = min(0.97, start + rng.uniform(0.0, 0.4))
        half = rng.uniform(100, 1500)
        xs = steps(6)
        seen = [rng.binomial(60, true_curve(x, start, end, half)) / 60 for x in xs]
        error = fit_mixture(xs, seen, validation_crops=60).accuracy_at(8 * 160) - true_curve(
            1280, start, end, half
        )
        errors.append(error)
    assert np.median(np.abs(errors)) < 0.075
    assert abs(np.mean(errors)) < 0.04


def measured_curves(folder):
    for path in sorted((folder / "curves" / "pollux-cifar10").glob("validation-*.csv")):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        yield [float(row["progress"]) for row in rows], [float(row["metric"]) for row in rows]


def test_fit_mixture_of_measured_curves_predicts_epoch_100(data_dir):
    """A power law misses by 0.024."""
    missed = [
        abs(fit_mixture(xs[:5], ys[:5]).accuracy_at(xs[-1]) - ys[-1]) for xs, ys in measured_curves(data_dir)
    ]
    assert len(missed) == 6
    assert np.median(missed) < 0.024
