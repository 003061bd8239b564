"""Depthwise convolution with its own gradient: the same numbers as torch's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ekya.models.edge.detection.fastestdet import DepthwiseConv2d
from ekya.models.edge.predictor import fuse


def both(channels: int, side: int) -> tuple[DepthwiseConv2d, nn.Conv2d]:
    ours = DepthwiseConv2d(channels, side)
    theirs = nn.Conv2d(channels, channels, side, padding=side // 2, groups=channels, bias=False)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def passed(convolution: nn.Module, maps: Tensor, needs: bool) -> tuple[Tensor, ...]:
    """Returns the output, the kernel's gradient and, if needed, the input's."""
    given_ = maps.clone().requires_grad_(needs)
    output = convolution(given_)
    (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
    return output.detach(), convolution.weight.grad, *((given_.grad,) if needs else ())


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 5),
    st.sampled_from([1, 3, 5]),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.booleans(),
    st.booleans(),
)
def test_depthwise_trains_as_torchs_convolution(
    images: int, channels: int, side: int, size: tuple[int, int], needs: bool, last: bool
) -> None:
    ours, theirs = both(channels, side)
    maps = torch.randn(images, channels, *size)
    if last:
        maps = maps.to(memory_format=torch.channels_last)
    for found, expected in zip(passed(ours, maps, needs), passed(theirs, maps, needs), strict=True):
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_depthwise_with_a_folded_normalisation_predicts_as_torchs() -> None:
    ours, theirs = both(4, 5)
    norm = nn.BatchNorm2d(4).eval()
    norm.bias.data.uniform_(-1, 1)
    maps = torch.randn(2, 4, 7, 7)
    expected = nn.Sequential(theirs, norm)(maps)
    torch.testing.assert_close(fuse(nn.Sequential(ours, norm))(maps), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_depthwise_in_other_types_is_torchs(dtype: torch.dtype) -> None:
    ours, theirs = (one.to(dtype) for one in both(3, 3))
    maps = torch.randn(2, 3, 6, 6, dtype=dtype)
    for found, expected in zip(passed(ours, maps, True), passed(theirs, maps, True), strict=True):
        assert torch.equal(found, expected)
