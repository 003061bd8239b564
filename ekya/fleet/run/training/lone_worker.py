"""The only worker of a training, in its parameter server's process: no weights are copied for its steps."""

import time

from ekya.fleet.run.training.messages import EpochWork, Timer
from ekya.fleet.run.training.server import ParameterServer
from ekya.fleet.run.training.workers import EpochPlan, Shard, WorkerId
from ekya.learning.labelled import LabelledCrops


class LoneWorker:
    """Trains the parameter server's own weights, with the steps of a ``Worker`` that is alone.

    A ``Worker`` copies all weights five times in each step: of a block of a ResNet18 that takes as long as to
    train it.

    Args:
        me: which.
        server: where it works.
        epochs: how they are cut.
        shard: what it has to go through: all there is.
        crops: those of its shard, in the order of ``Shard.positions``.
        timer: what it measures with.
    """

    def __init__(
        self,
        me: WorkerId,
        server: ParameterServer,
        epochs: EpochPlan,
        shard: Shard,
        crops: LabelledCrops,
        *,
        timer: Timer = time.monotonic,
    ) -> None:
        self._me, self._server, self._epochs, self._shard, self._timer = me, server, epochs, shard, timer
        self._lesson = server.lesson(crops)

    def run_epoch(self, token: object, epoch: int) -> EpochWork:
        """All its steps of an epoch, as far as the server lets it.

        Args:
            token: of the epoch, as the server knows it.
            epoch: how many are done.
        """
        began_s, steps, crops = self._timer(), 0, 0
        batches = self._epochs.steps(self._shard, 0, epoch)
        for place, batch in enumerate(batches):
            last = place == len(batches) - 1
            if not self._server.step(token, self._me, self._lesson, batch, self._shard.batch, last):
                break
            steps, crops = steps + 1, crops + len(batch)
        return EpochWork(steps, crops, compute_s=self._timer() - began_s)
