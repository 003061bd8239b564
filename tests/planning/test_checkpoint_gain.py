"""The curve along which checkpoints bring a gain: its mean, its pieces and its remainder."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimum.executed import going_on
from optimum.per_stream_bound import steps_above
from views import GAMMAS

from ekya.core.view import RetrainOption
from ekya.planning.schedulers.checkpoint_gain import (
    bend_of,
    bends_of,
    early_part_left,
    mean_part,
    mean_parts,
    part_in_steps,
)

early_parts = st.floats(0.002, 0.998)
parts = st.floats(0.0, 1.0)
few = settings(max_examples=60)


def risen(bend, done):
    return math.expm1(-bend * done) / math.expm1(-bend)


@few
@given(early_parts)
def test_bend_of_early_part_has_this_mean(early_part):
    bend = bend_of(early_part)
    middles = (np.arange(20_000) + 0.5) / 20_000
    assert np.mean(np.expm1(-bend * middles) / np.expm1(-bend)) == pytest.approx(early_part, abs=1e-5)
    assert mean_part(bend, 0.0, 1.0) == pytest.approx(early_part, abs=1e-9)
    assert bends_of(np.array([early_part, 0.0])) == pytest.approx(np.array([bend, 0.0]), abs=1e-9)


@few
@given(early_parts, parts, parts)
def test_mean_part_of_a_piece_is_its_integral(early_part, one, other):
    bend, (start, end) = bend_of(early_part), sorted((one, other))
    middles = start + (end - start) * (np.arange(4000) + 0.5) / 4000
    mean = np.mean(np.expm1(-bend * middles) / np.expm1(-bend))
    assert mean_part(bend, start, end) == pytest.approx(mean, abs=1e-4)
    assert mean_part(bend, start, start) == pytest.approx(risen(bend, start), abs=1e-9)
    assert mean_parts(*map(np.array, ([bend], [start], [end])))[0] == pytest.approx(
        mean_part(bend, start, end), abs=1e-12
    )


@few
@given(early_parts, parts, parts)
def test_early_part_left_continues_the_curve(early_part, first, second):
    """Work done in two parts reaches what it reaches in one."""
    option = RetrainOption(GAMMAS[0], 0.9, 20.0, early_part=early_part)
    once = going_on(option, 0.4, 20.0 * (first + (1.0 - first) * second))
    half, accuracy = going_on(option, 0.4, 20.0 * first)
    twice = going_on(half, accuracy, half.gpu_s * second)
    assert twice[1] == pytest.approx(once[1], abs=1e-7)
    assert twice[0].gpu_s == pytest.approx(once[0].gpu_s, abs=1e-9)
    if once[0].gpu_s > 1e-3 and twice[1] < 0.9 - 1e-9:
        assert twice[0].early_part == pytest.approx(once[0].early_part, abs=1e-6)


def test_going_on_without_checkpoints_keeps_accuracy():
    option = RetrainOption(GAMMAS[0], 0.9, 20.0)
    assert going_on(option, 0.4, 5.0) == (replace(option, gpu_s=15.0), 0.4)
    assert bend_of(0.0) == early_part_left(0.0, 0.5) == 0.0


@few
@given(early_parts, st.integers(1, 40))
def test_part_in_steps_lags_by_one_step(early_part, steps):
    bend = bend_of(early_part)
    stepped = sum(risen(bend, step / steps) for step in range(steps)) / steps
    assert part_in_steps(bend, steps) == pytest.approx(stepped, abs=1e-5)
    assert stepped <= early_part + 1e-9


@few
@given(early_parts, st.integers(1, 20), parts)
def test_steps_above_never_fall_below_curve(early_part, count, done):
    at, reached = steps_above(early_part, count)
    assert (at[0], reached[0], at[-1]) == (0.0, 0.0, 1.0)
    assert reached[-1] == pytest.approx(1.0, abs=1e-12)
    assert at == sorted(at)
    step = max(index for index in range(count) if at[index] <= done)
    assert reached[step + 1] >= risen(bend_of(early_part), done) - 1e-9
