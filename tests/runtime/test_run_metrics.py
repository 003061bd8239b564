"""Tests of the metrics of a run, without Ray's dashboard."""

from types import SimpleNamespace

import pytest

import ekya.runtime.driver.observers
from ekya.control.protocols import Batch
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.state import FleetState, StreamState
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption
from ekya.runtime.driver.observers import RunMetrics

CAM = StreamId("cam")


@pytest.fixture
def values(monkeypatch):
    """Values of all metrics, by name and stream."""
    set_to = {}

    def metric(name, *_):
        def to(value, tags=None):
            set_to[name, (tags or {}).get("stream")] = value

        return SimpleNamespace(set=to, inc=to)

    for kind in ("Gauge", "Counter"):
        monkeypatch.setattr(ekya.runtime.driver.observers, kind, metric)
    return set_to


@pytest.mark.parametrize(("resolution", "accuracy"), [(32, 0.5), (GOLDEN_RESOLUTION, 0.9)])
def test_accuracy_is_that_of_the_detector_that_answers(values, resolution, accuracy):
    options = [InferenceOption(InferenceConfig(5, side), 0.9, 300) for side in (32, GOLDEN_RESOLUTION)]
    stream = StreamState(CAM, tuple(options), accuracy=0.5, inference=InferenceConfig(5, resolution))
    state = SimpleNamespace(fleet=FleetState((stream,)))
    step = SimpleNamespace(state=state, plan=None, commands=())
    RunMetrics()(Batch(1, ()), step)
    assert values["ekya_accuracy", CAM] == accuracy
