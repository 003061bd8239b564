"""Workers: compute gradients of batches for the parameter server's weights, elsewhere or in its process."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress

import numpy as np
import torch
from numpy.typing import NDArray

from ekya.fleet.run.calls import CallError, Handle
from ekya.fleet.run.training.material import LessonPlan, Push
from ekya.fleet.run.training.server import ParameterServer
from ekya.fleet.run.training.workers import EpochPlan, EpochWork, Positions, Shard, WorkerId
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.training.labelled import Examples
from ekya.models.training.trainee import DISTILLATION_WEIGHT, Trainee


class Worker:
    """One worker of a training.

    Args:
        me: its id.
        number: among all workers.
        start: checkpoint of the model to begin with.
        plan: configuration that all processes of the training share.
        shard: its crops by position.
        crops: of the shard, in the order of ``Shard.positions``.
        device: to compute on.
        scope: entered around every batch; share backends wait there for the GPU.
    """

    def __init__(
        self,
        me: WorkerId,
        number: int,
        start: bytes,
        plan: LessonPlan,
        shard: Shard,
        crops: Examples,
        *,
        device: str = "cpu",
        scope: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._me, self._number, self._epochs, self._shard = me, number, plan.epochs, shard
        self._device, self._scope = device, scope
        self._trainee = Trainee(
            from_bytes(start), plan.config, plan.classes, plan.epochs.seed, device=device, scope=scope
        )
        self._trainee.suffix.eval()
        self._lesson = None
        if len(crops):
            inputs = self._trainee.inputs_of(crops.images)
            self._lesson = self._trainee.lesson(inputs, self._trainee.goal(crops), DISTILLATION_WEIGHT)

    def run_epoch(self, server: Handle, token: object, epoch: int) -> EpochWork:
        """Runs all steps of an epoch, until the server ends it.

        Args:
            server: a ``ParameterServer``, for the gradients; when it dies, the epoch counts as aborted.
            token: of the epoch, as the server knows it.
            epoch: number of epochs done.
        """
        steps = self.steps(epoch)
        if not steps:
            _told(server, "remove_worker", token, self._me)
            return EpochWork()
        began_s = time.monotonic()
        weights = _told(server, "pull_weights", token, self._me)
        work = EpochWork(update_s=time.monotonic() - began_s)
        for place, step in enumerate(steps):
            if weights is None:
                return work
            began_s = time.monotonic()
            push = self.push_of(weights, step, last=place == len(steps) - 1)
            computed_s = time.monotonic()
            pulled = weights.nbytes
            weights = _told(server, "push_gradient", token, self._me, push)
            work = work.with_work(
                EpochWork(
                    steps=int(bool(push.crops)),
                    crops=push.crops,
                    compute_s=computed_s - began_s,
                    update_s=time.monotonic() - computed_s,
                    pushed=0 if push.gradient is None else push.gradient.nbytes,
                    pulled=pulled,
                )
            )
        return work

    def steps(self, epoch: int) -> list[Positions]:
        """Returns its batches after ``epoch`` epochs, as places in its shard's ``positions``."""
        return self._epochs.steps(self._shard, self._number, epoch)

    def push_of(self, weights: NDArray[np.float32], step: Positions, last: bool) -> Push:
        """Returns the gradient of a batch at these weights."""
        self._trainee.set_weights(weights)
        if self._lesson is None or not len(step):
            return Push(None, 0.0, 0, self._shard.batch, last)
        with self._scope():
            batch = torch.from_numpy(np.ascontiguousarray(step)).to(self._device)
            loss = float(self._lesson.compute_gradient(batch))
            return Push(self._trainee.gradient(), loss, len(step), self._shard.batch, last)


def _told(server: Handle, method: str, *arguments: object) -> NDArray[np.float32] | None:
    """Returns the weights that a parameter server answers with; None where it is dead."""
    with suppress(CallError):
        # It waits for other workers, for as long as they take.
        weights: NDArray[np.float32] | None = server.call(method, *arguments).result()
        return weights
    return None


class LoneWorker:
    """Trains, as the only worker, its parameter server's own weights by the same steps as one ``Worker``.

    A ``Worker`` copies all weights five times in each step; for one block of a ResNet18 that takes as long as
    training it.

    Args:
        me: its id.
        server: in the same process.
        epochs: division of epochs into steps.
        shard: all crops of the training.
        crops: of the shard, in the order of ``Shard.positions``.
    """

    def __init__(
        self,
        me: WorkerId,
        server: ParameterServer,
        epochs: EpochPlan,
        shard: Shard,
        crops: Examples,
    ) -> None:
        self._me, self._server, self._epochs, self._shard = me, server, epochs, shard
        self._lesson = server.prepare_lesson(crops)

    def run_epoch(self, token: object, epoch: int) -> EpochWork:
        """Runs all steps of an epoch, until the server ends it.

        Args:
            token: of the epoch, as the server knows it.
            epoch: number of epochs done.
        """
        began_s, steps, crops = time.monotonic(), 0, 0
        batches = self._epochs.steps(self._shard, 0, epoch)
        for place, batch in enumerate(batches):
            last = place == len(batches) - 1
            if not self._server.make_lone_step(token, self._me, self._lesson, batch, self._shard.batch, last):
                break
            steps, crops = steps + 1, crops + len(batch)
        return EpochWork(steps, crops, compute_s=time.monotonic() - began_s)
