"""The only worker of a training, in its parameter server's process, so that steps copy no weights."""

import time

from ekya.fleet.run.training.messages import EpochWork, Timer
from ekya.fleet.run.training.server import ParameterServer
from ekya.fleet.run.training.workers import EpochPlan, Shard, WorkerId
from ekya.models.training.labelled import Examples


class LoneWorker:
    """Trains the parameter server's own weights, with the same steps as a single ``Worker``.

    A ``Worker`` copies all weights five times in each step; for one block of a ResNet18 that takes as long as
    training it.

    Args:
        me: its id.
        server: in the same process.
        epochs: division of epochs into steps.
        shard: all crops of the training.
        crops: of the shard, in the order of ``Shard.positions``.
        timer: for measurements.
    """

    def __init__(
        self,
        me: WorkerId,
        server: ParameterServer,
        epochs: EpochPlan,
        shard: Shard,
        crops: Examples,
        *,
        timer: Timer = time.monotonic,
    ) -> None:
        self._me, self._server, self._epochs, self._shard, self._timer = me, server, epochs, shard, timer
        self._lesson = server.lesson(crops)

    def run_epoch(self, token: object, epoch: int) -> EpochWork:
        """Runs all steps of an epoch, until the server ends it.

        Args:
            token: of the epoch, as the server knows it.
            epoch: number of epochs done.
        """
        began_s, steps, crops = self._timer(), 0, 0
        batches = self._epochs.steps(self._shard, 0, epoch)
        for place, batch in enumerate(batches):
            last = place == len(batches) - 1
            if not self._server.step(token, self._me, self._lesson, batch, self._shard.batch, last):
                break
            steps, crops = steps + 1, crops + len(batch)
        return EpochWork(steps, crops, compute_s=self._timer() - began_s)
