"""The recipe on scenes that return: which of a fleet do, and accuracy by second."""

import numpy as np
import pytest
from zoo_return import Return, accuracy, returns

from ekya.config.fleet_file import DEFAULT_FLEET
from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.results.metrics.accuracy import ScoreSeries


def test_returns_are_scenes_that_are_as_before():
    fleet = load_fleet(shipped_path("datasets/synthetic_city/fleet_return.yaml"))
    assert list(returns(fleet)) == [Return("cam-1", 50.0, 92.0), Return("cam-2", 40.0, 88.0)]
    assert list(returns(load_fleet(shipped_path(DEFAULT_FLEET)))) == []


def test_accuracy_counts_objects_of_whole_seconds():
    series = ScoreSeries(np.array([0, 1_000_000, 2_000_000]), np.array([4, 2, 6]), np.array([4, 1, 0]))
    assert accuracy(series, 0.0, 2.0) == pytest.approx(5 / 6)
    assert accuracy(series, 5.0, 9.0) == 0.0
