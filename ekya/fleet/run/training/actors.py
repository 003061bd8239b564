"""What runs in the processes of trainings."""

import os
from contextlib import suppress
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayActorError

from ekya.fleet.run.training.lone_worker import LoneWorker
from ekya.fleet.run.training.messages import ALWAYS, EpochWork, LessonPlan, Push, Validation
from ekya.fleet.run.training.server import EpochEnd, ParameterServer
from ekya.fleet.run.training.updates import Updates
from ekya.fleet.run.training.worker import Worker
from ekya.fleet.run.training.workers import EpochPlan, Positions, Shard, WorkerId
from ekya.gpu.protocol import Resized, ShareBackend, ShareHandle, ShareJob
from ekya.learning.labelled import LabelledCrops, concatenate
from ekya.runtime.standing_back import GUEST_NICENESS, stand_back

THREADS = 64
"""Workers that may wait in one parameter server at once, and a few for orders."""

NEWS = "news"
"""A thread of its own, so that an actor that works can say that it lives."""


class TrainingActor:
    """A process of trainings: a parameter server, a worker, or both where nobody else works on a training.

    As a worker it keeps the crops that it has been sent, for the next shard. Many methods are those of
    ``ParameterServer``.

    Args:
        name: of its actor.
        backend: holds its shares.
        gpu: position of its GPU among those that the backend was opened for.
    """

    def __init__(self, name: str, backend: ShareBackend, gpu: int = 0) -> None:
        stand_back(GUEST_NICENESS)
        self._name, self._backend, self._gpu = name, backend, gpu
        self._device = backend.probe().device
        self._share: ShareHandle | None = None
        self._server: ParameterServer | None = None
        self._worker: Worker | LoneWorker | None = None
        self._held: tuple[Positions, LabelledCrops] | None = None

    def serve(self, start: bytes, plan: LessonPlan, validation: Validation, share_milli: int) -> None:
        """Is the parameter server of another training from now on."""
        scope = self._at_share(share_milli).scope
        updates = Updates(start, plan, validation, device=self._device, scope=scope)
        self._server = ParameterServer(updates)

    def restore(self, snapshot: bytes | None) -> float:
        """Goes on from there."""
        return self._there.restore(snapshot)

    def begin_epoch(self, token: object, workers: tuple[WorkerId, ...]) -> None:
        """Of these workers."""
        self._there.begin_epoch(token, workers)

    def pull(self, token: object, worker: WorkerId) -> NDArray[np.float32] | None:
        """The weights."""
        return self._there.pull(token, worker)

    def push(self, token: object, worker: WorkerId, push: Push) -> NDArray[np.float32] | None:
        """A gradient for the weights that come of it."""
        return self._there.push(token, worker, push)

    def leave(self, token: object, worker: WorkerId) -> None:
        """Nothing to do."""
        self._there.leave(token, worker)

    def exchanged(self) -> dict[WorkerId, tuple[int, int]]:
        """Bytes that each worker has pushed and pulled in the epoch."""
        return self._there.exchanged()

    def abort(self) -> None:
        """The epoch is no more; nothing where none was begun, since a crew may lose somebody before."""
        if self._server is not None:
            self._server.abort()

    @ray.method(num_returns=2)
    def end_epoch(self, above: float = ALWAYS) -> tuple[EpochEnd, bytes | None]:
        """The epoch is over; its snapshot, if it has one, stays on this node until somebody fetches it."""
        return self._there.end_epoch(above)

    def work(
        self,
        me: WorkerId,
        number: int,
        start: bytes,
        plan: LessonPlan,
        epochs: EpochPlan,
        shard: Shard,
        sent: tuple[Positions, LabelledCrops],
        anew: bool,
        share_milli: int | None,
    ) -> None:
        """Works on another shard from now on.

        Args:
            me, number, start, plan, epochs, shard: as of ``Worker``.
            sent: positions of crops that it has not, and these.
            anew: whether what it holds is of another training.
            share_milli: of its node; None where it is alone and the parameter server too, and has that one's.
        """
        if anew or self._held is None:
            self._held = sent
        else:
            positions, crops = self._held
            self._held = (np.concatenate([positions, sent[0]]), concatenate([crops, sent[1]]))
        positions, crops = self._held
        order = np.argsort(positions)
        there = order[np.searchsorted(positions, shard.positions, sorter=order)]
        crops = crops.take(there)
        if share_milli is None:
            self._worker = LoneWorker(me, self._there, epochs, shard, crops)
            return
        scope = self._at_share(share_milli).scope
        self._worker = Worker(me, number, start, plan, epochs, shard, crops, device=self._device, scope=scope)

    def run_epoch(self, server: Any, token: object, epoch: int) -> EpochWork:
        """All steps of an epoch, with the parameter server behind this handle, unless that is here."""
        if self._worker is None:
            raise LookupError("this worker works on no training")
        if isinstance(self._worker, LoneWorker):
            return self._worker.run_epoch(token, epoch)
        return self._worker.run_epoch(_Remote(server), token, epoch)

    def rest(self) -> None:
        """Lets go of its share, and of all that it was told, until there is another training."""
        if self._share is not None:
            self._share.release()
        self._share = self._server = self._worker = self._held = None

    def resize(self, share_milli: int) -> Resized:
        """Another share from now on."""
        if self._share is None:
            raise LookupError(f"{self._name} works on nothing")
        return self._share.resize(share_milli)

    @ray.method(concurrency_group=NEWS)
    def pid(self) -> int:
        """A sign of life."""
        return os.getpid()

    def _at_share(self, share_milli: int) -> ShareHandle:
        """A share for what comes next."""
        if self._share is not None:
            self._share.release()
        self._share = self._backend.attach(ShareJob(self._name, "retraining", share_milli, self._gpu))
        return self._share

    @property
    def _there(self) -> ParameterServer:
        if self._server is None:
            raise LookupError("this parameter server serves no training")
        return self._server


class _Remote:
    """A parameter server in another process. With its death every epoch is no more."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def pull(self, token: object, worker: WorkerId) -> NDArray[np.float32] | None:
        return self._weights(self._actor.pull.remote(token, worker))

    def push(self, token: object, worker: WorkerId, push: Push) -> NDArray[np.float32] | None:
        return self._weights(self._actor.push.remote(token, worker, push))

    def leave(self, token: object, worker: WorkerId) -> None:
        with suppress(RayActorError):
            ray.get(self._actor.leave.remote(token, worker))

    def _weights(self, asked: Any) -> NDArray[np.float32] | None:
        with suppress(RayActorError):
            weights: NDArray[np.float32] | None = ray.get(asked)
            return weights
        return None
