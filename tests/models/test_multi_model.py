"""Tests that one call of several models gives the same answers as each model alone."""

import itertools

import numpy as np
import pytest
import torch
from other_weights import retrained
from torch import nn

from ekya.models.edge.architectures import EDGE_MODELS, Trunk
from ekya.models.edge.batched import JOININGS
from ekya.models.edge.forward import PLAIN, ForwardWay
from ekya.models.edge.model import adapt, build_edge_model
from ekya.models.edge.multi_model import Asked, MultiModelPredictor
from ekya.models.edge.predictor import Predictor

PACKED = ForwardWay(channels_last=True, packed_for=(6, 32), crops_at_once=128)
EVERY_WAY = [PACKED, PLAIN, *(ForwardWay(joining=joining) for joining in sorted(JOININGS))]


def call_of(models, way=PLAIN):
    """Returns a call that holds all models by their index, and its members."""
    call = MultiModelPredictor("cpu", way)
    members = [call.add(place, model, Predictor(model, "cpu", way)) for place, model in enumerate(models)]
    return call, members


def assert_as_one_by_one(call, asked) -> None:
    answers = call.predict(asked)
    assert len(answers) == len(asked)
    for one, (classes, confidence) in zip(asked, answers, strict=True):
        expected, sure = Predictor(one.member.model).predict(one.crops, one.resolution)
        np.testing.assert_array_equal(classes, expected)
        np.testing.assert_allclose(confidence, sure, atol=1e-5)


def family(base):
    """Returns the base twice and retrained models: two share a retrained block, one shares no block."""
    shallow = retrained(base, 1, 1)
    return [base, shallow, retrained(base, 3, 2), retrained(shallow, 0, 3), base, retrained(base, 5, 4)]


@pytest.mark.parametrize("way", EVERY_WAY)
def test_answers_are_those_of_each_model_by_itself(tiny_model, make_bars, way) -> None:
    call, members = call_of(family(tiny_model), way)
    for count in (6, 1, 3):
        asked = [
            Asked(member, make_bars(2 + place, place).crops, 32)
            for place, member in enumerate(members[:count])
        ]
        assert_as_one_by_one(call, asked)


@pytest.mark.parametrize("way", EVERY_WAY)
def test_resolutions_heads_and_frames_without_objects_may_differ(tiny_model, make_bars, way) -> None:
    models = [
        retrained(tiny_model, 2, 1),
        adapt(retrained(tiny_model, 2, 2), ("truck", "bus"), 8, seed=3),
        adapt(tiny_model, ("person", "car", "truck", "bus"), 0, seed=5),
        tiny_model,
    ]
    call, members = call_of(models, way)
    crops = [make_bars(4, seed).crops for seed in range(4)]
    crops[0] = crops[0][:0]
    asked = [Asked(*of) for of in zip(members, crops, itertools.cycle((32, 24)), strict=False)]
    assert_as_one_by_one(call, asked)
    assert call.predict([]) == []


def counting(blocks, passes):
    for at, block in enumerate(blocks):
        block.register_forward_hook(lambda _module, images, _out, at=at: passes.append((at, len(images[0]))))


def test_what_is_alike_passes_a_block_once(tiny_model, make_bars) -> None:
    """Two of the three models have all blocks in common; the third shares the first two."""
    call, members = call_of([tiny_model, retrained(tiny_model, 0, 1), retrained(tiny_model, 3, 2)])
    passes = []
    for member in members:
        counting(member.predictor.model.blocks, passes)
    call.predict([Asked(member, make_bars(5, 1).crops, 32) for member in members])
    assert sorted(passes) == [(0, 15), (1, 15), (2, 5), (2, 10), (3, 5), (3, 10), (4, 5), (4, 10)]


def test_newest_weights_and_those_before_them_can_be_asked_at_once(tiny_model, make_bars) -> None:
    for way in EVERY_WAY:
        call, members = call_of([tiny_model, retrained(tiny_model, 2, 1), retrained(tiny_model, 2, 2)], way)
        newer = retrained(tiny_model, 2, 9)
        newest = call.add(1, newer, Predictor(newer, "cpu", way))
        crops = make_bars(6, 3).crops
        for serving in (members, [members[0], newest, members[2]]):
            assert_as_one_by_one(call, [Asked(member, crops, 32) for member in serving])
        call.remove(0)
        assert_as_one_by_one(call, [Asked(member, crops, 32) for member in (newest, members[2])])


def test_weights_that_serve_again_are_alike_again(tiny_model) -> None:
    call, (first, second) = call_of([tiny_model, retrained(tiny_model, 3, 1)])
    assert first.lineage[:2] == second.lineage[:2]
    assert first.lineage[2] != second.lineage[2]
    again = call.add(1, tiny_model, Predictor(tiny_model))
    assert again.lineage == first.lineage


def test_a_block_is_not_alike_behind_one_that_differs(tiny_model) -> None:
    other = retrained(tiny_model, 0, 1)
    with torch.no_grad():
        next(other.blocks[1].parameters()).add_(0.5)
    _, (first, second) = call_of([tiny_model, other])
    assert first.lineage[0] == second.lineage[0]
    assert not set(first.lineage[1:]) & set(second.lineage[1:])


@pytest.mark.parametrize("way", EVERY_WAY)
def test_each_architecture_is_a_batch_of_its_own(tiny_model, make_bars, monkeypatch, way) -> None:
    monkeypatch.setitem(EDGE_MODELS, "other", lambda: Trunk({"only": nn.Conv2d(3, 4, 3)}, 4))
    other = build_edge_model(tiny_model.classes, 0, 1, "other")
    call, members = call_of([tiny_model, other, tiny_model, other], way)
    crops = make_bars(4, 3).crops
    assert_as_one_by_one(call, [Asked(member, crops, 32) for member in members])
