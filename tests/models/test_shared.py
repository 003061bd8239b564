"""Tests that a shared trunk gives the same answers as the models themselves."""

import numpy as np
import pytest
import torch
from other_weights import retrained

from ekya.models.edge.multi_model import SharedTrunk
from ekya.models.edge.predictor import Predictor


@pytest.mark.parametrize("resolution", [32, 24])
@pytest.mark.parametrize("blocks", [0, 2, 5])
def test_shared_trunk_predicts_from_the_boundary(tiny_model, make_bars, blocks, resolution) -> None:
    crops = make_bars(40, 3).crops
    trunk = SharedTrunk.from_crops(tiny_model, blocks, crops, resolution)
    assert trunk.blocks_left == blocks
    different = set()
    for seed in range(3):
        model = retrained(tiny_model, blocks, seed)
        expected, _ = Predictor(model).predict(crops, resolution)
        np.testing.assert_array_equal(trunk.predict(model), expected)
        different.add(tuple(expected))
    assert len(different) > 1


def test_shared_trunk_without_blocks_predicts_by_heads(tiny_model, make_bars) -> None:
    crops = make_bars(30, 4).crops
    shared = retrained(tiny_model, 2, 1)
    features = SharedTrunk.from_crops(tiny_model, 2, crops, 32).without_blocks(shared)
    assert features.activations.shape == (30, tiny_model.features)
    model = retrained(shared, 0, 2)
    np.testing.assert_array_equal(features.predict(model), Predictor(model).predict(crops, 32)[0])


def test_shared_trunk_take_returns_rows_or_none(tiny_model, make_bars) -> None:
    crops = make_bars(9, 5).crops
    trunk = SharedTrunk.from_crops(tiny_model, 2, crops, 32)
    rows = np.array([7, 2, 2])
    np.testing.assert_array_equal(
        trunk.select_crops(rows).predict(tiny_model), trunk.predict(tiny_model)[rows]
    )
    assert SharedTrunk.from_crops(tiny_model, 2, crops[:0], 32).predict(tiny_model).shape == (0,)


def test_shared_trunk_leaves_models_unchanged(tiny_model, make_bars) -> None:
    before = {name: tensor.clone() for name, tensor in tiny_model.state_dict().items()}
    trunk = SharedTrunk.from_crops(tiny_model, 2, make_bars(5, 6).crops, 32)
    trunk.without_blocks(tiny_model).predict(tiny_model)
    after = tiny_model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
