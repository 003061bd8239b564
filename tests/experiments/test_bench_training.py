import bench_training as bench
import numpy as np
import pytest

from ekya.core.configs import RetrainConfig
from ekya.models.edge.model import build_edge_model
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops


def crops(count, first_track):
    rng = np.random.default_rng(first_track)
    tracks = first_track + np.arange(count, dtype=np.int64)
    pictures = rng.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
    return LabelledCrops(pictures, tracks % 2, tracks, tracks)


def test_bench_training_ways_learn_the_same_and_time_first_epochs():
    base = build_edge_model(("car", "person"), 0, seed=1)
    case = bench.Case(crops(6, 0), crops(4, 50), ExemplarMemory(), crops(4, 90))
    shared, kept, anew = ways = bench.every_way(case, base, RetrainConfig(2, 4, 0, 0, 1.0), seed=0)
    assert shared.curve == pytest.approx(kept.curve)
    assert kept.curve == pytest.approx(anew.curve)
    assert len(kept.curve) == 3
    row = bench.row_of(0, 1, [ways])
    assert row.kept_s == pytest.approx(kept.prepare_s + kept.epochs_s[0])
    assert row.shared_faster == pytest.approx(row.anew_s / row.shared_s)
    assert row.largest_difference == pytest.approx(0.0)


def test_bench_training_head_trial_caches_features_for_retraining():
    base = build_edge_model(("car", "person"), 0, seed=1)
    case = bench.Case(crops(6, 0), crops(4, 50), ExemplarMemory(), crops(4, 90))
    passed = bench.tried(case, base, RetrainConfig(2, 4, 0, 0, 1.0), seed=0)
    assert passed.find_cached(0, case.training.crops).all()
    assert passed.find_cached(0, case.validation.crops).all()
