"""Retraining of one stream: SGD at its share, one job after the other."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from ekya.core.commands import StartRetraining
from ekya.core.errors import UserError
from ekya.core.events import (
    MemoryMeasured,
    MemoryShort,
    RetrainFailed,
    RetrainFinished,
    RetrainProgress,
    Role,
    ShareMeasured,
)
from ekya.core.gpus import DidNotFit
from ekya.core.units import JobId, ModelVersion
from ekya.gpu.backends.backend import Resized, ShareHandle, ShareJob
from ekya.models.edge.checkpoints import from_bytes, save_model, to_bytes
from ekya.models.edge.device_memory import (
    MemoryPeaks,
    end_process_if_gpu_is_lost,
    free_cache,
    is_out_of_memory,
)
from ekya.models.edge.model import EdgeModel
from ekya.models.training.activation_cache import ActivationCache
from ekya.models.training.exemplars import ExemplarMemory
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.retrain_setup import retraining_of
from ekya.pipeline.setup import stream_setup
from ekya.runtime.actor_kinds import StreamActorConfig
from ekya.runtime.cuda_ipc_transfer import LOAN_S, CudaIpcSender, LentWeights, open_ipc
from ekya.runtime.job_share import JobUse, VersionedShare
from ekya.runtime.mailbox import Mailbox, RunClock
from ekya.system.memory import give_back_freed

MEASURE_EVERY_S = 5.0

_OVER = Resized(0, 0, "the retraining is over")
_START_WITHIN_S = 5.0
"""Timeout of an order that arrives before its job has begun."""


class _StoppedError(Exception):
    """The retraining was stopped; unwinds its thread."""


@dataclass(slots=True, eq=False)
class _Job:
    """A retraining and the thread that runs it.

    Attributes:
        use: GPU use of the job, reported by ShareMeasured.
        passed: the micro-profiler's forward passes of the start weights; None if there are none.
        memory: exemplars of the windows before.
        over: set when its thread has done its last work.
    """

    command: StartRetraining
    handle: ShareHandle
    share: VersionedShare
    use: JobUse
    labels: StreamLabels
    passed: ActivationCache | None
    memory: ExemplarMemory
    stopped: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    best_epoch: int = 0
    best_accuracy: float = -1.0
    best_model: EdgeModel | None = None


class StreamRetraining:
    """Retraining of one stream. Methods may be called by several threads; each job has a separate one.

    Args:
        orders: of the stream.
        mailbox: for events; shared with other streams of the process.
        peaks: of the process's GPU memory.
    """

    def __init__(self, orders: StreamActorConfig, mailbox: Mailbox, peaks: MemoryPeaks) -> None:
        self._orders = orders
        self._peaks = peaks
        fleet = orders.common.fleet
        self._stream = fleet.streams[orders.place]
        setup = stream_setup(fleet, orders.place, 1.0, orders.common.seed)
        self._settings = replace(setup.settings, device=orders.common.device)
        self._mailbox = mailbox
        self._lock = threading.Lock()
        self._job: _Job | None = None
        self._newest_job = 0
        self._begun = threading.Condition()
        self._memory = ExemplarMemory()
        self._savers: list[threading.Thread] = []
        self._lender: CudaIpcSender | None = None
        self._clock = RunClock(time.monotonic_ns())
        self._told_s = time.monotonic()

    def begin(self, started_monotonic_ns: int) -> None:
        """Sets the start of the run."""
        self._clock = RunClock(started_monotonic_ns)

    def start(
        self,
        command: StartRetraining,
        weights: bytes,
        labels: StreamLabels | None,
        passed: ActivationCache | None,
        serial: int,
    ) -> Resized | None:
        """Begins a retraining from the weights that serve and returns its share; emits an event every epoch.

        ``passed`` holds forward passes of these weights on crops that the micro-profiler tried.
        """
        with self._beginning(command):
            job = self._new_job(command, command.share_milli, labels, passed)
            resized = job.share.resize(serial, command.share_milli)
            job.use.holds(resized)
            self._set_to_work(job, lambda: self._train(job, weights))
            return resized
        return None

    def adopt(
        self, command: StartRetraining, weights: bytes, accuracy: float, labels: StreamLabels | None
    ) -> None:
        """Makes a job of a remote retraining, with its best model so far.

        It needs no share: it only updates the exemplar memory, as every job does at its end. It is called
        again when the remote retraining has better weights.
        """
        with self._beginning(command):
            model, before = from_bytes(weights), self._current(command.job)
            if before is not None:
                before.over.wait()
            job = self._new_job(command, 0, labels, None)
            if before is not None:
                job.memory = before.memory
            job.best_accuracy, job.best_model = accuracy, model
            job.share.release()
            self._set_to_work(job, lambda: None)

    def memory(self) -> ExemplarMemory:
        """Returns the exemplars of the windows so far, for a retraining that begins now."""
        return self._memory

    @contextmanager
    def _beginning(self, command: StartRetraining) -> Iterator[None]:
        """Context that creates a job: reports any error as the job's failure, and wakes waiting orders."""
        try:
            yield
        except UserError as error:
            self._tell_failed(command, str(error))
        except Exception as error:
            self._tell_failed(command, f"{type(error).__name__}: {error}")
        finally:
            with self._begun:
                self._newest_job = max(self._newest_job, command.job)
                self._begun.notify_all()

    def _new_job(
        self,
        command: StartRetraining,
        share_milli: int,
        labels: StreamLabels | None,
        passed: ActivationCache | None,
    ) -> _Job:
        if labels is None:
            raise UserError("there are no labels to train on")
        name = f"retraining/{self._stream.id}"
        handle = self._orders.common.shares.attach(
            ShareJob(name, "retraining", share_milli, self._orders.gpu)
        )
        use = JobUse(handle, command.training_speed, share_milli)
        job = _Job(command, handle, VersionedShare(handle), use, labels, passed, self._memory)
        with self._lock:
            self._job = job
        return job

    def _set_to_work(self, job: _Job, work: Callable[[], None]) -> None:
        threading.Thread(target=self._run, args=(job, work), name="retraining", daemon=True).start()

    def resize(self, job: JobId, share_milli: int, serial: int) -> Resized | None:
        """Changes the share of a running retraining; returns when it holds, None if overtaken."""
        running = self._begun_job(job)
        if running is None:
            return _OVER
        resized = running.share.resize(serial, share_milli)
        running.use.holds(resized)
        return resized

    def stop(self, job: JobId) -> Resized:
        """Stops a retraining at its next batch and returns when it has ended; its best weights are kept."""
        running = self._begun_job(job)
        if running is None:
            return _OVER
        running.stopped.set()
        return running.share.end(running.over)

    def lend(self, job: JobId, version: ModelVersion, adopted: None = None) -> tuple[LentWeights, float]:
        """Shares the best weights so far over CUDA IPC; returns them with their accuracy.

        ``hand_over`` must follow. ``adopted`` only makes Ray call this after a pending ``adopt``.

        Raises:
            LookupError: as of ``hand_over``.
            SmDriverError: the GPU's driver refuses.
        """
        best, accuracy = self._best(job)
        return self._lend(version, best, accuracy), accuracy

    def lend_first(self, weights: bytes) -> LentWeights:
        """Shares the weights that serve first, to test CUDA IPC; ``end_loan`` must follow."""
        return self._lend(self._orders.version, from_bytes(weights), 0.0)

    def end_loan(self, version: ModelVersion, taken: Sequence[Any]) -> tuple[EdgeModel, float] | None:
        """Frees shared weights after their receivers have copied them, failed, or exceeded ``LOAN_S``.

        Args:
            version: of the weights.
            taken: references to the receivers' replies.
        """
        ray.wait(list(taken), num_returns=len(taken), timeout=LOAN_S)
        return None if self._lender is None else self._lender.end(version)

    def hand_over(
        self, job: JobId, version: ModelVersion, taken: Sequence[Any] = (), adopted: None = None
    ) -> tuple[bytes, float]:
        """Returns the best weights so far as bytes, and their accuracy; saves them in the background.

        ``adopted`` only makes Ray call this after a pending ``adopt``. If weights were shared under this
        version, waits until they are ``taken`` and returns exactly those.

        Raises:
            LookupError: the job is not here any more, or has no epoch yet.
        """
        lent = self.end_loan(version, taken) if taken else None
        best, accuracy = lent or self._best(job)
        weights = to_bytes(best)
        # Written in the background: inference waits for the weights, not for the file.
        path = self._orders.common.folder.model(self._stream.id, version)
        saver = threading.Thread(target=save_model, args=(best, path), kwargs={"half": True}, name="saver")
        saver.start()
        self._savers.append(saver)
        return weights, accuracy

    def _best(self, job: JobId) -> tuple[EdgeModel, float]:
        running = self._current(job)
        with self._lock:
            best = None if running is None else running.best_model
            accuracy = 0.0 if running is None else running.best_accuracy
        if best is None:
            raise LookupError(f"retraining {job} of {self._stream.id} has no weights to hand over")
        return best, accuracy

    def _lend(self, version: ModelVersion, model: EdgeModel, accuracy: float) -> LentWeights:
        with self._lock:
            # Opened lazily: it starts CUDA in this process.
            self._lender = self._lender or CudaIpcSender(open_ipc(), self._orders.common.device)
        return self._lender.lend(version, model, accuracy)

    def leave(self) -> None:
        """Stops the job at its next batch and returns when it has ended, while other streams go on."""
        with self._lock:
            job = self._job
        if job is not None:
            job.stopped.set()
            job.share.end(job.over)

    def end(self) -> None:
        """Returns when all weights are on disk."""
        for saver in self._savers:
            saver.join()

    def _run(self, job: _Job, work: Callable[[], None]) -> None:
        peak = self._peaks.begin()
        try:
            work()
        except _StoppedError:
            pass
        except Exception as error:
            end_process_if_gpu_is_lost(error)
            reason = f"{type(error).__name__}: {error}"
            if is_out_of_memory(error):
                self._tell_short_of_memory(job.command, reason)
            self._tell_failed(job.command, reason)
        finally:
            self._tell_peak(job.command, self._peaks.end(peak))
            # Here the error, and the tensors that its traceback held, have been released.
            free_cache()
            try:
                with job.handle.scope():
                    self._remember(job)
            finally:
                job.share.release()
                job.over.set()
                give_back_freed()

    def _train(self, job: _Job, weights: bytes) -> None:
        command = job.command
        start = from_bytes(weights)
        retraining = retraining_of(
            start,
            command.config,
            job.labels,
            job.memory,
            self._settings,
            command.window,
            scope=lambda: self._turn(job),
            passed=job.passed,
        )
        retraining.prepare()
        gpu_s = 0.0
        while not retraining.done:
            result = retraining.run_epoch()
            with self._lock:
                if result.validation_accuracy >= job.best_accuracy:
                    job.best_epoch, job.best_accuracy = result.epoch, result.validation_accuracy
                    job.best_model = retraining.model()
            gpu_s = job.use.worth_s()
            self._tell_epoch(command, result.epoch, result.validation_accuracy, gpu_s)
        self._mailbox.put(RetrainFinished(self._clock.now_us(), command.stream, command.job, gpu_s))

    @contextmanager
    def _turn(self, job: _Job) -> Iterator[None]:
        """Context of each batch: waits for the share, unwinds a stopped job, and counts GPU use."""
        with job.handle.scope():
            if job.stopped.is_set():
                raise _StoppedError
            yield
        job.use.count()

    def _remember(self, job: _Job) -> None:
        with self._lock:
            best = job.best_model
        if best is not None:
            self._memory = job.memory.update(best, job.labels.training.crops)

    def _begun_job(self, job: JobId) -> _Job | None:
        """Waits until the job has begun; returns None if it is over, or never began."""
        with self._begun:
            self._begun.wait_for(lambda: self._newest_job >= job, _START_WITHIN_S)
        return self._current(job)

    def _current(self, job: JobId) -> _Job | None:
        with self._lock:
            return self._job if self._job is not None and self._job.command.job == job else None

    def _tell_epoch(self, command: StartRetraining, epoch: int, accuracy: float, gpu_s: float) -> None:
        now_us = self._clock.now_us()
        self._mailbox.put(RetrainProgress(now_us, command.stream, command.job, epoch, accuracy, gpu_s))

    def _tell_failed(self, command: StartRetraining, reason: str) -> None:
        self._mailbox.put(RetrainFailed(self._clock.now_us(), command.stream, command.job, reason))

    def _tell_short_of_memory(self, command: StartRetraining, reason: str) -> None:
        what = DidNotFit.of(command.config)
        self._mailbox.put(MemoryShort(self._clock.now_us(), command.stream, command.window, what, reason))

    def _tell_peak(self, command: StartRetraining, peak: int | None) -> None:
        if peak is not None:
            self._mailbox.put(MemoryMeasured(self._clock.now_us(), command.stream, command.job, peak))

    def tell_share(self) -> None:
        """Reports the GPU use since the last report, every ``MEASURE_EVERY_S`` seconds."""
        now_s = time.monotonic()
        passed_s = now_s - self._told_s
        if passed_s < MEASURE_EVERY_S:
            return
        self._told_s = now_s
        with self._lock:
            job = self._job
        used_us = 0 if job is None else job.use.untold_us()
        share_milli = round(used_us / passed_s / 1000)
        self._mailbox.put(ShareMeasured(self._clock.now_us(), self._stream.id, Role.RETRAINING, share_milli))
