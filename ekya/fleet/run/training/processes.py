"""Processes of others' trainings: Ray actors, of which some wait for work."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import psutil
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ekya.fleet.run.training.bundle_file import read_bundle
from ekya.fleet.run.training.protocol import Begun, CallError, EpochOutcome
from ekya.gpu.backends.backend import ShareBackend, ShareHandle, ShareJob
from ekya.models.training.trainer import Compute, Retraining, training_precision
from ekya.runtime.actors.actor_messages import in_words, unwrapping_user_error
from ekya.runtime.driver.local_ray import ACTOR_VARIABLES
from ekya.system.priority import GUEST_NICENESS, lower_priority
from ekya.system.processes import find_process, still_runs

THREADS = 2
"""Calls at a time: an epoch, and what aborts it."""

NEWS = "news"
"""Concurrency group with a separate thread, so that a busy actor tells its pid."""

_ALIVE_S = 10.0
"""Timeout of an idle process's answer; afterwards another is made."""

_SAYS_WHO_S = 1.0
_GONE_WITHIN_S = 5.0
"""Time in which processes are gone after Ray was told to end them."""


class _AbortedError(Exception):
    """The epoch was aborted."""


class TrainingActor:
    """A process that trains for another server.

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
        self._loan, self._aborted, self._best = "", "", -1.0

    def begin_training(self, loan: str, bundle: Path, snapshot: bytes | None, share_milli: int) -> Begun:
        """Begins a training, or continues one after a snapshot.

        Args:
            loan: under which it runs.
            bundle: file with what it needs.
            snapshot: newer than the one in the file; None: there is none.
            share_milli: of the GPU.

        Raises:
            UserError: file, weights or snapshot are damaged.
        """
        self.release_training()
        self._loan, self._best = loan, -1.0
        self._share = self._backend.attach_job(ShareJob(self._name, "retraining", share_milli, self._gpu))
        compute = Compute(self._device, self._scope, training_precision(self._device, self._scope))
        content = read_bundle(bundle)
        training = content.make_retraining(compute)
        accuracy, goes_on = training.prepare_training(), snapshot or content.snapshot
        if goes_on is not None:
            accuracy = self._best = training.restore_snapshot(goes_on)
        self._training = training
        return Begun(accuracy, training.epochs_done, content.config.epochs)

    def run_epoch(self) -> tuple[EpochOutcome, bytes | None] | None:
        """Runs an epoch; returns also its snapshot where none before was better. None: it was aborted.

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
        outcome = EpochOutcome(result, training.epoch_crops, time.monotonic() - began_s)
        if result.validation_accuracy < self._best:
            return outcome, None
        self._best = result.validation_accuracy
        return outcome, training.take_snapshot()

    def abort_epoch(self, loan: str) -> None:
        """Ends the epoch of this loan's training within a step; no other follows."""
        self._aborted = loan

    def release_training(self) -> None:
        """Releases its share and the state of the training."""
        if self._share is not None:
            self._share.release()
        self._share = self._training = None

    @ray.method(concurrency_group=NEWS)
    def pid(self) -> int:
        """Returns the process id."""
        return os.getpid()

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Encloses a batch: waits for the share, unless the epoch is aborted."""
        share = self._share
        if self._aborted == self._loan or share is None:
            raise _AbortedError
        with share.scope():
            yield


class Process(Protocol):
    """A ``TrainingActor`` as its server reaches it."""

    def ask(self, method: str, *arguments: Any, within_s: float | None = None) -> Any:
        """Returns a method's result.

        Raises:
            UserError: the method did.
            CallError: the process died, or does not answer in time, or its method failed.
        """

    def tell(self, method: str, *arguments: Any) -> None:
        """Calls a method without waiting."""

    def end_process(self) -> None:
        """Ends it, also a busy one."""


class ProcessSource(Protocol):
    """Source of processes."""

    def take_process(self) -> Process:
        """Returns a process; it may not have started yet, and errors appear in calls to it."""

    def give_back_process(self, process: Process) -> None:
        """Takes back a live process that is not used any more; it holds no share when this returns."""


@dataclass(frozen=True, slots=True)
class RayProcess:
    """A ``Process`` that is an actor of this process's Ray."""

    actor: Any

    def ask(self, method: str, *arguments: Any, within_s: float | None = None) -> Any:
        reference = getattr(self.actor, method).remote(*arguments)
        try:
            return unwrapping_user_error(partial(ray.get, reference, timeout=within_s))
        except RayError as error:
            raise CallError(in_words(error)) from error

    def tell(self, method: str, *arguments: Any) -> None:
        getattr(self.actor, method).remote(*arguments)

    def end_process(self) -> None:
        ray.kill(self.actor)


class TrainingProcesses:
    """Makes processes on one Ray node, and keeps idle ones, as loading torch is slow. Thread-safe.

    Args:
        ray_node: id of the node.
        backend: holds their shares.
        gpu: as in ``TrainingActor``.
    """

    def __init__(self, ray_node: str, backend: ShareBackend, gpu: int = 0) -> None:
        self._ray_node, self._backend, self._gpu = ray_node, backend, gpu
        self._idle: list[Process] = []
        self._made: list[Process] = []
        self._lock = threading.Lock()

    def warm_process(self) -> None:
        """Makes one idle process before it is needed: loading torch takes longer than a small training."""
        self.give_back_process(self.take_process())

    def take_process(self) -> Process:
        """Returns an idle process, or makes one."""
        while (process := self._take_idle()) is not None:
            with suppress(CallError):
                process.ask("pid", within_s=_ALIVE_S)
                return process
            process.end_process()
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
        process = RayProcess(made.options(**options).remote(name, self._backend, self._gpu))
        with self._lock:
            self._made.append(process)
        return process

    def give_back_process(self, process: Process) -> None:
        try:
            process.ask("release_training")
        except CallError:
            process.end_process()
            return
        with self._lock:
            self._idle.append(process)

    def close(self) -> None:
        """Ends all processes, also busy ones, and waits until they are gone: MPS must end after them."""
        living = []
        for process in self._made:
            with suppress(CallError):
                living.append(find_process(process.ask("pid", within_s=_SAYS_WHO_S)))
            process.end_process()
        ends_s = time.monotonic() + _GONE_WITHIN_S
        while any(_still_runs(process) for process in living) and time.monotonic() < ends_s:
            time.sleep(0.01)

    def _take_idle(self) -> Process | None:
        with self._lock:
            return self._idle.pop() if self._idle else None


def _still_runs(process: psutil.Process | None) -> bool:
    return process is not None and still_runs(process)
