"""Measures the error of a model in half precision on the device where it runs."""

import torch

from ekya.arithmetic.gate import relative_error
from ekya.learning.edge import EdgeModel

_PICTURES, _SIDE = 32, 32


def half_error(halved: EdgeModel, exact: EdgeModel) -> float:
    """Returns the ``relative_error`` of the logits of a model in half precision, on images of noise.

    Half precision has a small range, and some kernels have returned NaN on a part of a GPU, so every device
    is checked.
    """
    weight = next(halved.parameters())
    made = torch.Generator().manual_seed(0)
    pictures = torch.randn(_PICTURES, 3, _SIDE, _SIDE, generator=made).to(weight.device)
    with torch.inference_mode():
        return relative_error(halved(pictures.to(weight.dtype)), exact(pictures))
