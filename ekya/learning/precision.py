"""In which precision a device may train: half of the bits where the device counts right with them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import conv2d

LARGEST_ERROR = 1e-2
"""Relative error of a product in fewer bits. A number of bfloat16 is off by at most 0.4%."""

Product = Callable[[Tensor, Tensor], Tensor]

PRODUCTS: tuple[tuple[Product, tuple[int, ...], tuple[int, ...]], ...] = (
    (torch.matmul, (64, 512), (512, 64)),
    (conv2d, (16, 64, 8, 8), (64, 64, 3, 3)),
)
"""What training is made of, with the shapes of a head and of a block."""


def training_precision(
    device: str, scope: Callable[[], AbstractContextManager[None]] = nullcontext
) -> torch.dtype:
    """What a retraining on this device computes in: bfloat16 on a GPU that has it and counts right with it.

    A CPU's cores have no unit for it, and stay with 32 bits.

    Args:
        device: torch's name of it.
        scope: of the job's share: a GPU is asked on the part of it where the job will train.
    """
    if torch.device(device).type != "cuda" or not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float32
    with scope():
        return _precision_of(device)


@lru_cache
def _precision_of(device: str) -> torch.dtype:
    return torch.bfloat16 if counts_right(device, torch.bfloat16) else torch.float32


def counts_right(
    device: str,
    precision: torch.dtype,
    products: tuple[tuple[Product, tuple[int, ...], tuple[int, ...]], ...] = PRODUCTS,
) -> bool:
    """Whether a matrix product and a convolution in this precision are those of the CPU in 32 bits.

    Some kernels in half precision have given NaN on a part of a GPU, so this is asked where it will train.
    """
    generator = torch.Generator().manual_seed(0)
    for product, left_shape, right_shape in products:
        left = torch.randn(left_shape, generator=generator)
        right = torch.randn(right_shape, generator=generator)
        wanted = product(left, right)
        with torch.autocast(torch.device(device).type, precision):
            found = product(left.to(device), right.to(device)).float().cpu()
        error = torch.linalg.vector_norm(found - wanted) / torch.linalg.vector_norm(wanted)
        if not float(error) <= LARGEST_ERROR:  # of NaN, too
            return False
    return True
