"""Shares weights between a trainer and the inference on the same GPU over CUDA IPC.

Only a handle and a table travel between the processes. The trainer puts the weights into separate memory that
other processes may read; the inference copies them into its second buffer; then the trainer frees the memory.
"""

import threading
from dataclasses import dataclass

import torch

from ekya.core.units import ModelVersion
from ekya.gpu.backends.torch_streams import TorchStreams
from ekya.gpu.cuda_ipc import CudaIpc, Loan
from ekya.gpu.green.cuda_driver import CudaCalls
from ekya.models.edge.flat import FlatModel, flatten, unflatten
from ekya.models.edge.model import EdgeModel

LOAN_S = 3.0
"""Timeout for a receiver of shared weights; then they are freed, and go through the object store instead."""


@dataclass(frozen=True, slots=True)
class LentWeights:
    """Shared weights of a trainer, for a process on the same GPU; a plain value.

    Attributes:
        handle: CUDA IPC handle of the memory.
        flat: layout of the memory.
    """

    handle: bytes
    flat: FlatModel


class CudaIpcSender:
    """The trainer's side. Thread-safe."""

    def __init__(self, ipc: CudaIpc, device: str) -> None:
        self._ipc = ipc
        self._device = device
        self._lock = threading.Lock()
        self._loans: dict[ModelVersion, tuple[Loan, EdgeModel, float]] = {}

    def lend(self, version: ModelVersion, model: EdgeModel, accuracy: float) -> LentWeights:
        """Puts weights into memory that other processes may read, until ``end``.

        Raises:
            SmDriverError: the driver refuses.
            torch.OutOfMemoryError: the GPU has too little memory.
        """
        flat, block = flatten(model, self._device)
        loan = self._ipc.lend(block.data_ptr(), flat.size)
        with self._lock:
            self._loans[version] = (loan, model, accuracy)
        return LentWeights(loan.handle, flat)

    def end(self, version: ModelVersion) -> tuple[EdgeModel, float] | None:
        """Frees shared weights; returns their model and accuracy, or None if none were shared."""
        with self._lock:
            ended = self._loans.pop(version, None)
        if ended is None:
            return None
        loan, model, accuracy = ended
        loan.end()
        return model, accuracy


def borrow(ipc: CudaIpc, lent: LentWeights, device: str) -> EdgeModel:
    """Copies shared weights into memory of this process on the device; the shared memory can then be freed.

    Raises:
        SmDriverError: the memory is gone, perhaps with its owner, or the driver refuses.
        DamagedWeightsError: the bytes received differ from those sent.
        torch.OutOfMemoryError: the GPU has too little memory.
    """
    block = torch.empty(lent.flat.size, dtype=torch.uint8, device=device)
    ipc.take(lent.handle, block.data_ptr(), lent.flat.size)
    return unflatten(lent.flat, block)


def open_ipc() -> CudaIpc:
    """Opens CUDA IPC in this process; initialises CUDA.

    Raises:
        UserError: there is no driver, or no library to call it.
    """
    return CudaIpc(CudaCalls(), TorchStreams())
