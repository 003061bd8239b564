"""Ray actors for processes of trainings (parameter server, worker, or both), and those that wait for work."""

import os
import threading
from typing import Any
from uuid import uuid4

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ekya.fleet.run.calls import CallError, Handle, RayHandle, call_part
from ekya.fleet.run.training.material import LessonPlan, ValidationCrops
from ekya.fleet.run.training.protocol import FleetNode
from ekya.fleet.run.training.server import REMOTE_METHODS, ParameterServer, server_of
from ekya.fleet.run.training.updates import Updates
from ekya.fleet.run.training.worker import LoneWorker, Worker
from ekya.fleet.run.training.workers import EpochWork, Positions, Shard, WorkerId
from ekya.gpu.backends.backend import ShareBackend, ShareHandle, ShareJob
from ekya.models.training.labelled import Examples, concatenate
from ekya.runtime.driver.local_ray import ACTOR_VARIABLES
from ekya.system.priority import GUEST_NICENESS, lower_priority

THREADS = 64
"""Workers that may wait in a parameter server at the same time, and a few for requests."""

NEWS = "news"
"""Concurrency group with a separate thread, so that a busy actor answers heartbeats."""


class TrainingActor:
    """A process of trainings: a parameter server, a worker, or both where a training has one worker.

    As a worker it keeps the crops that it received, for later shards.

    Args:
        name: of its actor.
        backend: holds its shares.
        gpu: position of its GPU among those that the backend was opened for.
    """

    def __init__(self, name: str, backend: ShareBackend, gpu: int = 0) -> None:
        lower_priority(GUEST_NICENESS)
        self._name, self._backend, self._gpu = name, backend, gpu
        self._device = backend.probe_machine().device
        self._share: ShareHandle | None = None
        self._server: ParameterServer | None = None
        self._worker: Worker | LoneWorker | None = None
        self._held: tuple[Positions, Examples] | None = None
        self._start: bytes | None = None
        self._validation: ValidationCrops | None = None

    def serve_training(
        self, start: bytes | None, plan: LessonPlan, validation: ValidationCrops | None, share_milli: int
    ) -> None:
        """Becomes the parameter server of another training, or serves the same one in another way.

        Args:
            start, validation: as in ``Updates``; None where this process has those of the training.
            plan: as in ``Updates``.
            share_milli: of its node.
        """
        start, self._validation = self._kept(start), validation or self._validation
        if self._validation is None:
            raise LookupError("this process has no validation crops")
        scope = self._at_share(share_milli).scope
        updates = Updates(start, plan, self._validation, device=self._device, scope=scope)
        self._server = ParameterServer(updates)

    def on_server(self, method: str, *arguments: Any) -> Any:
        """Calls a method of its parameter server.

        Raises:
            LookupError: it is none at the moment.
        """
        return call_part(self._there, REMOTE_METHODS, method, arguments)

    def abort_epoch(self) -> None:
        """Aborts the epoch, if there is one: a process of the crew may die before the first."""
        if self._server is not None:
            self._server.abort_epoch()

    def work_on_shard(
        self,
        me: WorkerId,
        number: int,
        start: bytes | None,
        plan: LessonPlan,
        shard: Shard,
        sent: tuple[Positions, Examples],
        anew: bool,
        share_milli: int | None,
    ) -> None:
        """Works on another shard from now on.

        Args:
            me, number, plan, shard: as in ``Worker``.
            start: as in ``serve_training``; a lone worker needs none.
            sent: positions of the crops that are missing here, and these crops.
            anew: the crops here are of another training and are dropped.
            share_milli: of its node; None for a lone worker, which uses the parameter server's share.
        """
        if anew or self._held is None:
            self._held = sent
        else:
            positions, crops = self._held
            self._held = (np.concatenate([positions, sent[0]]), concatenate([crops, sent[1]]))
        positions, crops = self._held
        order = np.argsort(positions)
        there = order[np.searchsorted(positions, shard.positions, sorter=order)]
        crops = crops.select_rows(there)
        if share_milli is None:
            self._worker = LoneWorker(me, self._there, plan.epochs, shard, crops)
            return
        start, scope = self._kept(start), self._at_share(share_milli).scope
        self._worker = Worker(me, number, start, plan, shard, crops, device=self._device, scope=scope)

    def run_epoch(self, server: Handle, token: object, epoch: int) -> EpochWork:
        """Runs all steps of an epoch with the parameter server of this process, or another one."""
        if self._worker is None:
            raise LookupError("this worker works on no training")
        if isinstance(self._worker, LoneWorker):
            return self._worker.run_epoch(token, epoch)
        return self._worker.run_epoch(server_of(server), token, epoch)

    def release_training(self) -> None:
        """Releases its share and the state of the training."""
        if self._share is not None:
            self._share.release()
        self._share = self._server = self._worker = self._held = self._start = self._validation = None

    @ray.method(concurrency_group=NEWS)
    def pid(self) -> int:
        """Returns the process id; serves as heartbeat."""
        return os.getpid()

    def _kept(self, start: bytes | None) -> bytes:
        """Keeps a start model, which may be large, and returns the kept one where there is no other."""
        self._start = self._start if start is None else start
        if self._start is None:
            raise LookupError("this process has no start model")
        return self._start

    def _at_share(self, share_milli: int) -> ShareHandle:
        """Releases the former share and attaches a new one."""
        if self._share is not None:
            self._share.release()
        self._share = self._backend.attach_job(ShareJob(self._name, "retraining", share_milli, self._gpu))
        return self._share

    @property
    def _there(self) -> ParameterServer:
        if self._server is None:
            raise LookupError("this parameter server serves no training")
        return self._server


_ALIVE_S = 10.0
"""Timeout of an idle process's heartbeat; afterwards another is made."""


class TrainingProcesses:
    """A ``ProcessSource`` of Ray actors. It keeps idle ones, as loading torch is slow. Thread-safe.

    Args:
        backend: holds their shares.
    """

    def __init__(self, backend: ShareBackend) -> None:
        self._backend = backend
        self._idle: dict[tuple[str, int], list[Handle]] = {}
        self._closed = False
        self._lock = threading.Lock()

    def take_process(self, node: FleetNode) -> Handle:
        while (process := self._waiting_on(node)) is not None:
            try:
                process.call("pid").result(_ALIVE_S)
            except (CallError, TimeoutError):
                process.end_process()
            else:
                return process
        # Two trainers may train on the same nodes, and actor names must be unique.
        name = f"training on {node.name} ({uuid4().hex[:8]})"
        job = ShareJob(name, "retraining", node.share_milli, node.gpu)
        options = {
            "name": name,
            "num_cpus": 0,
            "max_restarts": 0,
            "max_concurrency": THREADS,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node.machine_id, soft=False),
            "runtime_env": {"env_vars": {**self._backend.actor_env(job), **ACTOR_VARIABLES}},
        }
        remote: Any = ray.remote  # Ray's type hints lack concurrency groups.
        made = remote(concurrency_groups={NEWS: 1})(TrainingActor)
        return RayHandle(made.options(**options).remote(name, self._backend, node.gpu))

    def give_back_process(self, node: FleetNode, process: Handle) -> None:
        """Takes back a live process; it holds no GPU resources when this returns."""
        try:
            process.call("release_training").result(_ALIVE_S)
        except (CallError, TimeoutError):
            process.end_process()
            return
        with self._lock:
            if not self._closed:
                self._idle.setdefault(_place(node), []).append(process)
                return
        process.end_process()

    def is_there(self, machine_id: str) -> bool:
        """Returns whether Ray has a live node with this id."""
        nodes: Any = ray.nodes  # Untyped in Ray.
        return any(known["NodeID"] == machine_id and known["Alive"] for known in nodes())

    def close(self) -> None:
        """Ends all idle processes; those that are given back later end too."""
        with self._lock:
            self._closed = True
            waiting = [process for idle in self._idle.values() for process in idle]
            self._idle.clear()
        for process in waiting:
            process.end_process()

    def _waiting_on(self, node: FleetNode) -> Handle | None:
        with self._lock:
            idle = self._idle.get(_place(node))
            return idle.pop() if idle else None


def _place(node: FleetNode) -> tuple[str, int]:
    """Returns the key of idle processes: a process never changes its node and GPU."""
    return node.machine_id, node.gpu
