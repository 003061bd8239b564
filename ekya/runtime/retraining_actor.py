"""Actor `retraining/<stream>`, or `retraining/gpu-<n>` where the streams of a GPU share a process."""

import os
from collections.abc import Sequence
from typing import Any

from ekya.core.commands import StartRetraining
from ekya.core.events import Event
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.gpu.backends.backend import Resized
from ekya.models.edge.architectures import get_ready_to_build
from ekya.models.edge.device_memory import MemoryPeaks
from ekya.models.edge.model import EdgeModel
from ekya.models.training.activation_cache import ActivationCache
from ekya.models.training.exemplars import ExemplarMemory
from ekya.pipeline.labels import StreamLabels
from ekya.runtime.actor_kinds import ProcessConfig
from ekya.runtime.cuda_ipc_transfer import LentWeights
from ekya.runtime.mailbox import Mailbox
from ekya.runtime.stream_retraining import StreamRetraining
from ekya.system.priority import lower_priority


class RetrainingActor:
    """Retraining of the streams of one process, each in a separate thread and at a separate share.

    Methods may be called by several threads. Those with a stream, as an argument or in a command, call the
    method of the same name of its ``StreamRetraining``.
    """

    def __init__(self, orders: ProcessConfig) -> None:
        lower_priority()
        self._common = orders.common
        get_ready_to_build(orders.common.fleet.edge.model)
        self._mailbox = Mailbox()
        self._peaks = MemoryPeaks()
        self._streams = {
            one.stream: StreamRetraining(one, self._mailbox, self._peaks) for one in orders.streams
        }

    def ready(self) -> None:
        """Returns when retrainings can be taken."""

    def process(self) -> int:
        """Returns the pid of this process."""
        return os.getpid()

    def begin(self, started_monotonic_ns: int) -> None:
        """Sets the start of the run."""
        for one in self._streams.values():
            one.begin(started_monotonic_ns)

    def leave(self, stream: StreamId) -> None:
        """Ends a stream's retraining; the others' go on."""
        self._streams[stream].leave()

    def start(
        self,
        command: StartRetraining,
        weights: bytes,
        labels: StreamLabels | None,
        passed: ActivationCache | None,
        serial: int,
    ) -> Resized | None:
        """Begins a retraining."""
        return self._streams[command.stream].start(command, weights, labels, passed, serial)

    def adopt(
        self, command: StartRetraining, weights: bytes, accuracy: float, labels: StreamLabels | None
    ) -> None:
        """Takes the best model of a remote retraining."""
        self._streams[command.stream].adopt(command, weights, accuracy, labels)

    def memory(self, stream: StreamId) -> ExemplarMemory:
        """Returns the exemplars of a stream's windows so far."""
        return self._streams[stream].memory()

    def resize(self, stream: StreamId, job: JobId, share_milli: int, serial: int) -> Resized | None:
        """Changes the share of a running retraining."""
        return self._streams[stream].resize(job, share_milli, serial)

    def stop(self, stream: StreamId, job: JobId) -> Resized:
        """Ends a retraining at its next batch."""
        return self._streams[stream].stop(job)

    def lend(
        self, stream: StreamId, job: JobId, version: ModelVersion, adopted: None = None
    ) -> tuple[LentWeights, float]:
        """Shares the best weights so far over CUDA IPC."""
        return self._streams[stream].lend(job, version, adopted)

    def lend_first(self, stream: StreamId, weights: bytes) -> LentWeights:
        """Shares the weights that serve first over CUDA IPC."""
        return self._streams[stream].lend_first(weights)

    def end_loan(
        self, stream: StreamId, version: ModelVersion, taken: Sequence[Any]
    ) -> tuple[EdgeModel, float] | None:
        """Frees shared weights."""
        return self._streams[stream].end_loan(version, taken)

    def hand_over(
        self,
        stream: StreamId,
        job: JobId,
        version: ModelVersion,
        taken: Sequence[Any] = (),
        adopted: None = None,
    ) -> tuple[bytes, float]:
        """Returns the best weights so far as bytes."""
        return self._streams[stream].hand_over(job, version, taken, adopted)

    def poll(self, timeout_s: float) -> list[Event]:
        """Returns the events of all streams; waits up to the timeout for the first."""
        for one in self._streams.values():
            one.tell_share()
        return self._mailbox.take(timeout_s)

    def end(self) -> None:
        """Returns when all weights are on disk."""
        for one in self._streams.values():
            one.end()
