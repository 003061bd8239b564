"""Tests of the problems on which schedulers are measured."""

from pathlib import Path

import pytest
from optimum.problems import load_problems, problem, view_of

from ekya.core.errors import UserError
from ekya.core.speed import LINEAR
from ekya.simulation.trace.generator_parameters import MEASURED_SPEED

SHIPPED = Path(__file__).resolve().parents[2] / "experiments" / "problems.yaml"


def test_problems_are_200_with_unique_seeds_and_both_speed_curves():
    problems = list(load_problems(SHIPPED).problems())
    assert len(problems) == len({one.seed for one in problems}) == 200
    assert {one.speed for one in problems} == {"linear", "measured"}
    assert {one.gpus / one.streams for one in problems} == {0.2, 0.4, 0.6, 0.8, 1.0}


def test_problem_view_has_every_option_and_nothing_running():
    chosen = load_problems(SHIPPED)
    first, *_, last = chosen.problems()
    view = chosen.view(first)
    assert (view.training_speed, chosen.view(last).training_speed) == (LINEAR, MEASURED_SPEED)
    assert view.capacity_milli == 2000
    assert len(view.streams) == 10
    for stream in view.streams:
        assert len(stream.retrain_options) == 18
        assert len(stream.inference_options) == 8
        assert stream.running is None


def test_problem_view_is_window_2_of_its_trace():
    chosen = load_problems(SHIPPED)
    first = next(chosen.problems())
    assert chosen.view(first) == view_of(chosen.trace(first, 5), 2, 2000, chosen.shape)


def test_problem_of_same_seed_is_the_same():
    assert problem(3, 4, 1.0) == problem(3, 4, 1.0)
    assert problem(3, 4, 1.0) != problem(4, 4, 1.0)


def test_problem_wrong_key_is_named(tmp_path):
    path = tmp_path / "problems.yaml"
    path.write_text(SHIPPED.read_text(encoding="utf-8").replace("seeds_each: 20", "seeds_each: many"))
    with pytest.raises(UserError, match="seeds_each"):
        load_problems(path)
