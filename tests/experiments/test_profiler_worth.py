"""Tests of the comparison of estimates; recording itself takes minutes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import profiler_cases as on_disk
import profiler_truths as truths
import profiler_worth as worth
import pytest

from ekya.config.fleet_reading import load_fleet
from ekya.core.configs import RetrainConfig
from ekya.core.view import RetrainOption
from ekya.models.edge.model import build_edge_model
from ekya.models.training.labelled import LabelledCrops
from ekya.pipeline.labels import LabelledPart, StreamLabels

ROOT = Path(__file__).resolve().parents[2]

CONFIGS = tuple(RetrainConfig(epochs, 16, 0, 0, 1.0) for epochs in (4, 8, 16))


@pytest.fixture(scope="module")
def fleet():
    return load_fleet(ROOT / "datasets/synthetic_city/fleet.yaml")


def test_stretched_fleet_changes_later_and_slower_by_the_factor(fleet):
    long = truths.stretched(fleet, 10 * fleet.window_s)
    assert long.window_s == 10 * fleet.window_s
    for short_stream, long_stream in zip(fleet.streams, long.streams, strict=True):
        for before, after in zip(short_stream.source.scenes, long_stream.source.scenes, strict=True):
            assert (after.at_s, after.ramp_s) == (10 * before.at_s, 10 * before.ramp_s)
            assert after.mix == before.mix
    for place in range(len(fleet.streams)):
        for window in range(fleet.windows):
            assert truths.is_steady(long, place, window) == truths.is_steady(fleet, place, window)


def test_steady_window_excludes_a_camera_move(fleet):
    """cam-1 is moved at 26 s, in the window from 21 s to 42 s."""
    assert [truths.is_steady(fleet, 0, window) for window in range(4)] == [True, False, True, True]


def a_case(given):
    crops = LabelledCrops(
        np.arange(3 * 4 * 4 * 3, dtype=np.uint8).reshape(3, 4, 4, 3),
        np.array([0, 1, 1]),
        np.array([4, 5, 6]),
        np.array([0, 10, 20]),
    )
    part = LabelledPart(crops, np.array([1, 2, 3]), np.ones((3, 4), np.float32))
    model = build_edge_model(("car", "bus"), 0, seed=1)
    labels = StreamLabels(2, part, part.take(np.array([1])))
    return truths.Case(1, 0, "cam-1", 3, model, labels, 7, 0.5, 0.6, 40, given)


def given(*served):
    return tuple(
        truths.Given(config, (0.4, accuracy), accuracy, accuracy, accuracy, float(config.epochs))
        for config, accuracy in zip(CONFIGS, served, strict=True)
    )


def test_saved_case_is_read_back_unchanged(tmp_path):
    case = a_case(given(0.5, 0.6, 0.7))
    assert not on_disk.is_whole(tmp_path)
    assert list(on_disk.save_cases(tmp_path, [case])) == [case]
    (read,) = on_disk.load_cases(tmp_path)
    assert on_disk.is_whole(tmp_path)
    assert (read.stream, read.window, read.exemplars, read.given) == ("cam-1", 3, 7, case.given)
    assert read.labels.window == 2
    assert np.array_equal(read.labels.training.examples.images, case.labels.training.examples.images)
    assert np.array_equal(read.labels.validation.boxes, case.labels.validation.boxes)
    weights = zip(read.model.state_dict().values(), case.model.state_dict().values(), strict=True)
    assert all(bool((ours == theirs).all()) for ours, theirs in weights)


def recorded(*served):
    return on_disk.Recorded("fleet", 0, True, 64, 16, 0.5, 0.55, (), 0.1, (), 0.2, given(*served))


def test_worth_of_training_all_counts_change_in_next_window():
    changed = tuple(
        replace(outcome, here=here)
        for outcome, here in zip(given(0.5, 0.5, 0.5), (0.5, 0.6, 0.8), strict=True)
    )
    row = replace(recorded(0.5, 0.5, 0.5), given=changed)
    found, errors = worth.worth("exhaustive", "all", [row], worth.by_training_all, [])
    assert sorted(errors) == pytest.approx([0.0, 0.1, 0.3])
    assert found.cost is None


def test_worth_compares_estimates_with_measured_options():
    rows = [recorded(0.5, 0.6, 0.7), recorded(0.6, 0.6, 0.6)]

    def promised(row):
        del row
        return tuple(
            RetrainOption(config, told, float(config.epochs), accuracy_sd=0.05)
            for config, told in zip(CONFIGS, (0.7, 0.6, 0.5), strict=True)
        )

    found, errors = worth.worth("ekya", "all", rows, promised, [0.14, 0.14])
    assert sorted(errors) == pytest.approx([-0.2, -0.1, 0.0, 0.0, 0.1, 0.2])
    assert found.median_error == pytest.approx(0.1)
    assert (found.ranked, found.spearman) == (1, pytest.approx(-1.0))
    assert found.regret == pytest.approx(0.1)
    assert found.cost == pytest.approx(0.28 / 56)
    assert found.within_80 == pytest.approx(2 / 6)
    assert found.duration_error == 0.0
