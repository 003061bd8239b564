"""Tests that the self-test selects correct and faster ways, for any instruction set."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from ekya.models.edge import self_test
from ekya.models.edge.forward import PLAIN
from ekya.models.edge.predictor import Predictor
from ekya.models.edge.self_test import choose_way

COMPARE = """
import json, time
import numpy as np, torch
torch.set_num_threads(1)
from ekya.models.edge.model import build_edge_model
from ekya.models.edge.forward import PLAIN
from ekya.models.edge.predictor import Predictor
from ekya.models.edge.self_test import choose_way

way = choose_way("resnet18", "cpu", (32, 24)).way
model = build_edge_model(("a", "b", "c"), 0, 1)
asks = [Predictor(model, "cpu", PLAIN), Predictor(model, "cpu", way)]
crops = np.random.default_rng(1).integers(0, 256, (24, 32, 32, 3), np.uint8)
ratios = {}
# Plain compared with itself would only show noise.
for count, side in ((6, 32), (6, 24), (24, 32)) if way != PLAIN else ():
    took = [[], []]
    for turn in range(2 + 9):
        for ask, times in zip(asks, took):
            began = time.thread_time()
            ask.predict(crops[:count], side)
            times.append(time.thread_time() - began)
    # The fastest of each: work of others on the machine only ever adds time.
    plain, chosen = (min(times[2:]) for times in took)
    ratios[f"{count} crops of {side} pixels"] = chosen / plain
print(json.dumps({"way": str(way), "ratios": ratios}))
"""


@pytest.mark.live
@pytest.mark.virtual
@pytest.mark.parametrize(
    "isa", ["", *(pytest.param(isa, marks=pytest.mark.long) for isa in ("AVX2", "SSE41"))]
)
def test_choose_way_is_never_a_tenth_slower_than_plain(isa) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    if isa:
        environment["ONEDNN_MAX_CPU_ISA"] = isa
    told = subprocess.run(
        [sys.executable, "-c", COMPARE], env=environment, capture_output=True, text=True, check=True
    )
    found = json.loads(told.stdout.splitlines()[-1])
    assert all(ratio <= 1.1 for ratio in found["ratios"].values()), found


def test_choose_way_wrong_scores_are_refused(tiny_model, monkeypatch) -> None:
    class Wrong(Predictor):
        def predict(self, crops, resolution):
            if self.way == PLAIN:
                return super().predict(crops, resolution)
            return np.zeros(len(crops), np.int64), np.full(len(crops), 0.5, np.float32)

    monkeypatch.setattr(self_test, "Predictor", Wrong)
    found = choose_way("tiny", "cpu", (32, 24), budget_s=60)
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
    found = choose_way("tiny", "cpu", (32,), budget_s=60)
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
