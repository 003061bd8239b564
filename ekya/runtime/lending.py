"""Weights go from a trainer to the inference beside it in memory of their GPU, and not through the host.

Only a handle and a table travel between the processes. The trainer puts the weights into memory of its own
that others may read; the inference copies them into its second buffer and lets go; then the trainer frees it.
"""

import threading
from dataclasses import dataclass

import torch

from ekya.core.ids import ModelVersion
from ekya.gpu.cuda_driver import CudaCalls
from ekya.gpu.cuda_ipc import CudaIpc, Loan
from ekya.gpu.torch_streams import TorchStreams
from ekya.learning.edge import EdgeModel
from ekya.learning.flat import FlatModel, flatten, unflatten

LOAN_S = 3.0
"""Whoever is lent weights has so long; what was lent is freed then, and the weights go another way."""


@dataclass(frozen=True, slots=True)
class LentWeights:
    """A trainer's weights for whoever is on the same GPU; a plain value.

    Attributes:
        handle: of the memory.
        flat: what is in it.
    """

    handle: bytes
    flat: FlatModel


class WeightLender:
    """The trainer's side. Methods may be called by any thread."""

    def __init__(self, ipc: CudaIpc, device: str) -> None:
        self._ipc = ipc
        self._device = device
        self._lock = threading.Lock()
        self._loans: dict[ModelVersion, tuple[Loan, EdgeModel, float]] = {}

    def lend(self, version: ModelVersion, model: EdgeModel, accuracy: float) -> LentWeights:
        """Puts weights where others may read them, until ``end``.

        Raises:
            SmDriverError: the driver refuses.
            torch.OutOfMemoryError: there is no room for them.
        """
        flat, block = flatten(model, self._device)
        loan = self._ipc.lend(block.data_ptr(), flat.size)
        with self._lock:
            self._loans[version] = (loan, model, accuracy)
        return LentWeights(loan.handle, flat)

    def end(self, version: ModelVersion) -> tuple[EdgeModel, float] | None:
        """Frees what was lent; the model and accuracy that it was of, None where nothing was lent."""
        with self._lock:
            ended = self._loans.pop(version, None)
        if ended is None:
            return None
        loan, model, accuracy = ended
        loan.end()
        return model, accuracy


def borrow(ipc: CudaIpc, lent: LentWeights, device: str) -> EdgeModel:
    """The weights in memory of this process, on the device; what was lent is not needed any more.

    Raises:
        SmDriverError: the memory is gone, with its owner perhaps, or the driver refuses.
        DamagedWeightsError: other bytes came than were sent.
        torch.OutOfMemoryError: there is no room for them.
    """
    block = torch.empty(lent.flat.size, dtype=torch.uint8, device=device)
    ipc.take(lent.handle, block.data_ptr(), lent.flat.size)
    return unflatten(lent.flat, block)


def open_ipc() -> CudaIpc:
    """CUDA IPC of this process; starts CUDA.

    Raises:
        UserError: there is no driver, or no library that asks it.
    """
    return CudaIpc(CudaCalls(), TorchStreams())
