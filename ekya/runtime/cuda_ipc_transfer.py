"""Sends weights from a trainer to the inference on the same GPU over CUDA IPC.

Only a handle and a table travel between the processes. The trainer puts the weights into separate memory that
other processes may read (``share``); the inference copies them into its second buffer (``receive``); then the
trainer frees the memory (``SharedBlock.end``).
"""

from dataclasses import dataclass

import torch

from ekya.gpu.backends.torch_streams import TorchStreams
from ekya.gpu.cuda_ipc import CudaIpc, SharedBlock
from ekya.gpu.green.cuda_driver import CudaCalls
from ekya.models.edge.flat import FlatModel, flatten, unflatten
from ekya.models.edge.model import EdgeModel

RECEIVE_TIMEOUT_S = 3.0
"""Timeout for a receiver of shared weights; then they are freed, and go through the object store instead."""


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Shared weights of a trainer, for a process on the same GPU; a plain value.

    Attributes:
        handle: CUDA IPC handle of the memory.
        flat: layout of the memory.
    """

    handle: bytes
    flat: FlatModel


def open_ipc() -> CudaIpc:
    """Opens CUDA IPC in this process; initialises CUDA.

    Raises:
        UserError: there is no driver, or no library to call it.
    """
    return CudaIpc(CudaCalls(), TorchStreams())


def share(ipc: CudaIpc, model: EdgeModel, device: str) -> tuple[SharedWeights, SharedBlock]:
    """Puts weights into memory that other processes may read, until ``SharedBlock.end`` frees it.

    Raises:
        SmDriverError: the driver refuses.
        torch.OutOfMemoryError: the GPU has too little memory.
    """
    flat, block = flatten(model, device)
    memory = ipc.share(block.data_ptr(), flat.size)
    return SharedWeights(memory.handle, flat), memory


def receive(ipc: CudaIpc, weights: SharedWeights, device: str) -> EdgeModel:
    """Copies shared weights into memory of this process on the device; the shared memory can then be freed.

    Raises:
        SmDriverError: the memory is gone, perhaps with its owner, or the driver refuses.
        DamagedWeightsError: the bytes received differ from those sent.
        torch.OutOfMemoryError: the GPU has too little memory.
    """
    block = torch.empty(weights.flat.size, dtype=torch.uint8, device=device)
    ipc.read(weights.handle, block.data_ptr(), weights.flat.size)
    return unflatten(weights.flat, block)
