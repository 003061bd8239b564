"""Retraining of one stream: SGD at its share, one job after the other."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ekya.core import events as ev
from ekya.core.commands import StartRetraining
from ekya.core.errors import UserError
from ekya.core.gpus import DidNotFit
from ekya.core.units import JobId, ModelVersion
from ekya.gpu.backends.backend import Resized, ShareJob
from ekya.models.edge.checkpoints import from_bytes, save_model, to_bytes
from ekya.models.edge.device_memory import (
    MemoryPeaks,
    end_process_if_gpu_is_lost,
    free_cache,
    is_out_of_memory,
)
from ekya.models.edge.model import EdgeModel
from ekya.models.training.answered import Answered
from ekya.models.training.exemplars import MOST_EXEMPLARS, ExemplarMemory
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.setup import stream_setup
from ekya.pipeline.stream_preparation import retraining_of
from ekya.runtime.actors.actor_kinds import StreamActorConfig
from ekya.runtime.actors.actor_messages import Mailbox, RunClock
from ekya.runtime.actors.retraining_pictures import RetrainingPictures
from ekya.runtime.shares.job_share import JobShare, JobStoppedError, NewestJob
from ekya.system.host import give_back_freed

MEASURE_EVERY_S = 5.0

_OVER = Resized(0, 0, "the retraining is over")


@dataclass(frozen=True, slots=True, eq=False)
class _Best:
    """Weights with the highest accuracy so far, and their answers."""

    model: EdgeModel
    accuracy: float
    answered: Answered | None = None


@dataclass(slots=True, eq=False)
class _Job:
    """A retraining and the thread that runs it.

    Attributes:
        memory: exemplars of the windows before.
        best: None before the first epoch.
        keeps: whether pictures are kept of it at its end.
        thread: that runs it; None if it was trained elsewhere.
        before: answers of the model that served, on the validation labels; None where they are not kept.
    """

    command: StartRetraining
    share: JobShare
    labels: StreamLabels
    memory: ExemplarMemory
    best: _Best | None = None
    keeps: bool = True
    thread: threading.Thread | None = None
    before: Answered | None = None


class StreamRetraining:
    """Retraining of one stream. Methods may be called by several threads; each job has a separate one.

    Args:
        config: of the stream.
        mailbox: for events; shared with other streams of the process.
        peaks: of the process's GPU memory.

    Attributes:
        is_leaving: true from the call of ``stop_and_save`` on.
    """

    def __init__(self, config: StreamActorConfig, mailbox: Mailbox, peaks: MemoryPeaks) -> None:
        self._config = config
        self._peaks = peaks
        fleet = config.common.fleet
        self._stream = fleet.streams[config.place]
        setup = stream_setup(fleet, config.place, 1.0, config.common.seed)
        self._settings = replace(setup.settings, device=config.common.device)
        self._mailbox = mailbox
        self._jobs: NewestJob[_Job] = NewestJob()
        self._pictures = RetrainingPictures(config.common.folder, self._stream.id)
        self._memory = self._pictures.read_exemplars(ExemplarMemory(MOST_EXEMPLARS[fleet.edge.task]))
        self._savers: list[threading.Thread] = []
        self._clock = RunClock(time.monotonic_ns())
        self._reported_s = time.monotonic()
        self.is_leaving = False

    def start_run(self, started_monotonic_ns: int) -> None:
        """Sets the start of the run."""
        self._clock = RunClock(started_monotonic_ns)

    def start_retraining(
        self,
        command: StartRetraining,
        weights: bytes,
        labels: StreamLabels | None,
        serial: int,
        after: None = None,
    ) -> Resized | None:
        """Begins a retraining from the weights that serve and returns its share; emits an event every epoch.

        Args:
            command: to begin.
            weights: that serve.
            labels: to train on.
            serial: of the order of its share.
            after: makes Ray call this after a pending ``admit_stream``.
        """
        with self._beginning(command):
            job = self._new_job(command, command.share_milli, labels)
            resized = job.share.resize(serial, command.share_milli)
            job.thread = threading.Thread(
                target=self._run, args=(job, weights), name="retraining", daemon=True
            )
            job.thread.start()
            return resized
        return None

    def receive_remote_checkpoint(
        self, command: StartRetraining, weights: bytes, accuracy: float, labels: StreamLabels | None
    ) -> None:
        """Receives the best checkpoint of a remote retraining so far, and makes a job of it.

        It needs no share. It is called again when the remote retraining has a better checkpoint.
        """
        with self._beginning(command):
            model, before = from_bytes(weights), self._jobs.get_job(command.job)
            job = self._new_job(command, 0, labels)
            if before is not None:
                job.memory = before.memory
            job.best = _Best(model, accuracy)
            self._finish_job(job)

    def exemplar_memory(self) -> ExemplarMemory:
        """Returns the exemplars of the windows so far, for a retraining that begins now."""
        return self._memory

    def forget_pictures(self) -> None:
        """Forgets exemplars and validations, and deletes their files; a retraining in progress keeps none."""
        running = self._jobs.job
        if running is not None:
            running.keeps = False
        self._delete()

    def _delete(self) -> None:
        self._memory = ExemplarMemory(self._memory.budget)
        self._pictures.delete_pictures()

    @contextmanager
    def _beginning(self, command: StartRetraining) -> Iterator[None]:
        """Context that creates a job: reports any error as the job's failure, and wakes waiting commands."""
        try:
            yield
        except Exception as error:
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            self._report_failed(command, reason)
        finally:
            self._jobs.mark_begun(command.job)

    def _new_job(self, command: StartRetraining, share_milli: int, labels: StreamLabels | None) -> _Job:
        if labels is None:
            raise UserError("there are no labels to train on")
        name = f"retraining/{self._stream.id}"
        handle = self._config.common.shares.attach_job(
            ShareJob(name, "retraining", share_milli, self._config.gpu)
        )
        share = JobShare(handle, command.training_speed, share_milli)
        job = _Job(command, share, labels, self._memory)
        # Of two orders that cross, the older finds a newer job here; its share would never be released.
        try:
            self._jobs.replace_job(command.job, job)
        except LookupError:
            share.finish_job()
            raise
        return job

    def resize_retraining(self, job: JobId, share_milli: int, serial: int) -> Resized | None:
        """Changes the share of a running retraining; returns when it holds, None if overtaken."""
        running = self._jobs.wait_begun(job)
        return _OVER if running is None else running.share.resize(serial, share_milli)

    def stop_retraining(self, job: JobId) -> Resized:
        """Stops a retraining at its next batch and returns when it has ended; its best weights are kept."""
        running = self._jobs.wait_begun(job)
        return _OVER if running is None else running.share.stop_job()

    def send_checkpoint(self, job: JobId, version: ModelVersion, after: None = None) -> tuple[bytes, float]:
        """Returns the best checkpoint so far and its accuracy; saves it in the background.

        ``after`` only makes Ray call this after a pending ``receive_remote_checkpoint``.

        Raises:
            LookupError: the job is not here any more, or has no epoch yet.
        """
        best = self._best(job)
        # Written in the background: inference waits for the weights, not for the file.
        path = self._config.common.folder.model(self._stream.id, version)
        saver = threading.Thread(
            target=save_model, args=(best.model, path), kwargs={"half": True}, name="saver"
        )
        saver.start()
        self._savers = [*(one for one in self._savers if one.is_alive()), saver]
        return to_bytes(best.model), best.accuracy

    def _best(self, job: JobId) -> _Best:
        running = self._jobs.get_job(job)
        best = None if running is None else running.best
        if best is None:
            raise LookupError(f"retraining {job} of {self._stream.id} has no weights to send")
        return best

    def stop_and_save(self) -> None:
        """Stops the job at its next batch; returns when all that is kept of it is on disk."""
        self.is_leaving, running = True, self._jobs.job
        if running is not None:
            running.share.stop_job()
            if running.thread is not None:
                running.thread.join()
        self.finish_saving()

    def finish_saving(self) -> None:
        """Returns when all weights are on disk."""
        for saver in self._savers:
            saver.join()

    def _run(self, job: _Job, weights: bytes) -> None:
        command, peak = job.command, self._peaks.start_job()
        try:
            self._train(job, weights)
        except JobStoppedError:
            pass
        except Exception as error:
            end_process_if_gpu_is_lost(error)
            reason = f"{type(error).__name__}: {error}"
            if is_out_of_memory(error):
                what = DidNotFit.from_config(command.config)
                self._mailbox.put(
                    ev.MemoryShort(self._clock.now_us(), command.stream, command.window, what, reason)
                )
            self._report_failed(command, reason)
        finally:
            peak_bytes = self._peaks.end_job(peak)
            if peak_bytes is not None:
                self._mailbox.put(
                    ev.MemoryMeasured(self._clock.now_us(), command.stream, command.job, peak_bytes)
                )
            # Here the error, and the tensors that its traceback held, have been released.
            free_cache()
            give_back_freed()
            self._finish_job(job)

    def _finish_job(self, job: _Job) -> None:
        """Releases the share of a job that computes no more, and keeps its exemplars and answers."""
        best, before = job.best, job.before
        try:
            if best is not None and job.keeps:
                self._memory = job.memory.update_exemplars(job.labels.training.examples)
        finally:
            job.share.finish_job()
        self._pictures.keep_exemplars(self._memory)
        if best is not None and best.answered is not None and before is not None:
            validation = job.labels.validation.examples
            self._pictures.keep_validation(job.command.job, before, best.answered, validation)
        if not job.keeps:
            self._delete()  # it was forgotten, perhaps while this was written

    def _train(self, job: _Job, weights: bytes) -> None:
        command = job.command
        retraining = retraining_of(
            from_bytes(weights),
            command.config,
            job.labels,
            job.memory,
            self._settings,
            command.window,
            scope=job.share.batch,
        )
        retraining.prepare_training()
        of_service = self._config.common.keeps_hours
        job.before = retraining.answered_before() if of_service else None
        gpu_s = 0.0
        while not retraining.done:
            result = retraining.run_epoch()
            if job.best is None or result.validation_accuracy >= job.best.accuracy:
                answered = retraining.answered() if of_service else None
                job.best = _Best(retraining.model(), result.validation_accuracy, answered)
            gpu_s = job.share.worth_s()
            self._mailbox.put(
                ev.RetrainProgress(
                    self._clock.now_us(),
                    command.stream,
                    command.job,
                    result.epoch,
                    result.validation_accuracy,
                    gpu_s,
                )
            )
        self._mailbox.put(ev.RetrainFinished(self._clock.now_us(), command.stream, command.job, gpu_s))

    def _report_failed(self, command: StartRetraining, reason: str) -> None:
        self._mailbox.put(ev.RetrainFailed(self._clock.now_us(), command.stream, command.job, reason))

    def report_share(self) -> None:
        """Reports the GPU use since the last report, every ``MEASURE_EVERY_S`` seconds."""
        now_s = time.monotonic()
        passed_s = now_s - self._reported_s
        if passed_s < MEASURE_EVERY_S:
            return
        self._reported_s = now_s
        job = self._jobs.job
        used_us = 0 if job is None else job.share.unreported_us()
        share_milli = round(used_us / passed_s / 1000)
        self._mailbox.put(
            ev.ShareMeasured(self._clock.now_us(), self._stream.id, ev.Role.RETRAINING, share_milli)
        )
