"""Tests that models hold and prepare their common blocks once, and answer as each model alone."""

import gc
import weakref

import numpy as np
import pytest
from other_weights import retrained

from ekya.models.edge.checkpoints import from_bytes, to_bytes
from ekya.models.edge.forward import PLAIN, ForwardWay
from ekya.models.edge.model import adapt, build_edge_model
from ekya.models.edge.packed import can_pack
from ekya.models.edge.predictor import Predictor
from ekya.models.edge.predictors import Predictors

WAYS = [PLAIN, ForwardWay(channels_last=True, packed_for=(6, 32) if can_pack() else None)]


def sent(model):
    """Returns a model as received from another process, with its own weights."""
    return from_bytes(to_bytes(model))


def shared(one, other) -> list[bool]:
    """Returns for each block whether two predictors share it, both prepared and original."""
    together = zip(one.model.blocks, other.model.blocks, one.source.blocks, other.source.blocks, strict=True)
    return [mine is its and mine_came is its_came for mine, its, mine_came, its_came in together]


@pytest.mark.parametrize("way", WAYS)
def test_blocks_that_no_retraining_changed_are_shared(tiny_model, make_bars, way) -> None:
    predictors = Predictors("cpu", way)
    base = predictors.of(sent(tiny_model))
    models = [
        tiny_model,
        retrained(tiny_model, 3, 1),
        adapt(tiny_model, ("bus", *tiny_model.classes), 8, seed=2),
    ]
    made = [predictors.of(sent(model)) for model in models]
    assert [shared(base, one) for one in made] == [[True] * 5, [True, True, False, True, False], [True] * 5]
    crops = make_bars(9, 1).crops
    for model, one in zip(models, made, strict=True):
        for side in (32, 24):
            expected, sure = Predictor(model).predict(crops, side)
            classes, confidence = one.predict(crops, side)
            np.testing.assert_array_equal(classes, expected)
            np.testing.assert_allclose(confidence, sure, atol=1e-5)


def test_a_block_that_changed_is_shared_with_the_next_model_that_has_it(tiny_model) -> None:
    predictors = Predictors()
    base, first = predictors.of(sent(tiny_model)), predictors.of(sent(retrained(tiny_model, 1, 1)))
    second = predictors.of(sent(retrained(tiny_model, 1, 1)))
    assert shared(base, second) == [True, True, True, True, False]
    assert shared(first, second) == [True] * 5


def test_another_architecture_shares_nothing(tiny_model) -> None:
    predictors = Predictors()
    other = build_edge_model(tiny_model.classes, 0, 1, "mobilenet_v3_small")
    predictors.of(tiny_model)
    assert predictors.of(other).classes == tiny_model.classes


def test_blocks_that_nobody_has_are_let_go(tiny_model) -> None:
    predictors = Predictors()
    first = predictors.of(sent(tiny_model))
    second = predictors.of(sent(retrained(tiny_model, 1, 1)))
    common, own = weakref.ref(first.model.blocks[0]), weakref.ref(first.model.blocks[4])
    del first
    gc.collect()
    assert own() is None
    assert common() is second.model.blocks[0]
