import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ekya.models.edge.model import build_edge_model
from ekya.models.edge.multi_model import common_blocks

FOLDER = Path(__file__).resolve().parents[2] / "experiments"

# Imported outside of the tests, so that loading the drawing library does not count as a test's time.
sys.path.insert(0, str(FOLDER))
bench = importlib.import_module("inference_ways")


def answers(*scores: float):
    return np.arange(len(scores)), np.array(scores, np.float32)


def a_bench(model=None):
    crops = np.zeros((bench.FRAMES[-1] * bench.OBJECTS, 32, 32, 3), np.uint8)
    return bench.Bench("cpu", model, crops, rounds=1, most_s=1.0)


def busy(loops: int):
    def call():
        for _ in range(loops):
            np.linalg.norm(np.ones(2000))
        return answers(0.5)

    return call


def test_bench_compared_ways_are_rated_against_the_first():
    slow, fast = a_bench().compared("q", [bench.Way("slow", 2, busy(400)), bench.Way("fast", 6, busy(20))])
    assert (slow.times, fast.off_by) == (1.0, None), "answers about other crops are not compared"
    assert fast.times == pytest.approx(fast.images_s / slow.images_s)
    assert fast.times > 1.0
    assert slow.images_s == pytest.approx(2 / (slow.p50_ms / 1e3))


@pytest.mark.parametrize("other", [answers(0.5, 0.6002), (np.array([1, 1]), answers(0.5, 0.6)[1])])
def test_bench_compared_way_with_different_answers_is_refused(other):
    ways = [bench.Way("plain", 2, lambda: answers(0.5, 0.6)), bench.Way("other", 2, lambda: other)]
    plain, refused = a_bench().compared("q", ways)
    assert plain.p50_ms is not None
    assert refused.p50_ms is refused.times is None
    assert "refused" in refused.note


def test_bench_half_precision_overflow_is_refused():
    model = build_edge_model(("a", "b"), 0, 1)
    with torch.no_grad():
        model.head.weight.mul_(1e7)
    (way,) = (one for one in a_bench(model).half() if one.name == "float16")
    assert way.call is None
    assert way.note == "refused: logits off by inf"


def test_bench_streams_share_common_blocks_and_differ_in_heads(monkeypatch):
    batched = []

    def refuse(models, *_):
        batched.append(models)
        raise ValueError("only the models are of interest")

    monkeypatch.setattr(bench, "STREAMS", 2)
    monkeypatch.setattr(bench, "BatchedPredictor", refuse)
    one = a_bench(build_edge_model(("a", "b"), 0, 1))
    for common, alike in ((3, 3), (None, 5)):
        one.streams(common)
        models = batched[-1]
        assert common_blocks(models) == alike
        assert not torch.equal(models[0].head.weight, models[1].head.weight)
