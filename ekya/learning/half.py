"""Whether a model may answer in half precision: asked of the model itself, on the device where it runs."""

import torch

from ekya.arithmetic.gate import relative_error
from ekya.learning.edge import EdgeModel

_PICTURES, _SIDE = 32, 32


def half_error(halved: EdgeModel, exact: EdgeModel) -> float:
    """How far a model in half precision is off on pictures of noise: as ``relative_error``, of its logits.

    Half precision has a small range, and some kernels have given NaN on a part of a GPU. So nothing is taken
    for granted of a device.
    """
    weight = next(halved.parameters())
    made = torch.Generator().manual_seed(0)
    pictures = torch.randn(_PICTURES, 3, _SIDE, _SIDE, generator=made).to(weight.device)
    with torch.inference_mode():
        return relative_error(halved(pictures.to(weight.dtype)), exact(pictures))
