"""The processes of trainings: a parameter server or a worker each, on the Ray node where it was asked for."""

import os
from contextlib import suppress
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ekya.fleet.run.training.messages import EpochWork, LessonPlan, Push, Validation
from ekya.fleet.run.training.protocol import FleetNode
from ekya.fleet.run.training.server import EpochEnd, ParameterServer
from ekya.fleet.run.training.worker import Worker
from ekya.fleet.run.training.workers import EpochPlan, Positions, Shard, WorkerId
from ekya.gpu.protocol import Resized, ShareBackend, ShareHandle, ShareJob
from ekya.learning.labelled import LabelledCrops, concatenate

Role = Literal["server", "worker"]

_THREADS = 64
"""Workers that may wait in one parameter server at once, and a few for orders."""

_NEWS = "news"
"""A thread of its own, so that an actor that works can say that it lives."""

_RAY_SETS_NO_GPU = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}

_ALIVE_S = 10.0
"""An idle process answers within this, or another is made."""


class Process:
    """What both kinds of processes have: a share, and a sign of life."""

    def __init__(self, name: str, backend: ShareBackend) -> None:
        self._name, self._backend = name, backend
        self._share: ShareHandle | None = None

    def work_at(self, share_milli: int) -> ShareHandle:
        """Takes a share for what comes next."""
        if self._share is not None:
            self._share.release()
        self._share = self._backend.attach(ShareJob(self._name, "retraining", share_milli))
        return self._share

    def resize(self, share_milli: int) -> Resized:
        """Another share from now on."""
        if self._share is None:
            raise LookupError(f"{self._name} works on nothing")
        return self._share.resize(share_milli)


class ServerActor:
    """A parameter server in a process of its own. Its methods are those of ``ParameterServer``."""

    def __init__(self, name: str, backend: ShareBackend) -> None:
        self._process = Process(name, backend)
        self._device = backend.probe().device
        self._server: ParameterServer | None = None

    def begin(self, start: bytes, plan: LessonPlan, validation: Validation, share_milli: int) -> None:
        """Serves another training from now on."""
        scope = self._process.work_at(share_milli).scope
        self._server = ParameterServer(start, plan, validation, device=self._device, scope=scope)

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
        """The epoch is no more."""
        self._there.abort()

    def end_epoch(self) -> EpochEnd:
        """The epoch is over."""
        return self._there.end_epoch()

    def resize(self, share_milli: int) -> Resized:
        """Another share from now on."""
        return self._process.resize(share_milli)

    @ray.method(concurrency_group=_NEWS)
    def pid(self) -> int:
        """A sign of life."""
        return os.getpid()

    @property
    def _there(self) -> ParameterServer:
        if self._server is None:
            raise LookupError("this parameter server serves no training")
        return self._server


class WorkerActor:
    """A worker in a process of its own. It keeps the crops that it has been sent, for the next shard."""

    def __init__(self, name: str, backend: ShareBackend) -> None:
        self._process = Process(name, backend)
        self._device = backend.probe().device
        self._worker: Worker | None = None
        self._held: tuple[Positions, LabelledCrops] | None = None

    def begin(
        self,
        me: WorkerId,
        number: int,
        start: bytes,
        plan: LessonPlan,
        epochs: EpochPlan,
        shard: Shard,
        sent: tuple[Positions, LabelledCrops],
        anew: bool,
        share_milli: int,
    ) -> None:
        """Works on another shard from now on.

        Args:
            me, number, start, plan, epochs, shard: as of ``Worker``.
            sent: positions of crops that it has not, and these.
            anew: whether what it holds is of another training.
            share_milli: of its node.
        """
        if anew or self._held is None:
            self._held = sent
        else:
            positions, crops = self._held
            self._held = (np.concatenate([positions, sent[0]]), concatenate([crops, sent[1]]))
        positions, crops = self._held
        order = np.argsort(positions)
        there = order[np.searchsorted(positions, shard.positions, sorter=order)]
        scope = self._process.work_at(share_milli).scope
        self._worker = Worker(
            me, number, start, plan, epochs, shard, crops.take(there), device=self._device, scope=scope
        )

    def run_epoch(self, server: Any, token: object, epoch: int) -> EpochWork:
        """All steps of an epoch, with the parameter server behind this handle."""
        if self._worker is None:
            raise LookupError("this worker works on no training")
        return self._worker.run_epoch(_Remote(server), token, epoch)

    def resize(self, share_milli: int) -> Resized:
        """Another share from now on."""
        return self._process.resize(share_milli)

    @ray.method(concurrency_group=_NEWS)
    def pid(self) -> int:
        """A sign of life."""
        return os.getpid()


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


class Processes:
    """Makes processes on nodes; those of a training that is over wait for the next, as torch loads slowly.

    Args:
        backend: holds their shares.
    """

    def __init__(self, backend: ShareBackend) -> None:
        self._backend = backend
        self._idle: dict[tuple[str, Role], list[Any]] = {}

    def take(self, node: FleetNode, role: Role) -> Any:
        """A process on a node, which may still be on its way."""
        idle = self._idle.get((node.ray_node_id, role), [])
        while idle:
            actor = idle.pop()
            try:
                ray.get(actor.pid.remote(), timeout=_ALIVE_S)
            except RayError:
                self.end(actor)
            else:
                return actor
        # Two trainers may train on the same nodes, and no two names may be alike.
        name = f"training {role} on {node.name} ({uuid4().hex[:8]})"
        job = ShareJob(name, "retraining", node.share_milli)
        options = {
            "name": name,
            "num_cpus": 0,
            "max_restarts": 0,
            "max_concurrency": _THREADS if role == "server" else 1,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node.ray_node_id, soft=False),
            "runtime_env": {"env_vars": {**self._backend.actor_env(job), **_RAY_SETS_NO_GPU}},
        }
        remote: Any = ray.remote  # Ray's own types do not know of groups.
        made = remote(concurrency_groups={_NEWS: 1})(ServerActor if role == "server" else WorkerActor)
        return made.options(**options).remote(name, self._backend)

    def give_back(self, node: FleetNode, role: Role, actor: Any) -> None:
        """It has nothing to do any more, and lives."""
        self._idle.setdefault((node.ray_node_id, role), []).append(actor)

    def end(self, actor: Any) -> None:
        """Ends one that is not to be used again."""
        ray.kill(actor)

    def is_there(self, node: str) -> bool:
        """Whether Ray still has the node."""
        nodes: Any = ray.nodes  # Ray does not say what it gives.
        return any(known["NodeID"] == node and known["Alive"] for known in nodes())

    def close(self) -> None:
        """Ends all that wait."""
        for actors in self._idle.values():
            for actor in actors:
                self.end(actor)
        self._idle.clear()
