"""Ray actors for processes of trainings, and those that wait for work."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ekya.fleet.run.calls import CallError, Handle, RayHandle
from ekya.fleet.run.training.homecoming import ALWAYS
from ekya.fleet.run.training.protocol import EpochOutcome, TrainingBundle
from ekya.gpu.backends.backend import ShareBackend, ShareHandle, ShareJob
from ekya.models.training.trainer import Compute, Retraining, training_precision
from ekya.runtime.driver.local_ray import ACTOR_VARIABLES
from ekya.system.priority import GUEST_NICENESS, lower_priority

THREADS = 4
"""Calls at a time: an epoch, a checkpoint on its way, and requests."""

NEWS = "news"
"""Concurrency group with a separate thread, so that a busy actor answers heartbeats."""


class _AbortedError(Exception):
    """The epoch was aborted."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Snapshot of an epoch."""

    epoch: int
    accuracy: float
    data: bytes


class TrainingActor:
    """A process that trains for another server. ``run_epoch`` takes long; other calls may come meanwhile.

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
        self._training: Retraining | None = None
        self._aborted = threading.Event()
        # The best and the newest, which may be the same.
        self._kept: tuple[_Kept, ...] = ()

    def begin_training(self, bundle: TrainingBundle, snapshot: bytes | None, share_milli: int) -> float:
        """Begins a training, or continues one after its snapshot; returns the validation accuracy.

        Raises:
            UserError: weights or snapshot are damaged.
        """
        self.release_training()
        self._aborted.clear()
        self._share = self._backend.attach_job(ShareJob(self._name, "retraining", share_milli, self._gpu))
        compute = Compute(self._device, self._scope, training_precision(self._device, self._scope))
        training = bundle.make_retraining(compute)
        accuracy = training.prepare_training()
        if snapshot is not None:
            accuracy = training.restore_snapshot(snapshot)
        self._training = training
        return accuracy

    def run_epoch(self, above: float = ALWAYS) -> EpochOutcome | None:
        """Runs an epoch, and keeps a snapshot of it where its accuracy is above this; None: it was aborted.

        Raises:
            LookupError: no training has begun here.
        """
        training = self._training
        if training is None:
            raise LookupError("this process works on no training")
        began_s = time.monotonic()
        try:
            result = training.run_epoch()
        except _AbortedError:
            return None
        took_s, accuracy = time.monotonic() - began_s, result.validation_accuracy
        if kept := accuracy > above:
            newest = _Kept(result.epoch, accuracy, training.take_snapshot())
            # Of equals the later is the best, as in ``Homecoming``.
            self._kept = (max((newest, *self._kept[:1]), key=lambda one: one.accuracy), newest)
        return EpochOutcome(result, training.epoch_crops, took_s, kept)

    def fetch_snapshot(self, epoch: int) -> bytes:
        """Returns the snapshot of an epoch, if it is the newest or the best.

        Raises:
            LookupError: it is not kept.
        """
        for kept in self._kept:
            if kept.epoch == epoch:
                return kept.data
        raise LookupError("a newer checkpoint has taken its place")

    def abort_epoch(self) -> None:
        """Ends the epoch within a step; no other follows."""
        self._aborted.set()

    def release_training(self) -> None:
        """Releases its share and the state of the training."""
        if self._share is not None:
            self._share.release()
        self._share = self._training = None
        self._kept = ()

    @ray.method(concurrency_group=NEWS)
    def pid(self) -> int:
        """Returns the process id; serves as heartbeat."""
        return os.getpid()

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Encloses a batch: waits for the share, unless the epoch is aborted."""
        share = self._share
        if self._aborted.is_set() or share is None:
            raise _AbortedError
        with share.scope():
            yield


_ALIVE_S = 10.0
"""Timeout of an idle process's heartbeat; afterwards another is made."""


class TrainingProcesses:
    """Makes processes on one Ray node, and keeps idle ones, as loading torch is slow. Thread-safe.

    Args:
        ray_node: id of the node.
        backend: holds their shares.
        gpu: as in ``TrainingActor``.
    """

    def __init__(self, ray_node: str, backend: ShareBackend, gpu: int = 0) -> None:
        self._ray_node, self._backend, self._gpu = ray_node, backend, gpu
        self._idle: list[Handle] = []
        self._closed = False
        self._lock = threading.Lock()

    def take_process(self) -> Handle:
        """Returns a process; it may not have started yet, and errors appear in calls to it."""
        while (process := self._take_idle()) is not None:
            try:
                process.call("pid").result(_ALIVE_S)
            except (CallError, TimeoutError):
                process.end_process()
            else:
                return process
        name = f"training for others ({uuid4().hex[:8]})"
        # Its users bring their shares.
        job = ShareJob(name, "retraining", 0, self._gpu)
        options = {
            "name": name,
            "num_cpus": 0,
            "max_restarts": 0,
            "max_concurrency": THREADS,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(self._ray_node, soft=False),
            "runtime_env": {"env_vars": {**self._backend.actor_env(job), **ACTOR_VARIABLES}},
        }
        remote: Any = ray.remote  # Ray's type hints lack concurrency groups.
        made = remote(concurrency_groups={NEWS: 1})(TrainingActor)
        return RayHandle(made.options(**options).remote(name, self._backend, self._gpu))

    def give_back_process(self, process: Handle) -> None:
        """Takes back a live process; it holds no GPU resources when this returns."""
        try:
            process.call("release_training").result(_ALIVE_S)
        except (CallError, TimeoutError):
            process.end_process()
            return
        with self._lock:
            if not self._closed:
                self._idle.append(process)
                return
        process.end_process()

    def close(self) -> None:
        """Ends all idle processes; those that are given back later end too."""
        with self._lock:
            self._closed, waiting = True, self._idle
            self._idle = []
        for process in waiting:
            process.end_process()

    def _take_idle(self) -> Handle | None:
        with self._lock:
            return self._idle.pop() if self._idle else None
