"""The parameter server: it has the weights, and workers in other threads wait until these have moved."""

import threading
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.fleet.run.training.messages import ALWAYS, Push
from ekya.fleet.run.training.updates import Updates
from ekya.fleet.run.training.workers import Positions, WorkerId
from ekya.learning.labelled import LabelledCrops
from ekya.learning.trainee import Lesson
from ekya.learning.trainer import EpochResult


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """What an epoch came to.

    Attributes:
        result: for people, and for who decides how many there will be.
        updates: of the weights.
        stalest: by how many updates a gradient was behind, at most.
        kept: there is a snapshot of it.
    """

    result: EpochResult
    updates: int
    stalest: int
    kept: bool


class ParameterServer:
    """Every method may be called by any thread; ``push`` and ``pull`` once at a time by each worker.

    Args:
        updates: the weights, and what moves them.
    """

    def __init__(self, updates: Updates) -> None:
        self._updates = updates
        self._changed = threading.Condition()
        self._epoch: object = None
        self._exchanged: dict[WorkerId, tuple[int, int]] = {}

    def restore(self, snapshot: bytes | None) -> float:
        """Goes on from there, or from the start model; the validation accuracy there.

        Raises:
            UserError: the snapshot is of another training.
        """
        with self._changed:
            self._end()
            return self._updates.restore(snapshot)

    def begin_epoch(self, token: object, workers: Collection[WorkerId]) -> None:
        """Takes gradients of these workers from now on, from calls that have this token."""
        with self._changed:
            self._epoch = token
            self._updates.begin_epoch(workers)
            self._exchanged = {}

    def pull(self, token: object, worker: WorkerId) -> NDArray[np.float32] | None:
        """(P,) the weights as they are now; None where that epoch is no more."""
        with self._changed:
            return self._pulled(token, worker)

    def push(self, token: object, worker: WorkerId, push: Push) -> NDArray[np.float32] | None:
        """Takes a gradient and waits until the weights have moved along it; the weights then.

        None after the worker's last one, and where that epoch is no more.
        """
        with self._changed:
            self._note(worker, pushed=0 if push.gradient is None else push.gradient.nbytes)
            if token != self._epoch:
                return None
            self._updates.push(worker, push)
            self._changed.notify_all()
            self._changed.wait_for(lambda: token != self._epoch or not self._updates.waits(worker))
            return None if push.last else self._pulled(token, worker)

    def lesson(self, crops: LabelledCrops) -> Lesson:
        """As of ``Updates``."""
        return self._updates.lesson(crops)

    def step(
        self, token: object, worker: WorkerId, lesson: Lesson, batch: Positions, usual: int, last: bool
    ) -> bool:
        """A step of a worker that is alone and here; whether that epoch is still under way.

        Args:
            token, worker: as of ``push``.
            lesson: of ``lesson``.
            batch: (B,) positions in its crops.
            usual: crops in the worker's steps, by its orders.
            last: whether it is its last one in this epoch.
        """
        loss = self._updates.gradient(lesson, batch)
        with self._changed:
            if token != self._epoch:
                return False
            self._updates.move_alone(worker, loss, len(batch), usual, last)
            return True

    def leave(self, token: object, worker: WorkerId) -> None:
        """A worker that has pulled nothing has nothing to do in this epoch."""
        with self._changed:
            if token == self._epoch:
                self._updates.leave(worker)
                self._changed.notify_all()

    def exchanged(self) -> dict[WorkerId, tuple[int, int]]:
        """Bytes that each worker has pushed and pulled since the last epoch began."""
        with self._changed:
            return dict(self._exchanged)

    def abort(self) -> None:
        """The epoch is no more; whoever waits is let go."""
        with self._changed:
            self._end()

    def end_epoch(self, above: float = ALWAYS) -> tuple[EpochEnd, bytes | None]:
        """As of ``Updates``. Every worker has pushed its last gradient."""
        with self._changed:
            result, snapshot = self._updates.end_epoch(above)
            self._epoch = None
            gate = self._updates.gate
            return EpochEnd(result, gate.version, gate.stalest, snapshot is not None), snapshot

    def _end(self) -> None:
        self._epoch = None
        self._changed.notify_all()

    def _pulled(self, token: object, worker: WorkerId) -> NDArray[np.float32] | None:
        if token != self._epoch:
            return None
        weights = self._updates.pull(worker)
        self._note(worker, pulled=weights.nbytes)
        return weights

    def _note(self, worker: WorkerId, pushed: int = 0, pulled: int = 0) -> None:
        before = self._exchanged.get(worker, (0, 0))
        self._exchanged[worker] = (before[0] + pushed, before[1] + pulled)
