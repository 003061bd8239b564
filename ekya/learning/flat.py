"""A model as one block of bytes with a table beside it: how weights lie in memory that processes share."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ekya.learning.checkpoints import identity_of, model_of
from ekya.learning.edge import EdgeModel

ALIGNED_BYTES = 256
"""Where a weight may begin in a block: as CUDA itself aligns memory, since kernels count on some of it."""


class DamagedWeightsError(Exception):
    """A block does not hold the bytes that its table was made of."""


@dataclass(frozen=True, slots=True)
class FlatWeight:
    """Where one tensor of a model is in the block.

    Attributes:
        name: in the model's ``state_dict``.
        dtype: torch's name of it, such as ``float32``.
        shape: of the tensor.
        offset: its first byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class FlatModel:
    """What a block holds; a plain value.

    Attributes:
        identity: which model it is, as in the metadata of a checkpoint.
        weights: all of its tensors.
        size: of the block, in bytes.
        checksum: of all of its bytes.
    """

    identity: Mapping[str, str]
    weights: tuple[FlatWeight, ...]
    size: int
    checksum: int


def flatten(model: EdgeModel, device: str) -> tuple[FlatModel, Tensor]:
    """The table, and (size,) uint8 on the device, complete when this returns; the model is left as it is."""
    table = []
    size = 0
    state = model.state_dict()
    for name, tensor in state.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        table.append(FlatWeight(name, dtype, tuple(tensor.shape), size))
        size += -(-tensor.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
    # Gathered where the model is, so that it goes to another device in one piece.
    block = torch.zeros(size, dtype=torch.uint8, device=next(model.parameters()).device)
    for weight in table:
        tensor = state[weight.name].detach().contiguous()
        block[weight.offset : weight.offset + tensor.nbytes] = tensor.reshape(-1).view(torch.uint8)
    block = block.to(device)
    return FlatModel(identity_of(model), tuple(table), size, _checksum(block)), block


def unflatten(flat: FlatModel, block: Tensor) -> EdgeModel:
    """The model in a block, ready to predict, on the block's device; its weights are that memory.

    Raises:
        DamagedWeightsError: the block holds other bytes.
        UserError: the weights do not fit the model that the table names.
    """
    if _checksum(block) != flat.checksum:
        raise DamagedWeightsError("the weights that came have another checksum than those that were sent")
    state = {}
    for weight in flat.weights:
        dtype: torch.dtype = getattr(torch, weight.dtype)
        length = torch.Size(weight.shape).numel() * dtype.itemsize
        state[weight.name] = block[weight.offset : weight.offset + length].view(dtype).reshape(weight.shape)
    return model_of(flat.identity, state, "weights handed over")


def _checksum(block: Tensor) -> int:
    """Changes with every change of one word, and with most others. Waits for what is to be in the block."""
    words = block.view(torch.int64)
    # Each place counts with an odd number of its own; sums wrap around the same way on all devices.
    places = torch.arange(1, 2 * len(words), 2, device=block.device)
    return int((words * places).sum().item())
