"""Tests that models in one batch give the same answers as each model alone."""

import numpy as np
import pytest
import torch
from other_weights import retrained
from torch import nn

from ekya.models.edge.architectures import EDGE_MODELS, Trunk
from ekya.models.edge.forward import ForwardWay
from ekya.models.edge.model import adapt, build_edge_model, clone
from ekya.models.edge.multi_model import BatchedPredictor, MultiModelPredictor, Request, common_blocks
from ekya.models.edge.predictor import Predictor


def assert_as_one_by_one(models, crops, resolution=32) -> None:
    together = BatchedPredictor(models).predict(crops, resolution)
    assert len(together) == len(models)
    for model, own, (classes, confidence) in zip(models, crops, together, strict=True):
        expected, sure = Predictor(model).predict(own, resolution)
        np.testing.assert_array_equal(classes, expected)
        np.testing.assert_allclose(confidence, sure, atol=1e-5)


@pytest.mark.parametrize(("blocks", "shared"), [(0, 5), (1, 4), (3, 2), (5, 0)])
def test_predict_answers_as_each_model_alone(tiny_model, make_bars, blocks, shared) -> None:
    models = [retrained(tiny_model, blocks, seed) for seed in range(3)]
    crops = [make_bars(count, count).crops for count in (7, 2, 12)]
    assert BatchedPredictor(models).shared_blocks == shared
    assert_as_one_by_one(models, crops)
    answers = [Predictor(model).predict(crops[2], 32)[0].tolist() for model in models]
    assert len({tuple(of) for of in answers}) > 1, "models that all say the same would show nothing"


def test_predict_with_different_heads_answers_as_each_alone(tiny_model, make_bars) -> None:
    models = [
        retrained(tiny_model, 2, 1),
        adapt(retrained(tiny_model, 2, 2), ("truck", "bus"), 8, seed=3),
        adapt(retrained(tiny_model, 1, 4), ("person", "car", "truck", "bus"), 0, seed=5),
    ]
    assert_as_one_by_one(models, [make_bars(9, seed).crops for seed in range(3)], resolution=24)


def test_predict_without_crops_returns_empty_answers(tiny_model, make_bars) -> None:
    models = [retrained(tiny_model, 2, seed) for seed in range(2)]
    crops = make_bars(5, 1).crops
    assert_as_one_by_one(models, [crops[:0], crops])
    for classes, confidence in BatchedPredictor(models).predict([crops[:0], crops[:0]], 32):
        assert classes.shape == confidence.shape == (0,)


def test_predict_of_one_model_answers_as_it_alone(tiny_model, make_bars) -> None:
    assert_as_one_by_one([tiny_model], [make_bars(4, 2).crops])


def test_common_blocks_end_at_the_first_that_differs(tiny_model) -> None:
    other = clone(tiny_model)
    with torch.no_grad():
        next(other.blocks[2].parameters())[0, 0, 0, 0] += 1e-3
    assert common_blocks([tiny_model, clone(tiny_model)]) == 5
    assert common_blocks([tiny_model, clone(tiny_model), other]) == 2
    statistics = clone(tiny_model)
    statistics.blocks[1][1].running_var.mul_(2.0)
    assert common_blocks([other, statistics]) == 1


def test_two_architectures_raise(tiny_model, monkeypatch) -> None:
    monkeypatch.setitem(EDGE_MODELS, "other", lambda: Trunk({"only": nn.Conv2d(3, 4, 3)}, 4))
    with pytest.raises(ValueError, match=r"\['other', 'tiny'\]"):
        BatchedPredictor([tiny_model, build_edge_model(tiny_model.classes, 0, 1, "other")])


class Halves(nn.Module):
    """Swaps the halves of its channels like a ShuffleNet, which is wrong for channels grouped by model."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        first, second = images.chunk(2, dim=1)
        return torch.cat([second, first], dim=1)


def test_blocks_that_mix_channels_are_refused_and_run_one_by_one(monkeypatch, make_bars) -> None:
    blocks = {"first": nn.Sequential(nn.Conv2d(3, 8, 3), Halves(), nn.Conv2d(8, 8, 3))}
    monkeypatch.setitem(EDGE_MODELS, "mixing", lambda: Trunk(blocks, 8))
    models = [retrained(build_edge_model(("a", "b"), 0, 1, "mixing"), 1, seed) for seed in range(3)]
    with pytest.raises(ValueError, match="cannot be joined"):
        BatchedPredictor(models)
    call = MultiModelPredictor("cpu", ForwardWay(grouped=True))
    predictors = [call.predictors.predictor_for(model) for model in models]
    for owner, predictor in enumerate(predictors):
        call.add_owner(owner, predictor)
    crops = [make_bars(3 + seed, seed).crops for seed in range(3)]
    answers = call.predict([Request(*both, 32) for both in zip(predictors, crops, strict=True)])
    for model, own, (classes, confidence) in zip(models, crops, answers, strict=True):
        expected, sure = Predictor(model).predict(own, 32)
        np.testing.assert_array_equal(classes, expected)
        np.testing.assert_allclose(confidence, sure, atol=1e-5)


def test_joining_leaves_the_models_unchanged(tiny_model, make_bars) -> None:
    models = [retrained(tiny_model, 2, seed) for seed in range(2)]
    before = [clone(model) for model in models]
    BatchedPredictor(models).predict([make_bars(3, 1).crops] * 2, 32)
    for model, kept in zip(models, before, strict=True):
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, kept.state_dict()[name])
