"""Tests that the self-test selects correct and faster ways, for any instruction set."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ekya.models.edge import self_test
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.forward import ONNXRUNTIME, PLAIN, ForwardWay
from ekya.models.edge.predictor import Predictor
from ekya.models.edge.self_test import choose_way


@pytest.mark.parametrize(
    ("faster", "expected"),
    [
        ({}, {}),
        ({"channels_last": 0.94}, {"channels_last": True}),
        ({"channels_last": 0.96}, {}),
        ({"packed_for": 0.5}, {"packed_for": (6, 32)}),
        ({"packed_for": 0.5, "channels_last": 0.5}, {"packed_for": (6, 32), "channels_last": True}),
        ({"packed_for": 0.5, "many crops": 2.2}, {}),
        ({"packed_for": 0.5, "many crops": 2.0}, {"packed_for": (6, 32)}),
        ({"crops_a_pass": 0.9}, {"crops_a_pass": 128}),
        ({"channels_last": 0.5, "crops_a_pass": 0.5}, {"channels_last": True, "crops_a_pass": 128}),
    ],
)
def test_choose_way_is_the_fastest_by_its_clock(tiny_model, monkeypatch, faster, expected) -> None:
    """``faster``: what a way that is not plain there makes of the time; times are those of a fake clock."""
    now_s = [0.0]

    class Timed(Predictor):
        """Computes as plain on every machine, and passes the time of its way."""

        def __init__(self, model, device, way):
            super().__init__(model, device, PLAIN)
            self.told = way

        def predict(self, crops, resolution):
            took_s = 1e-4 * len(crops)
            for field in ("channels_last", "packed_for", "crops_a_pass"):
                if getattr(self.told, field) != getattr(PLAIN, field):
                    took_s *= faster.get(field, 1.0)
            if self.told.packed_for and len(crops) > 6:
                took_s *= faster.get("many crops", 1.0)
            now_s[0] += took_s
            return super().predict(crops, resolution)

    monkeypatch.setattr(self_test, "Predictor", Timed)
    monkeypatch.setattr(self_test, "can_pack", lambda: True)
    monkeypatch.setattr(self_test, "device_clock", lambda _device: lambda: now_s[0])
    found = choose_way("tiny", "cpu", (32, 24), budget_s=math.inf)
    assert found.way == replace(PLAIN, **expected)


@pytest.mark.parametrize(
    ("took", "expected"),
    [
        ({32: 0.7, 64: 1.04}, 4),
        ({32: 0.7, 64: 1.06}, 1),
        ({32: 0.96, 64: 0.9}, 1),
    ],
)
def test_choose_way_of_a_detector_batches_where_no_side_is_slower(monkeypatch, took, expected) -> None:
    """``took``: parts of the time of frames one by one, by side."""
    now_s = [0.0]

    class Timed(DetectorPredictor):
        def __init__(self, model, device, way=PLAIN):
            super().__init__(model, device, replace(way, images_a_pass=1))
            self.told = way.images_a_pass

        def predict(self, images, resolution):
            now_s[0] += 1e-3 * (took[resolution] if self.told > 1 else 1.0)
            return super().predict(images[:1], resolution)

    monkeypatch.setattr(self_test, "DetectorPredictor", Timed)
    monkeypatch.setattr(self_test, "device_clock", lambda _device: lambda: now_s[0])
    found = choose_way(FASTESTDET, "cpu", (64, 32), budget_s=math.inf)
    assert found.way == ForwardWay(engine=ONNXRUNTIME, images_a_pass=expected)


def test_choose_way_wrong_scores_are_refused(tiny_model, monkeypatch) -> None:
    class Wrong(Predictor):
        def predict(self, crops, resolution):
            if self.way == PLAIN:
                return super().predict(crops, resolution)
            return np.zeros(len(crops), np.int64), np.full(len(crops), 0.5, np.float32)

    monkeypatch.setattr(self_test, "Predictor", Wrong)
    found = choose_way("tiny", "cpu", (32, 24), budget_s=math.inf)
    assert found.way == PLAIN
    assert all(
        "scores are off by" in tried.refused for tried in found.tried if not tried.way.crops_a_pass > 32
    )


def test_choose_way_failure_is_refused_with_its_reason(tiny_model, monkeypatch) -> None:
    class Failing(Predictor):
        def predict(self, crops, resolution):
            if self.way.channels_last:
                raise RuntimeError("no such layout here\nat line 1")
            return super().predict(crops, resolution)

    monkeypatch.setattr(self_test, "Predictor", Failing)
    found = choose_way("tiny", "cpu", (32,), budget_s=math.inf)
    assert not found.way.channels_last
    reasons = {tried.refused for tried in found.tried if tried.way.channels_last}
    assert reasons == {"it failed: no such layout here"}


@pytest.mark.parametrize("broken", [0, 1])
def test_choose_way_score_that_is_not_finite_is_refused(broken) -> None:
    expected = [np.zeros(3, np.float32), np.zeros(2, np.float32)]
    found = [np.array(one) for one in expected]
    found[broken][1] = np.nan
    assert self_test.score_error(expected, expected) == 0.0
    assert self_test.score_error(found, expected) == float("inf")


def test_choose_way_without_time_is_plain(tiny_model) -> None:
    found = choose_way("tiny", "cpu", (32,), budget_s=0.0)
    assert found.way == PLAIN
    assert found.tried == ()


def test_choose_way_takes_the_fastest_that_is_slower_nowhere() -> None:
    assert self_test.fastest([[0.5, 1.2], [0.9, 0.9], [0.96, 0.1]]) == 1
    assert self_test.fastest([[0.5, 0.5], [0.49, 0.5]]) == 0
    assert self_test.fastest([[0.97, 0.5]]) is None
    assert self_test.fastest([]) is None


@pytest.mark.parametrize(("device", "has_time"), [("cuda", True), ("cpu", False)])
def test_choose_way_tries_graphs_joins_and_large_passes_on_cuda(
    tiny_model, monkeypatch, device, has_time
) -> None:
    """Each pass takes 20 ms, as the first ones do on a GPU."""
    now_s = [0.0]

    class Slow:
        def __init__(self, model, device, way):
            self.way = way

        def predict(self, crops, resolution):
            now_s[0] += 0.02
            return np.zeros(len(crops), int), np.ones(len(crops), np.float32)

    class SlowOfSeveral:
        def __init__(self, device, way):
            self.predictors, self.add_owner = self, lambda place, predictor: None

        def predictor_for(self, model):
            return Slow(model, device, PLAIN)

        def predict(self, requests):
            return [request.predictor.predict(request.crops, request.resolution) for request in requests]

    monkeypatch.setattr(self_test, "Predictor", Slow)
    monkeypatch.setattr(self_test, "MultiModelPredictor", SlowOfSeveral)
    monkeypatch.setattr(self_test, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    monkeypatch.setattr(self_test, "device_clock", lambda _device: lambda: now_s[0])
    tried = [one.way for one in choose_way("tiny", device, (32,)).tried]
    assert any(way.graphs for way in tried) is has_time
    assert any(way.grouped for way in tried) is has_time
    assert any(way.crops_a_pass == 128 for way in tried) is has_time
