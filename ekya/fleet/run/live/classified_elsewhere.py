"""Frames that processes of other servers really classify."""

import threading
from collections.abc import Callable, Mapping

from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Way
from ekya.fleet.policy.moves import Move
from ekya.fleet.policy.names import NodeName
from ekya.fleet.run.calls import Handle
from ekya.fleet.run.training.crew import NoProcessError, ProcessSource
from ekya.fleet.run.training.protocol import FleetNode

ClassifyAt = Callable[[StreamId, Handle | None, int, int], None]
"""Tells a stream's inference what process classifies its frames, at what share in thousandths, and how many
microseconds these are on the way; without a process it does so itself. Does not wait."""


class ClassifiedElsewhere:
    """An ``InferenceElsewhere`` of the live world. Thread-safe.

    Traffic is counted as foreseen: the processes of streams know it, and may be dead.

    Args:
        processes: source of the processes.
        classify_at: see ``ClassifyAt``.
        failed: called with a stream that gets no process, and why.
    """

    def __init__(
        self, processes: ProcessSource, classify_at: ClassifyAt, failed: Callable[[StreamId, str], None]
    ) -> None:
        self._processes, self._classify_at, self._failed = processes, classify_at, failed
        self._lock = threading.Lock()
        self._lasting: dict[int, Handle | None] = {}

    def begin(self, move: Move) -> None:
        """Takes a process of the host in a separate thread; the host may have to load torch first."""
        with self._lock:
            self._lasting[move.number] = None
        threading.Thread(target=self._begin, args=(move,), name="moving", daemon=True).start()

    def end(self, move: Move, now_us: int) -> Mapping[Way, float]:
        """Lets the stream classify its frames itself, and gives the process back."""
        with self._lock:
            process = self._lasting.pop(move.number, None)
        if process is not None:
            self._classify_at(move.stream, None, 0, 0)
            self._processes.give_back(_node_of(move), process)
        return move.moved_mb(now_us)

    def _begin(self, move: Move) -> None:
        try:
            process = self._processes.take(_node_of(move))
        except NoProcessError as error:
            self._failed(move.stream, str(error))
            return
        with self._lock:
            lasts = move.number in self._lasting
            if lasts:
                self._lasting[move.number] = process
                self._classify_at(move.stream, process, move.share_milli, move.away_us)
        if not lasts:
            self._processes.give_back(_node_of(move), process)


def _node_of(move: Move) -> FleetNode:
    return FleetNode(NodeName(move.host), move.host, "", move.share_milli)
