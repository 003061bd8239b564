"""The parameter server: it has the weights, moves them along gradients, and validates."""

import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.fleet.run.training.gate import Gate, within
from ekya.fleet.run.training.gate import together as all_together
from ekya.fleet.run.training.messages import LessonPlan, Push, Validation
from ekya.fleet.run.training.workers import WorkerId
from ekya.learning.checkpoints import from_bytes
from ekya.learning.sgd import Sgd
from ekya.learning.snapshot import Snapshot, restore_weights, take_snapshot
from ekya.learning.trainee import Trainee
from ekya.learning.trainer import EpochResult

Scope = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, eq=False)
class EpochEnd:
    """What an epoch came to.

    Attributes:
        result: for people, and for who decides how many there will be.
        snapshot: bytes to go on from.
        updates: of the weights.
        stalest: by how many updates a gradient was behind, at most.
    """

    result: EpochResult
    snapshot: bytes
    updates: int
    stalest: int


class ParameterServer:
    """Every method may be called by any thread; ``push`` and ``pull`` once at a time by each worker."""

    def __init__(
        self,
        start: bytes,
        plan: LessonPlan,
        validation: Validation,
        *,
        device: str = "cpu",
        scope: Scope = nullcontext,
    ) -> None:
        self._plan, self._validation, self._scope = plan, validation, scope
        self._trainee = Trainee(
            from_bytes(start), plan.config, plan.classes, plan.seed, device=device, scope=scope
        )
        self._trainee.suffix.eval()
        self._sgd = Sgd(self._trainee.suffix, plan.recipe)
        self._first = Snapshot.from_bytes(take_snapshot(self._trainee, self._sgd, 0).to_bytes())
        crops = validation.labelled
        self._inputs = self._trainee.inputs_of(crops.crops) if len(crops) else None
        self._epochs_done = 0
        self._changed = threading.Condition()
        self._epoch: object = None
        self._gate = Gate((), all_together)
        self._waiting: dict[WorkerId, Push] = {}
        self._losses: list[tuple[float, int]] = []
        self._exchanged: dict[WorkerId, tuple[int, int]] = {}

    def restore(self, snapshot: bytes | None) -> float:
        """Goes on from there, or from the start model; the validation accuracy there.

        Raises:
            UserError: the snapshot is of another training.
        """
        with self._changed:
            self._epoch = None
            kept = self._first if snapshot is None else Snapshot.from_bytes(snapshot)
            restore_weights(kept, self._trainee)
            self._sgd.set_momentum(kept.momentum)
            self._epochs_done = kept.epochs_done
            self._changed.notify_all()
            return self._evaluate()

    def begin_epoch(self, token: object, workers: Collection[WorkerId]) -> None:
        """Takes gradients of these workers from now on, from calls that have this token."""
        rule = all_together if self._plan.together else within(self._plan.staleness, len(workers))
        with self._changed:
            self._epoch = token
            self._gate = Gate(workers, rule)
            self._waiting, self._losses, self._exchanged = {}, [], {}

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
            self._waiting[worker] = push
            self._gate.push(worker)
            self._move()
            self._changed.wait_for(lambda: token != self._epoch or worker not in self._waiting)
            return None if push.last else self._pulled(token, worker)

    def leave(self, token: object, worker: WorkerId) -> None:
        """A worker that has pulled nothing has nothing to do in this epoch."""
        with self._changed:
            if token == self._epoch:
                self._gate.leave(worker)
                self._move()

    def exchanged(self) -> dict[WorkerId, tuple[int, int]]:
        """Bytes that each worker has pushed and pulled since the last epoch began."""
        with self._changed:
            return dict(self._exchanged)

    def abort(self) -> None:
        """The epoch is no more; whoever waits is let go."""
        with self._changed:
            self._epoch = None
            self._changed.notify_all()

    def end_epoch(self) -> EpochEnd:
        """Validates and gives what to go on from; every worker has pushed its last gradient."""
        with self._changed:
            if not self._gate.over:
                raise RuntimeError("an epoch ends when every worker has left it")
            self._epoch = None
            self._epochs_done += 1
            losses = [loss for loss, _ in self._losses]
            counts = [count for _, count in self._losses]
            result = EpochResult(
                self._epochs_done, self._evaluate(), float(np.average(losses, weights=counts))
            )
            snapshot = take_snapshot(self._trainee, self._sgd, self._epochs_done).to_bytes()
            return EpochEnd(result, snapshot, self._gate.version, self._gate.stalest)

    def _pulled(self, token: object, worker: WorkerId) -> NDArray[np.float32] | None:
        if token != self._epoch:
            return None
        self._gate.pull(worker)
        weights = self._trainee.weights()
        self._note(worker, pulled=weights.nbytes)
        return weights

    def _note(self, worker: WorkerId, pushed: int = 0, pulled: int = 0) -> None:
        before = self._exchanged.get(worker, (0, 0))
        self._exchanged[worker] = (before[0] + pushed, before[1] + pulled)

    def _move(self) -> None:
        """As many updates as there can be now."""
        while group := self._gate.next_update():
            pushes = [self._waiting.pop(worker) for worker in group]
            self._update([push for push in pushes if push.gradient is not None])
            for worker, push in zip(group, pushes, strict=True):
                if push.last:
                    self._gate.leave(worker)
        self._changed.notify_all()

    def _update(self, pushes: list[Push]) -> None:
        """One step along the mean over all crops of these gradients, in the order of workers."""
        crops = sum(push.crops for push in pushes)
        if not crops:
            return
        with self._scope():
            self._sgd.set_rates(self._plan.step_crops(pushes[0].batch), self._epochs_done)
            self._trainee.set_gradient(_mean(pushes, crops))
            self._sgd.step()
        self._losses += [(push.loss, push.crops) for push in pushes]

    def _evaluate(self) -> float:
        if self._inputs is None:
            return 0.0
        answers = self._trainee.answers(self._inputs)
        return float(
            np.average(answers == self._validation.labelled.classes, weights=self._validation.weights)
        )


def _mean(pushes: list[Push], crops: int) -> NDArray[np.float32]:
    """As if all their crops had been one batch; of one gradient it is that, to the bit."""
    mean: NDArray[np.float32] | None = None
    for push in pushes:
        if push.gradient is not None:
            part = push.gradient * np.float32(push.crops / crops)
            mean = part if mean is None else mean + part
    if mean is None:
        raise ValueError("a step needs a gradient")
    return mean
