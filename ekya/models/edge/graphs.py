"""CUDA graphs: record the kernels of a forward pass once and launch them together from then on.

A small model spends more time on launching kernels than on running them. Batches are padded to few sizes,
each with a graph.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

_LOG = logging.getLogger(__name__)
_CUDA: Any = torch.cuda  # torch's type annotations do not cover all of it.

Work = Callable[[Tensor, int], Tensor]
"""Maps (N, S, S, 3) uint8 and a resolution to (N, …); recorded as a graph. It must not wait for the GPU."""

_WARM_UPS = 3
"""Passes before a recording: in the first ones libraries choose kernels and allocate memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A recorded pass.

    Attributes:
        replay: runs the pass again on the contents of ``given``.
        given: (B, S, S, 3) uint8.
        answers: (B, …), output of the last replay.
    """

    replay: Callable[[], None]
    given: Tensor
    answers: Tensor


class GraphRecorder(Protocol):
    """Interface of recorders: ``CudaRecorder``, or a test's substitute."""

    def record_pass(self, work: Callable[[Tensor], Tensor], given: Tensor) -> Recorded:
        """Records one pass.

        Raises:
            RuntimeError: the pass cannot be recorded.
        """


class CudaRecorder:
    """Records with torch's CUDA graphs, which share a memory pool."""

    def __init__(self) -> None:
        self._pool: object = None

    def record_pass(self, work: Callable[[Tensor], Tensor], given: Tensor) -> Recorded:
        for _ in range(_WARM_UPS):
            work(given)
        # Memory can be shared: graphs run one after the other, and answers are copied out.
        self._pool = self._pool or _CUDA.graph_pool_handle()
        graph = _CUDA.CUDAGraph()
        # On a stream of torch's own, since CUDA cannot record on the default one. Other threads may prepare
        # weights meanwhile, which must neither fail nor be recorded.
        with _CUDA.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            answers = work(given)
        return Recorded(graph.replay, given, answers)


class Graphs:
    """Replays recorded work, with the same results. What cannot be recorded runs directly, with a warning."""

    def __init__(self, work: Work, recorder: GraphRecorder) -> None:
        self._work = work
        self._recorder = recorder
        self._recorded: dict[tuple[int, int, int], Recorded] = {}
        self._one_at_a_time = threading.Lock()
        self.refused: str | None = None
        """Why nothing is replayed any more; None while graphs are used."""

    def __call__(self, crops: Tensor, resolution: int) -> Tensor:
        """Maps (N, S, S, 3) uint8, N at least 1, to (N, …)."""
        # Calls share buffers, so one call's copies and replay must not be launched among another's.
        with self._one_at_a_time:
            recorded = self._of(crops, resolution)
            if recorded is None:
                return self._work(crops, resolution)
            # A graph reads fixed addresses. Rows after these crops are old; their answers are left out.
            recorded.given[: len(crops)].copy_(crops, non_blocking=True)
            recorded.replay()
            # The next replay overwrites these answers.
            return recorded.answers[: len(crops)].clone()

    def _of(self, crops: Tensor, resolution: int) -> Recorded | None:
        if self.refused is not None:
            return None
        key = (padded(len(crops)), crops.shape[1], resolution)
        if key not in self._recorded:
            given = torch.zeros((key[0], *crops.shape[1:]), dtype=crops.dtype, device=crops.device)
            try:
                self._recorded[key] = self._recorder.record_pass(lambda of: self._work(of, resolution), given)
            except RuntimeError as error:
                self.refused = str(error).splitlines()[0]
                _LOG.warning("predicting without CUDA graphs: %s", self.refused)
                return None
        return self._recorded[key]


def padded(crops: int) -> int:
    """Returns the next power of two: a graph has one batch size, and less than half of it is wasted."""
    return 1 << (crops - 1).bit_length()
