"""Tests that models share equal blocks, and that one call of several answers as each model alone."""

import gc
import itertools
import weakref

import numpy as np
import pytest
import torch
from other_weights import retrained
from torch import nn

from ekya.models.edge.architectures import EDGE_MODELS, Trunk
from ekya.models.edge.checkpoints import from_bytes, to_bytes
from ekya.models.edge.forward import PLAIN, ForwardWay
from ekya.models.edge.model import adapt, build_edge_model, clone
from ekya.models.edge.multi_model import MultiModelPredictor, Predictors, Request, SharedTrunk
from ekya.models.edge.predictor import Predictor, can_pack

PACKED = ForwardWay(channels_last=True, packed_for=(6, 32), crops_a_pass=128)
EVERY_WAY = [PACKED, PLAIN, ForwardWay(grouped=True)]
WAYS = [PLAIN, ForwardWay(channels_last=True, packed_for=(6, 32) if can_pack() else None)]


def sent(model):
    """Returns a model as received from another process, with its own weights."""
    return from_bytes(to_bytes(model))


def add(call, owner, model):
    predictor = call.predictors.predictor_for(sent(model))
    call.add_owner(owner, predictor)
    return predictor


def call_of(models, way=PLAIN):
    """Returns a call that holds all models by their index, and their predictors."""
    call = MultiModelPredictor("cpu", way)
    return call, [add(call, place, model) for place, model in enumerate(models)]


def assert_as_one_by_one(call, requests) -> None:
    answers = call.predict(requests)
    assert len(answers) == len(requests)
    for one, (classes, confidence) in zip(requests, answers, strict=True):
        expected, sure = Predictor(one.predictor.source).predict(one.crops, one.resolution)
        np.testing.assert_array_equal(classes, expected)
        np.testing.assert_allclose(confidence, sure, atol=1e-5)


def family(base):
    """Returns the base twice and retrained models: two share a retrained block, one shares no block."""
    shallow = retrained(base, 1, 1)
    return [base, shallow, retrained(base, 3, 2), retrained(shallow, 0, 3), base, retrained(base, 5, 4)]


@pytest.mark.parametrize("way", EVERY_WAY)
def test_predict_of_several_models_answers_as_each_alone(tiny_model, make_bars, way) -> None:
    call, predictors = call_of(family(tiny_model), way)
    for count in (6, 1, 3):
        requests = [
            Request(predictor, make_bars(2 + place, place).crops, 32)
            for place, predictor in enumerate(predictors[:count])
        ]
        assert_as_one_by_one(call, requests)


@pytest.mark.parametrize("way", EVERY_WAY)
def test_predict_allows_other_resolutions_heads_and_no_crops(tiny_model, make_bars, way) -> None:
    models = [
        retrained(tiny_model, 2, 1),
        adapt(retrained(tiny_model, 2, 2), ("truck", "bus"), 8, seed=3),
        adapt(tiny_model, ("person", "car", "truck", "bus"), 0, seed=5),
        tiny_model,
    ]
    call, predictors = call_of(models, way)
    crops = [make_bars(4, seed).crops for seed in range(4)]
    crops[0] = crops[0][:0]
    requests = [Request(*of) for of in zip(predictors, crops, itertools.cycle((32, 24)), strict=False)]
    assert_as_one_by_one(call, requests)
    assert call.predict([]) == []


def count_passes(predictors):
    """Returns a list that collects the block and the crops of each pass."""
    passes = []
    blocks = {block: at for one in predictors for at, block in enumerate(one.model.blocks)}
    for block, at in blocks.items():
        block.register_forward_hook(lambda _module, images, _out, at=at: passes.append((at, len(images[0]))))
    return passes


def test_predict_passes_a_shared_block_once(tiny_model, make_bars) -> None:
    """Two of the three models have all blocks in common; the third shares the first two."""
    call, predictors = call_of([tiny_model, retrained(tiny_model, 0, 1), retrained(tiny_model, 3, 2)])
    passes = count_passes(predictors)
    call.predict([Request(predictor, make_bars(5, 1).crops, 32) for predictor in predictors])
    assert sorted(passes) == [(0, 15), (1, 15), (2, 5), (2, 10), (3, 5), (3, 10), (4, 5), (4, 10)]


def test_predict_splits_at_the_first_block_that_differs(tiny_model, make_bars) -> None:
    other = clone(tiny_model)
    with torch.no_grad():
        next(other.blocks[0].parameters()).add_(0.5)
    call, predictors = call_of([tiny_model, other])
    passes = count_passes(predictors)
    call.predict([Request(predictor, make_bars(5, 1).crops, 32) for predictor in predictors])
    assert sorted(passes) == [(at, 5) for at in range(5) for _ in range(2)]


def test_predict_of_newest_and_earlier_weights_together(tiny_model, make_bars) -> None:
    for way in EVERY_WAY:
        call, predictors = call_of(
            [tiny_model, retrained(tiny_model, 2, 1), retrained(tiny_model, 2, 2)], way
        )
        newest = add(call, 1, retrained(tiny_model, 2, 9))
        crops = make_bars(6, 3).crops
        for serving in (predictors, [predictors[0], newest, predictors[2]]):
            assert_as_one_by_one(call, [Request(predictor, crops, 32) for predictor in serving])
        call.remove_owner(0)
        assert_as_one_by_one(call, [Request(predictor, crops, 32) for predictor in (newest, predictors[2])])


def shared(one, other) -> list[bool]:
    """Returns for each block whether two predictors share it, both prepared and original."""
    together = zip(one.model.blocks, other.model.blocks, one.source.blocks, other.source.blocks, strict=True)
    return [mine is its and mine_came is its_came for mine, its, mine_came, its_came in together]


@pytest.mark.parametrize("way", EVERY_WAY)
def test_predict_of_two_architectures_answers_as_each_alone(tiny_model, make_bars, monkeypatch, way) -> None:
    monkeypatch.setitem(EDGE_MODELS, "other", lambda: Trunk({"only": nn.Conv2d(3, 4, 3)}, 4))
    other = build_edge_model(tiny_model.classes, 0, 1, "other")
    call, predictors = call_of([tiny_model, other, tiny_model, other], way)
    crops = make_bars(4, 3).crops
    assert_as_one_by_one(call, [Request(predictor, crops, 32) for predictor in predictors])


@pytest.mark.parametrize("way", WAYS)
def test_predictors_share_blocks_that_no_retraining_changed(tiny_model, make_bars, way) -> None:
    predictors = Predictors("cpu", way)
    base = predictors.predictor_for(sent(tiny_model))
    models = [
        tiny_model,
        retrained(tiny_model, 3, 1),
        adapt(tiny_model, ("bus", *tiny_model.classes), 8, seed=2),
    ]
    made = [predictors.predictor_for(sent(model)) for model in models]
    assert [shared(base, one) for one in made] == [[True] * 5, [True, True, False, True, False], [True] * 5]
    crops = make_bars(9, 1).crops
    for model, one in zip(models, made, strict=True):
        for side in (32, 24):
            expected, sure = Predictor(model).predict(crops, side)
            classes, confidence = one.predict(crops, side)
            np.testing.assert_array_equal(classes, expected)
            np.testing.assert_allclose(confidence, sure, atol=1e-5)


def test_predictors_of_equal_models_are_one(tiny_model) -> None:
    predictors = Predictors()
    models = [
        tiny_model,
        tiny_model,
        retrained(tiny_model, 0, 1),
        adapt(tiny_model, tiny_model.classes, 8, 1),
    ]
    one, same, *others = (predictors.predictor_for(sent(model)) for model in models)
    assert one is same
    assert len({one, *others}) == 3


def test_predictors_share_a_changed_block_with_the_next_model(tiny_model) -> None:
    predictors = Predictors()
    base, first = (
        predictors.predictor_for(sent(tiny_model)),
        predictors.predictor_for(sent(retrained(tiny_model, 1, 1))),
    )
    second = predictors.predictor_for(sent(retrained(tiny_model, 1, 1)))
    assert shared(base, second) == [True, True, True, True, False]
    assert shared(first, second) == [True] * 5


def test_predictors_of_another_architecture_share_nothing(tiny_model) -> None:
    predictors = Predictors()
    other = build_edge_model(tiny_model.classes, 0, 1, "mobilenet_v3_small")
    predictors.predictor_for(tiny_model)
    assert predictors.predictor_for(other).classes == tiny_model.classes


def test_predictors_free_blocks_without_an_owner(tiny_model) -> None:
    predictors = Predictors()
    first = predictors.predictor_for(sent(tiny_model))
    second = predictors.predictor_for(sent(retrained(tiny_model, 1, 1)))
    common, own = weakref.ref(first.model.blocks[0]), weakref.ref(first.model.blocks[4])
    del first
    gc.collect()
    assert own() is None
    assert common() is second.model.blocks[0]


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
