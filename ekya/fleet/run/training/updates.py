"""Updates of the weights by gradients, one epoch after the other, in any order of calls. Never blocks."""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray

from ekya.fleet.run.training.gate import Gate, within
from ekya.fleet.run.training.gate import together as all_together
from ekya.fleet.run.training.material import ALWAYS, LessonPlan, Push, ValidationCrops
from ekya.fleet.run.training.workers import Positions, WorkerId
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.training.labelled import Examples
from ekya.models.training.optimizer import optimizer_of
from ekya.models.training.snapshot import Snapshot, restore_weights, take_snapshot
from ekya.models.training.trainee import DISTILLATION_WEIGHT, Lesson, Trainee
from ekya.models.training.trainer import EpochResult

Scope = Callable[[], AbstractContextManager[None]]


class Updates:
    """Weights of a training, their optimiser, and the gate that orders updates.

    Args:
        start: checkpoint of the model to begin with.
        plan: configuration that all processes of the training share.
        validation: data for measuring accuracy.
        device: to compute on.
        scope: entered around every step.

    Attributes:
        gate: of the epoch under way.
    """

    def __init__(
        self,
        start: bytes,
        plan: LessonPlan,
        validation: ValidationCrops,
        *,
        device: str = "cpu",
        scope: Scope = nullcontext,
    ) -> None:
        self._plan, self._validation = plan, validation
        self._device, self._scope = device, scope
        self._trainee = Trainee(
            from_bytes(start), plan.config, plan.classes, plan.epochs.seed, device=device, scope=scope
        )
        self._trainee.suffix.eval()
        self._sgd = optimizer_of(self._trainee.suffix, plan.recipe)
        self._first = Snapshot.from_bytes(take_snapshot(self._trainee, self._sgd, 0).to_bytes())
        crops = validation.labelled
        self._inputs = self._trainee.inputs_of(crops.images) if len(crops) else None
        self._epochs_done = 0
        self.gate = Gate((), all_together)
        self._waiting: dict[WorkerId, Push] = {}
        self._losses: list[tuple[float, int]] = []

    def restore_snapshot(self, snapshot: bytes | None) -> float:
        """Restores a snapshot, or the start model; returns the validation accuracy.

        Raises:
            UserError: the snapshot is of another training.
        """
        kept = self._first if snapshot is None else Snapshot.from_bytes(snapshot)
        restore_weights(kept, self._trainee)
        self._sgd.set_momentum(kept.momentum)
        self._epochs_done = kept.epochs_done
        return self._evaluate()

    def begin_epoch(self, workers: Collection[WorkerId]) -> None:
        """Begins an epoch of these workers; an epoch under way is dropped."""
        rule = all_together if self._plan.epochs.together else within(self._plan.staleness, len(workers))
        self.gate = Gate(workers, rule)
        self._waiting, self._losses = {}, []
        self._sgd.set_rates(self._plan.config.batch_size, self._epochs_done)

    def pull_weights(self, worker: WorkerId) -> NDArray[np.float32]:
        """Returns the (P,) weights for the next gradient of a worker that is away.

        These are the present weights, or, where the plan foresees, the weights predicted for the update by
        that gradient. Until then each other worker moves them once: each has one gradient under way, so of W
        workers a gradient is W - 1 updates late on average. These gradients are unknown, but not what
        momentum does.
        """
        self.gate.note_pull(worker)
        ahead = self.gate.others if self._plan.foresees and not self._plan.epochs.together else 0
        return self._trainee.weights(self._sgd.coasting(ahead)) if ahead else self._trainee.weights()

    def push_gradient(self, worker: WorkerId, push: Push) -> None:
        """Takes a gradient of the worker's last pulled weights, and makes all updates that are possible."""
        self._waiting[worker] = push
        self.gate.note_push(worker)
        self._move()

    def remove_worker(self, worker: WorkerId) -> None:
        """Removes a worker that is away and has no more steps in this epoch."""
        self.gate.remove_worker(worker)
        self._move()

    def prepare_lesson(self, crops: Examples) -> Lesson:
        """Prepares the crops of a lone worker, which trains these very weights."""
        inputs = self._trainee.inputs_of(crops.images)
        return self._trainee.lesson(inputs, self._trainee.goal(crops), DISTILLATION_WEIGHT)

    def compute_gradient(self, lesson: Lesson, batch: Positions) -> float:
        """Computes the gradient of (B,) positions in place, and returns their mean loss."""
        with self._scope():
            at = torch.from_numpy(np.ascontiguousarray(batch)).to(self._device)
            return float(lesson.compute_gradient(at))

    def move_alone(self, worker: WorkerId, loss: float, crops: int, usual: int, last: bool) -> None:
        """Moves the weights along the gradient computed in place.

        Args:
            worker: the only one.
            loss: of that gradient.
            crops: number of its crops.
            usual: configured batch size of the worker.
            last: its last step in this epoch.
        """
        self.gate.note_pull(worker)
        self.gate.note_push(worker)
        self.gate.next_update()
        with self._scope():
            self._sgd.set_rates(self._plan.step_crops(usual), self._epochs_done)
            self._sgd.take_step()
        self._losses.append((loss, crops))
        if last:
            self.gate.remove_worker(worker)

    def waits(self, worker: WorkerId) -> bool:
        """Returns whether its gradient has not moved the weights yet."""
        return worker in self._waiting

    def end_epoch(self, above: float = ALWAYS) -> tuple[EpochResult, bytes | None]:
        """Validates and returns the epoch's result, with a snapshot if the accuracy is above this threshold.

        Raises:
            RuntimeError: a worker has not pushed its last gradient.
        """
        if not self.gate.over:
            raise RuntimeError("an epoch ends when every worker has left it")
        self._epochs_done += 1
        losses = [loss for loss, _ in self._losses]
        counts = [count for _, count in self._losses]
        result = EpochResult(self._epochs_done, self._evaluate(), float(np.average(losses, weights=counts)))
        if result.validation_accuracy <= above:
            return result, None
        return result, take_snapshot(self._trainee, self._sgd, self._epochs_done).to_bytes()

    def _move(self) -> None:
        """Makes all updates that are possible now."""
        while group := self.gate.next_update():
            pushes = [self._waiting.pop(worker) for worker in group]
            self._update([push for push in pushes if push.gradient is not None])
            for worker, push in zip(group, pushes, strict=True):
                if push.last:
                    self.gate.remove_worker(worker)

    def _update(self, pushes: list[Push]) -> None:
        """Makes one step along the mean over all crops of these gradients, in the order of workers."""
        crops = sum(push.crops for push in pushes)
        if not crops:
            return
        with self._scope():
            self._sgd.set_rates(self._plan.step_crops(pushes[0].batch), self._epochs_done)
            self._trainee.set_gradient(_mean(pushes, crops))
            self._sgd.take_step()
        self._losses += [(push.loss, push.crops) for push in pushes]

    def _evaluate(self) -> float:
        if self._inputs is None:
            return 0.0
        goal = self._trainee.goal(self._validation.labelled)
        return goal.judge_outputs(self._trainee.answers(self._inputs)).accuracy(self._validation.weights)


def _mean(pushes: list[Push], crops: int) -> NDArray[np.float32]:
    """Returns the gradient of all their crops as one batch; a single gradient stays the same, bit for bit."""
    mean: NDArray[np.float32] | None = None
    for push in pushes:
        if push.gradient is not None:
            part = push.gradient * np.float32(push.crops / crops)
            mean = part if mean is None else mean + part
    if mean is None:
        raise ValueError("a step needs a gradient")
    return mean
