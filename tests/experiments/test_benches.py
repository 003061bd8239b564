"""Tests of the benches of training, detection and inference: ratios, and ways with other answers."""

from pathlib import Path

import bench_detect as bench
import bench_training as training_bench
import inference_ways
import numpy as np
import pytest
import torch

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.models.edge.model import build_edge_model
from ekya.models.edge.multi_model import common_blocks
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops

SIDE = 64


@pytest.fixture(scope="module")
def models():
    return bench.students(None, 3, seed=1)


def test_bench_detect_compares_every_way_with_the_plain_network(models):
    image = np.zeros((1, SIDE, SIDE, 3), np.uint8)
    rows = {row.name: row for row in bench.frame_rows(models[0], None, SIDE, image, rounds=3)}
    assert list(rows) == [bench.BARE, bench.OURS, bench.SUPPRESSED, bench.IN_TORCH]
    assert rows[bench.BARE].ratio == 1.0
    assert all(0 < row.low <= row.ratio <= row.high and row.ms > 0 for row in rows.values())


def test_bench_detect_compares_cameras_in_one_pass_with_one_by_one(models):
    rows = bench.camera_rows(models[0], SIDE, np.zeros((1, SIDE, SIDE, 3), np.uint8), rounds=3)
    assert [row.name for row in rows[:2]] == ["onnxruntime", "onnxruntime, 4 images a pass"]
    assert [row.ratio for row in rows[::2]] == [1.0, 1.0]


def test_bench_detect_ratio_is_of_calls_of_one_round():
    def takes(seconds):
        def call():
            nonlocal now_s
            now_s += seconds

        return call

    now_s = 0.0
    calls = {"short": takes(0.002), "long": takes(0.008)}
    short, long = bench.compared(calls, 5, "short", units=2.0, now_s=lambda: now_s)
    assert (short.name, short.ratio) == ("short", 1.0)
    assert long.ratio == pytest.approx(4.0)
    assert long.ms == pytest.approx(4.0), "of one unit"


def test_bench_detect_plain_file_answers_as_the_published_one(data_dir):
    weights = data_dir / "weights"
    (model,) = bench.students(weights / "FastestDet_coco.safetensors", 1, seed=0)
    (ours,) = bench.bare(bench.plain_file(model, bench.FILE_SIDE), bench.FILE_SIDE)()
    (theirs,) = bench.published(weights / "FastestDet.onnx")()
    # The published network takes BGR, and the same noise went to both: only the shapes can agree.
    assert ours.shape == theirs.shape == (1, 85, 22, 22)
    assert 0 <= ours[:, 5:].min() <= ours[:, 5:].max() <= 1


def test_bench_detect_times_new_weights_and_training(models):
    swap = bench.swap_of(models, np.zeros((1, SIDE, SIDE, 3), np.uint8))
    assert swap.engine == "onnxruntime"
    assert swap.first_s > 0 < swap.next_s
    rows = bench.training_rows(models[0], SIDE, 3, seed=0)
    assert [row.name for row in rows] == list(bench.PARTS)
    assert rows[2].ratio == 1.0


@pytest.mark.parametrize("text", ["", "100", "352,", "-32", "0"])
def test_bench_detect_refuses_sides_that_no_detector_takes(text):
    with pytest.raises(UserError, match="multiples of 32"):
        bench.sides_of(text)


def test_bench_detect_refuses_files_that_are_missing_or_damaged(tmp_path):
    with pytest.raises(UserError, match="--onnx"):
        bench.found(Path("none.onnx"), "FastestDet.onnx", "--onnx")
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"no network")
    with pytest.raises(UserError, match="is no FastestDet"):
        bench.published(damaged)


def crops(count, first_track):
    rng = np.random.default_rng(first_track)
    tracks = first_track + np.arange(count, dtype=np.int64)
    pictures = rng.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
    return LabelledCrops(pictures, tracks % 2, tracks, tracks)


def test_bench_training_ways_learn_the_same_and_time_first_epochs():
    base = build_edge_model(("car", "person"), 0, seed=1)
    case = training_bench.Case(crops(6, 0), crops(4, 50), ExemplarMemory(), crops(4, 90))
    kept, anew, whole = ways = training_bench.every_way(case, base, RetrainConfig(2, 4, 0, 0, 1.0), seed=0)
    assert kept.curve == pytest.approx(anew.curve)
    assert kept.curve == pytest.approx(whole.curve)
    assert len(kept.curve) == 3
    row = training_bench.row_of(0, 1, [ways])
    assert row.kept_s == pytest.approx(kept.prepare_s + kept.epochs_s[0])
    assert row.faster == pytest.approx(row.anew_s / row.kept_s)
    assert row.largest_difference == pytest.approx(0.0)


def answers(*scores: float):
    return np.arange(len(scores)), np.array(scores, np.float32)


def a_bench(model=None):
    crops = np.zeros((inference_ways.FRAMES[-1] * inference_ways.OBJECTS, 32, 32, 3), np.uint8)
    return inference_ways.Bench("cpu", model, crops, rounds=1, most_s=1.0)


def busy(loops: int):
    def call():
        for _ in range(loops):
            np.linalg.norm(np.ones(2000))
        return answers(0.5)

    return call


def test_bench_compared_ways_are_rated_against_the_first():
    slow, fast = a_bench().compared(
        "q", [inference_ways.Way("slow", 2, busy(400)), inference_ways.Way("fast", 6, busy(20))]
    )
    assert (slow.times, fast.off_by) == (1.0, None), "answers about other crops are not compared"
    assert fast.times == pytest.approx(fast.images_s / slow.images_s)
    assert fast.times > 1.0
    assert slow.images_s == pytest.approx(2 / (slow.p50_ms / 1e3))


@pytest.mark.parametrize("other", [answers(0.5, 0.6002), (np.array([1, 1]), answers(0.5, 0.6)[1])])
def test_bench_compared_way_with_different_answers_is_refused(other):
    ways = [
        inference_ways.Way("plain", 2, lambda: answers(0.5, 0.6)),
        inference_ways.Way("other", 2, lambda: other),
    ]
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

    monkeypatch.setattr(inference_ways, "STREAMS", 2)
    monkeypatch.setattr(inference_ways, "BatchedPredictor", refuse)
    one = a_bench(build_edge_model(("a", "b"), 0, 1))
    for common, alike in ((3, 3), (None, 5)):
        one.streams(common)
        models = batched[-1]
        assert common_blocks(models) == alike
        assert not torch.equal(models[0].head.weight, models[1].head.weight)
