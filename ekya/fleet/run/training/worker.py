"""Worker: computes the gradients of its shard's batches for the parameter server's weights."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray

from ekya.fleet.run.training.messages import EpochWork, Exchange, LessonPlan, Push, Timer
from ekya.fleet.run.training.workers import EpochPlan, Positions, Shard, WorkerId
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.training.labelled import Examples
from ekya.models.training.trainee import Trainee


class Worker:
    """One worker of a training.

    Args:
        me: its id.
        number: among all workers.
        start: checkpoint of the model to begin with.
        plan, epochs: configuration, and the division of epochs into steps.
        shard: its crops by position.
        crops: of the shard, in the order of ``Shard.positions``.
        device: to compute on.
        scope: entered around every batch; share backends wait there for the GPU.
        timer: for measurements.
    """

    def __init__(
        self,
        me: WorkerId,
        number: int,
        start: bytes,
        plan: LessonPlan,
        epochs: EpochPlan,
        shard: Shard,
        crops: Examples,
        *,
        device: str = "cpu",
        scope: Callable[[], AbstractContextManager[None]] = nullcontext,
        timer: Timer = time.monotonic,
    ) -> None:
        self._me, self._number, self._epochs, self._shard = me, number, epochs, shard
        self._device, self._scope, self._timer = device, scope, timer
        self._trainee = Trainee(
            from_bytes(start), plan.config, plan.classes, plan.seed, device=device, scope=scope
        )
        self._trainee.suffix.eval()
        self._lesson = None
        if len(crops):
            inputs = self._trainee.inputs_of(crops.images)
            self._lesson = self._trainee.lesson(inputs, self._trainee.goal(crops), plan.distillation_weight)

    def run_epoch(self, server: Exchange, token: object, epoch: int) -> EpochWork:
        """Runs all steps of an epoch, until the server ends it.

        Args:
            server: receives the gradients.
            token: of the epoch, as the server knows it.
            epoch: number of epochs done.
        """
        steps = self.steps(epoch)
        if not steps:
            server.leave(token, self._me)
            return EpochWork()
        began_s = self._timer()
        weights = server.pull(token, self._me)
        work = EpochWork(update_s=self._timer() - began_s)
        for place, step in enumerate(steps):
            if weights is None:
                return work
            began_s = self._timer()
            push = self.push_of(weights, step, last=place == len(steps) - 1)
            computed_s = self._timer()
            pulled = weights.nbytes
            weights = server.push(token, self._me, push)
            work = EpochWork(
                work.steps + bool(push.crops),
                work.crops + push.crops,
                work.pushed + (0 if push.gradient is None else push.gradient.nbytes),
                work.pulled + pulled,
                work.compute_s + computed_s - began_s,
                work.update_s + self._timer() - computed_s,
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
            loss = float(self._lesson.backward(batch))
            return Push(self._trainee.gradient(), loss, len(step), self._shard.batch, last)
