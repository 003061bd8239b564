"""Layout of a model's weights as one block of bytes with a table, for memory that processes share."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ekya.models.edge.checkpoints import identity_of, model_of
from ekya.models.edge.model import EdgeModel

ALIGNED_BYTES = 256
"""Alignment of each weight in a block: as CUDA itself aligns memory, since some kernels rely on it."""


class DamagedWeightsError(Exception):
    """Raised if a block does not have the checksum of its table."""


@dataclass(frozen=True, slots=True)
class FlatWeight:
    """Position of one tensor of a model in the block.

    Attributes:
        name: in the model's ``state_dict``.
        dtype: torch's name of the type, such as ``float32``.
        shape: of the tensor.
        offset: its first byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class FlatModel:
    """Table of a block's contents; it holds no tensors itself.

    Attributes:
        identity: identity of the model, as in the metadata of a checkpoint.
        weights: all of its tensors.
        size: of the block, in bytes.
        checksum: of all of its bytes.
    """

    identity: Mapping[str, str]
    weights: tuple[FlatWeight, ...]
    size: int
    checksum: int


def flatten(model: EdgeModel, device: str) -> tuple[FlatModel, Tensor]:
    """Returns the table and a complete (size,) uint8 block on the device; the model is not changed."""
    table = []
    size = 0
    state = model.state_dict()
    for name, tensor in state.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        table.append(FlatWeight(name, dtype, tuple(tensor.shape), size))
        size += -(-tensor.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
    # Gathered on the model's device, so that a single transfer moves all weights.
    block = torch.zeros(size, dtype=torch.uint8, device=next(model.parameters()).device)
    for weight in table:
        tensor = state[weight.name].detach().contiguous()
        block[weight.offset : weight.offset + tensor.nbytes] = tensor.reshape(-1).view(torch.uint8)
    block = block.to(device)
    return FlatModel(identity_of(model), tuple(table), size, _checksum(block)), block


def unflatten(flat: FlatModel, block: Tensor) -> EdgeModel:
    """Returns the model in a block, ready to predict on the block's device; its weights are that memory.

    Raises:
        DamagedWeightsError: the block has another checksum.
        UserError: the weights do not fit the model that the table names.
    """
    if _checksum(block) != flat.checksum:
        raise DamagedWeightsError("the weights that came have another checksum than those that were sent")
    state = {}
    for weight in flat.weights:
        dtype: torch.dtype = getattr(torch, weight.dtype)
        length = torch.Size(weight.shape).numel() * dtype.itemsize
        state[weight.name] = block[weight.offset : weight.offset + length].view(dtype).reshape(weight.shape)
    return model_of(flat.identity, state, "received weights")


def _checksum(block: Tensor) -> int:
    """Returns a checksum that detects every change of one word, and most others. Waits for pending writes."""
    words = block.view(torch.int64)
    # Each word has a different odd factor; sums wrap around in the same way on all devices.
    places = torch.arange(1, 2 * len(words), 2, device=block.device)
    return int((words * places).sum().item())
