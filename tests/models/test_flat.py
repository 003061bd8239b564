"""Tests of a model as a block of bytes: exact to the bit for every architecture, and damage is refused."""

import pickle
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core.errors import UserError
from ekya.models.edge.architectures import EDGE_MODELS
from ekya.models.edge.flat import ALIGNED_BYTES, DamagedWeightsError, flatten, unflatten
from ekya.models.edge.model import build_edge_model

CLASSES = ("car", "bus")


@cache
def small():
    return flatten(build_edge_model(CLASSES, 0, 0, "shufflenet_v2_x1_0"), "cpu")


@pytest.mark.parametrize("architecture", EDGE_MODELS)
def test_unflatten_returns_every_model_to_the_bit(architecture):
    model = build_edge_model(CLASSES, 5, 1, architecture)
    for place, (name, tensor) in enumerate(model.state_dict().items()):
        if name.endswith("num_batches_tracked"):
            tensor.fill_(2**40 + place)
    flat, block = flatten(model, "cpu")
    assert (block.dtype, tuple(block.shape)) == (torch.uint8, (flat.size,))
    back = unflatten(pickle.loads(pickle.dumps(flat)), block)
    assert (back.architecture, back.classes, back.head_width) == (architecture, CLASSES, 5)
    assert not back.training
    expected, state = model.state_dict(), back.state_dict()
    assert list(state) == list(expected)
    for name, tensor in expected.items():
        assert state[name].dtype == tensor.dtype
        assert torch.equal(state[name], tensor)


def test_flatten_aligns_weights_of_all_types():
    flat, _ = small()
    assert {weight.dtype for weight in flat.weights} == {"float32", "int64"}
    assert {weight.offset % ALIGNED_BYTES for weight in flat.weights} == {0}
    ends = [
        weight.offset + torch.Size(weight.shape).numel() * getattr(torch, weight.dtype).itemsize
        for weight in flat.weights
    ]
    begins = [weight.offset for weight in flat.weights]
    assert all(end <= begin for end, begin in zip(ends, [*begins[1:], flat.size], strict=True))


def test_flatten_of_a_strided_weight_keeps_its_values():
    model = build_edge_model(CLASSES, 0, 0, "shufflenet_v2_x1_0").to(memory_format=torch.channels_last)
    back = unflatten(*flatten(model, "cpu"))
    pairs = zip(back.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_unflatten_shares_memory_with_the_block():
    flat, block = small()[0], small()[1].clone()
    begin = block.data_ptr()
    weights = unflatten(flat, block).state_dict().values()
    assert all(begin <= weight.data_ptr() < begin + flat.size for weight in weights)


@settings(max_examples=30)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_unflatten_of_a_flipped_bit_raises(place, bit):
    flat, block = small()[0], small()[1].clone()
    block[int(place * flat.size)] ^= 1 << bit
    with pytest.raises(DamagedWeightsError, match="another checksum"):
        unflatten(flat, block)


def test_unflatten_of_an_empty_or_swapped_block_raises():
    flat, block = small()
    for other in (torch.zeros_like(block), block.roll(flat.size // 2)):
        with pytest.raises(DamagedWeightsError):
            unflatten(flat, other)


def test_unflatten_with_another_models_table_raises():
    flat, block = small()
    other = replace(flat, identity={**flat.identity, "architecture": "resnet18"})
    with pytest.raises(UserError, match=r"received weights: weight '.*' has shape"):
        unflatten(other, block)
