"""Actor `retraining/<stream>`, or `retraining/gpu-<n>` where the streams of a GPU share a process."""

import os
import threading

from ekya.core.events import Event
from ekya.core.units import StreamId
from ekya.models.edge.architectures import get_ready_to_build
from ekya.models.edge.device_memory import MemoryPeaks
from ekya.runtime.actors.actor_kinds import ProcessConfig, StreamActorConfig
from ekya.runtime.actors.actor_messages import Mailbox
from ekya.runtime.actors.stream_retraining import StreamRetraining
from ekya.system.priority import TRAINING_NICENESS, lower_priority


class RetrainingActor:
    """Retraining of the streams of one process, each in a separate thread and at a separate share.

    Methods may be called by several threads. Those of one stream are called on ``streams``
    (``ActorKind.stream_methods``), and do nothing for a stream that has left.
    """

    def __init__(self, config: ProcessConfig) -> None:
        lower_priority(TRAINING_NICENESS)
        get_ready_to_build(config.common.fleet.edge.model)
        self._mailbox, self._peaks = Mailbox(), MemoryPeaks()
        # Replaced as a whole, since others read it meanwhile.
        self.streams = {one.stream: self._retraining_of(one) for one in config.streams}
        self._changing = threading.Lock()

    def confirm_ready(self) -> None:
        """Returns when retrainings can be taken."""

    def process_id(self) -> int:
        """Returns the pid of this process."""
        return os.getpid()

    def start_run(self, started_monotonic_ns: int) -> None:
        """Sets the start of the run."""
        for one in self.streams.values():
            one.start_run(started_monotonic_ns)

    def admit_stream(self, config: StreamActorConfig, started_monotonic_ns: int) -> None:
        """Takes retrainings of a stream that is added to the run, comes back, or whose process is new."""
        with self._changing:
            one = self.streams.get(config.stream)
            # One that is here may have begun a job already.
            if one is None or one.is_leaving:
                one = self._retraining_of(config)
                self.streams = {**self.streams, config.stream: one}
        one.start_run(started_monotonic_ns)

    def remove_stream(self, stream: StreamId) -> None:
        """Ends a stream's job at its next batch and frees what the stream holds here; others go on."""
        leaving = self.streams.get(stream)
        if leaving is None:
            return
        leaving.stop_and_save()
        with self._changing:
            self.streams = {one: its for one, its in self.streams.items() if its is not leaving}

    def poll(self, timeout_s: float) -> list[Event]:
        """Returns the events of all streams; waits up to the timeout for the first."""
        for one in self.streams.values():
            one.report_share()
        return self._mailbox.drain(timeout_s)

    def finish_saving(self) -> None:
        """Returns when all weights are on disk."""
        for one in self.streams.values():
            one.finish_saving()

    def _retraining_of(self, config: StreamActorConfig) -> StreamRetraining:
        return StreamRetraining(config, self._mailbox, self._peaks)
