"""Tests that every way of running a model gives the same answers."""

import numpy as np
import pytest
import torch
from torch import nn

from ekya.models.edge import predictor as predictor_module
from ekya.models.edge.forward import PLAIN, ForwardWay
from ekya.models.edge.model import EdgeModel, clone
from ekya.models.edge.predictor import PackedConvolution, Predictor, can_pack, half_error, pack, prepared
from ekya.system.numeric_check import relative_error

EVERY_WAY = [
    ForwardWay(channels_last=True),
    ForwardWay(packed_for=(6, 32)),
    ForwardWay(channels_last=True, packed_for=(6, 32), crops_a_pass=128),
    ForwardWay(channels_last=True, crops_a_pass=3),
]


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("resolution", [32, 24])
def test_forward_every_way_gives_the_plain_answers(
    fresh_model, make_bars, way: ForwardWay, resolution: int
) -> None:
    crops = make_bars(7, 2).crops
    plain, found = Predictor(fresh_model, "cpu", PLAIN), Predictor(fresh_model, "cpu", way)
    expected, sure = plain.predict(crops, resolution)
    classes, confidence = found.predict(crops, resolution)
    np.testing.assert_array_equal(classes, expected)
    np.testing.assert_allclose(confidence, sure, atol=1e-5)


def test_pack_changes_heavy_kernels_of_the_copy_only(fresh_model: EdgeModel) -> None:
    if not can_pack():
        pytest.skip("torch here was built without oneDNN")
    before = {name: tensor.clone() for name, tensor in fresh_model.state_dict().items()}
    ready = prepared(fresh_model, "cpu", ForwardWay(packed_for=(6, 32)))
    stem = ready.blocks[0]
    assert not any(isinstance(module, PackedConvolution) for module in stem.modules())
    loose = [module.kernel_size for module in ready.blocks[4].modules() if isinstance(module, nn.Conv2d)]
    assert loose == [(1, 1)], "a kernel of one pixel has nothing to lay out"
    assert all(torch.equal(tensor, before[name]) for name, tensor in fresh_model.state_dict().items())


def test_pack_without_library_changes_nothing(monkeypatch) -> None:
    monkeypatch.setattr("ekya.models.edge.predictor._ONE_DNN", object())
    convolution = nn.Conv2d(64, 64, 3)
    model = nn.Sequential(convolution)
    pack(model)
    assert model[0] is convolution


@pytest.mark.parametrize("how", [{}, {"stride": 2, "padding": 1}, {"groups": 4}, {"bias": False}])
def test_packed_convolution_equals_the_convolution(how) -> None:
    if not can_pack():
        pytest.skip("torch here was built without oneDNN")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        convolution = nn.Conv2d(32, 64, 3, **how)
        pictures = [torch.randn(3, 32, side, side) for side in (9, 5, 9)]
    packed = PackedConvolution(convolution)
    with torch.inference_mode():
        for images in pictures:
            torch.testing.assert_close(packed(images), convolution(images), atol=1e-5, rtol=0)


def test_can_pack_with_other_arguments_is_false(monkeypatch) -> None:
    monkeypatch.setattr("ekya.models.edge.predictor._ONE_DNN", torch.ops.aten)
    assert not can_pack()
    if hasattr(torch.ops.mkldnn, "_convolution_pointwise"):
        renamed = {name: takes + " more" for name, takes in predictor_module._TAKES.items()}
        monkeypatch.setattr("ekya.models.edge.predictor._ONE_DNN", torch.ops.mkldnn)
        assert can_pack()
        monkeypatch.setattr("ekya.models.edge.predictor._TAKES", renamed)
        assert not can_pack()


def test_predictor_half_precision_is_used_where_allowed(tiny_model, make_bars) -> None:
    crops = make_bars(6, 3).crops
    _, sure = Predictor(tiny_model).predict(crops, 32)
    predictor = Predictor(
        tiny_model, "cpu", ForwardWay(channels_last=True, packed_for=(6, 32), half="float16")
    )
    _, confidence = predictor.predict(crops, 32)
    assert {weight.dtype for weight in predictor.model.parameters()} == {torch.float16}
    np.testing.assert_allclose(confidence, sure, atol=1e-2)
    assert confidence.dtype == np.float32


def test_predictor_out_of_range_of_half_warns_and_uses_32_bits(tiny_model, make_bars, caplog) -> None:
    model = clone(tiny_model)
    with torch.no_grad():
        model.head.weight.mul_(1e7)
    crops = make_bars(6, 3).crops
    predictor = Predictor(model, "cpu", ForwardWay(half="float16"))
    assert {weight.dtype for weight in predictor.model.parameters()} == {torch.float32}
    assert "predicting in 32 bits: in torch.float16 the logits are off by inf" in caplog.text
    np.testing.assert_array_equal(predictor.predict(crops, 32)[0], Predictor(model).predict(crops, 32)[0])


def test_half_error_is_relative_and_never_passes_nan(tiny_model) -> None:
    expected = torch.tensor([1.0, -4.0])
    assert relative_error(torch.tensor([1.0, -4.0]), expected) == 0.0
    assert relative_error(torch.tensor([1.2, -4.0]), expected) == pytest.approx(0.05)
    assert relative_error(torch.tensor([1.0, float("nan")]), expected) == float("inf")
    assert relative_error(torch.tensor([float("inf"), -4.0]), expected) == float("inf")
    assert half_error(tiny_model, tiny_model) == 0.0
