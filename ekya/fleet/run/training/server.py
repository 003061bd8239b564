"""Parameter server: holds the weights; workers in other threads wait until their gradient is applied."""

import threading
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.fleet.run.calls import Handle, PartHandle
from ekya.fleet.run.training.material import ALWAYS, Push
from ekya.fleet.run.training.updates import Updates
from ekya.fleet.run.training.workers import Positions, WorkerId
from ekya.models.training.labelled import Examples
from ekya.models.training.trainee import Lesson
from ekya.models.training.trainer import EpochResult

REMOTE_METHODS = (
    "restore_snapshot",
    "begin_epoch",
    "pull_weights",
    "push_gradient",
    "remove_worker",
    "exchanged_bytes",
    "end_epoch",
    "fetch_snapshot",
)
"""Methods of ``ParameterServer`` that other processes call."""


@dataclass(frozen=True, slots=True)
class ServedEpoch:
    """Outcome of an epoch.

    Attributes:
        result: loss and accuracy.
        updates: number of updates of the weights.
        stalest: maximum number of updates by which a gradient was behind.
        kept: there is a snapshot of it.
    """

    result: EpochResult
    updates: int
    stalest: int
    kept: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """Snapshot of the epoch with this token."""

    token: object
    accuracy: float
    data: bytes


class ParameterServer:
    """Thread-safe parameter server; a worker must not call ``push`` or ``pull`` concurrently.

    Args:
        updates: the weights and their optimiser.
    """

    def __init__(self, updates: Updates) -> None:
        self._updates = updates
        self._changed = threading.Condition()
        self._epoch: object = None
        self._exchanged: dict[WorkerId, tuple[int, int]] = {}
        # The best and the newest, which may be the same.
        self._kept: tuple[_Kept, ...] = ()

    def restore_snapshot(self, snapshot: bytes | None) -> float:
        """Restores a snapshot, or the start model; returns the validation accuracy.

        Raises:
            UserError: the snapshot is of another training.
        """
        with self._changed:
            self._end()
            self._kept = ()
            return self._updates.restore_snapshot(snapshot)

    def begin_epoch(self, token: object, workers: Collection[WorkerId]) -> None:
        """Begins an epoch of these workers; only calls with this token count from now on."""
        with self._changed:
            self._epoch = token
            self._updates.begin_epoch(workers)
            self._exchanged = {}

    def pull_weights(self, token: object, worker: WorkerId) -> NDArray[np.float32] | None:
        """Returns the present (P,) weights; None where that epoch is not under way."""
        with self._changed:
            return self._pulled(token, worker)

    def push_gradient(self, token: object, worker: WorkerId, push: Push) -> NDArray[np.float32] | None:
        """Takes a gradient, waits until the weights have moved along it, and returns the new weights.

        Returns None after the worker's last gradient, and where that epoch is not under way.
        """
        with self._changed:
            self._note(worker, pushed=0 if push.gradient is None else push.gradient.nbytes)
            if token != self._epoch:
                return None
            self._updates.push_gradient(worker, push)
            self._changed.notify_all()
            self._changed.wait_for(lambda: token != self._epoch or not self._updates.waits(worker))
            return None if push.last else self._pulled(token, worker)

    def prepare_lesson(self, crops: Examples) -> Lesson:
        """Forwards to ``Updates``."""
        return self._updates.prepare_lesson(crops)

    def make_lone_step(
        self, token: object, worker: WorkerId, lesson: Lesson, batch: Positions, usual: int, last: bool
    ) -> bool:
        """Makes a step of the only worker, in this process; returns whether that epoch is still under way.

        Args:
            token, worker: as in ``push``.
            lesson: from ``prepare_lesson``.
            batch: (B,) positions in its crops.
            usual: configured batch size of the worker.
            last: its last step in this epoch.
        """
        loss = self._updates.compute_gradient(lesson, batch)
        with self._changed:
            if token != self._epoch:
                return False
            self._updates.move_alone(worker, loss, len(batch), usual, last)
            return True

    def remove_worker(self, token: object, worker: WorkerId) -> None:
        """Notes that a worker, which has pulled nothing, has no steps in this epoch."""
        with self._changed:
            if token == self._epoch:
                self._updates.remove_worker(worker)
                self._changed.notify_all()

    def exchanged_bytes(self) -> dict[WorkerId, tuple[int, int]]:
        """Returns the bytes that each worker has pushed and pulled since the last epoch began."""
        with self._changed:
            return dict(self._exchanged)

    def abort_epoch(self) -> None:
        """Aborts the epoch and releases all waiting workers."""
        with self._changed:
            self._end()

    def end_epoch(self, above: float = ALWAYS) -> ServedEpoch:
        """Ends the epoch, as in ``Updates``, and keeps its snapshot. All workers have pushed their last."""
        with self._changed:
            result, snapshot = self._updates.end_epoch(above)
            if snapshot is not None:
                newest = _Kept(self._epoch, result.validation_accuracy, snapshot)
                # Of equals the later is the best, as in ``Homecoming``.
                best = max((newest, *self._kept[:1]), key=lambda kept: kept.accuracy)
                self._kept = (best, newest)
            self._epoch = None
            gate = self._updates.gate
            return ServedEpoch(result, gate.version, gate.stalest, snapshot is not None)

    def fetch_snapshot(self, token: object) -> bytes:
        """Returns the snapshot of an epoch since the last ``restore``, if it is the newest or the best.

        Raises:
            LookupError: it is not kept.
        """
        # Without the lock, which the next epoch's validation holds: meanwhile it might be dropped.
        for kept in self._kept:
            if kept.token == token:
                return kept.data
        raise LookupError("a newer checkpoint has taken its place")

    def _end(self) -> None:
        self._epoch = None
        self._changed.notify_all()

    def _pulled(self, token: object, worker: WorkerId) -> NDArray[np.float32] | None:
        if token != self._epoch:
            return None
        weights = self._updates.pull_weights(worker)
        self._note(worker, pulled=weights.nbytes)
        return weights

    def _note(self, worker: WorkerId, pushed: int = 0, pulled: int = 0) -> None:
        before = self._exchanged.get(worker, (0, 0))
        self._exchanged[worker] = (before[0] + pushed, before[1] + pulled)


def server_of(process: Handle) -> PartHandle:
    """Returns the handle of the ``ParameterServer`` in a ``TrainingActor``."""
    return PartHandle(process, "on_server")
