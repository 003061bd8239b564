from pathlib import Path

import bench_detect as bench
import numpy as np
import pytest

from ekya.core.errors import UserError

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
