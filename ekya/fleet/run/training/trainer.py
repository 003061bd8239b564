"""A training on another server: its epochs, moves, and recovery from failures."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ekya.core.errors import UserError
from ekya.core.weights import RemoteCheckpoint
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.view import Strikes
from ekya.fleet.run.calls import CallError, Handle
from ekya.fleet.run.training.homecoming import ALWAYS, Homecoming, RemoteEpochCheckpoint
from ekya.fleet.run.training.protocol import (
    EpochOutcome,
    Failure,
    Host,
    NoProcessError,
    ProcessSource,
    State,
    TrainingBundle,
    TrainingProgress,
)
from ekya.models.edge.checkpoints import to_bytes
from ekya.models.training.trainer import Compute

_LOG = logging.getLogger(__name__)

CHECKPOINTS_PART = 0.1
"""Upper bound of the part of the time that goes to sending checkpoints.

Sending a checkpoint of two blocks takes as long as training an epoch. In the pauses only a new best epoch
makes one; the last epoch always does.
"""

SILENT_S = 60.0
"""A process that does not answer a heartbeat for this long counts as dead."""

_LOOK_S = 0.2
_PING_EVERY_S = 5.0


class _HostLostError(Exception):
    """The host's process died, or failed at its task; the message says so in one line."""


class RemoteTraining:
    """One training, driven by a separate thread. Thread-safe; only ``wait`` blocks.

    When its host is excluded it is stranded until it is moved, and then resumes from its last epoch.

    Args:
        name: for messages.
        bundle: to train.
        host: where it begins.
        processes: source of processes on hosts.
        home: site of its inputs, and destination of checkpoints.
        checkpoints_part: see ``CHECKPOINTS_PART``.
        now_s: a clock that is never set.
    """

    def __init__(
        self,
        name: str,
        bundle: TrainingBundle,
        host: Host,
        processes: ProcessSource,
        home: SiteName,
        checkpoints_part: float = CHECKPOINTS_PART,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._bundle, self._processes, self._home = name, bundle, processes, home
        self._now_s = now_s
        self._lock = threading.Condition()
        self._progress = TrainingProgress("starting", bundle.config.epochs)
        self._next: Host | None = host
        self._stopped = threading.Event()
        self._strikes = Strikes()
        self._checkpoints = Homecoming(self._note_home, checkpoints_part)
        self._thread = threading.Thread(target=self._run, name=f"training {name}", daemon=True)

    def start_thread(self) -> None:
        """Starts its thread."""
        self._thread.start()

    def poll(self) -> TrainingProgress:
        """Returns the progress."""
        with self._lock:
            return self._progress

    def set_epochs(self, epochs: int) -> None:
        """Sets the number of epochs in total: an accuracy monitor's estimate, or γ's again.

        Where at least as many are done, the training ends with the epoch under way.
        """
        if epochs < 1:
            raise ValueError(f"a training has at least one epoch, not {epochs}")
        self._note(planned_epochs=epochs)

    def move_to(self, host: Host) -> None:
        """Continues on another host after the epoch under way, from its checkpoint.

        A stranded training continues immediately. Excluded machines stay excluded.
        """
        with self._lock:
            self._next = host
            self._lock.notify_all()

    def stop_training(self) -> None:
        """Ends the training within a step, or as soon as a checkpoint is home where there is none yet.

        The best epoch at home remains.
        """
        with self._lock:
            self._stopped.set()
            self._lock.notify_all()
        self._checkpoints.stop_transfers()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the end, at most for the timeout; returns whether the training has ended."""
        with self._lock:
            return self._lock.wait_for(lambda: self._progress.over, timeout_s)

    def best_yet(self) -> RemoteCheckpoint | None:
        """Returns the best checkpoint at home, made anew in each call; None before the first epoch."""
        best = self._checkpoints.best
        if best is None:
            return None
        model = self._bundle.make_retraining(Compute()).model_of_snapshot(best.data)
        return RemoteCheckpoint(to_bytes(model), best.accuracy, best.epochs)

    def _run(self) -> None:
        try:
            self._train()
        except UserError as error:
            self._note(state="failed", reason=str(error))
        except Exception as error:
            _LOG.exception("%s fails", self._name)
            self._note(state="failed", reason=f"{type(error).__name__}: {error}")

    def _train(self) -> None:
        wanted = self._ordered(None)
        while (host := self._standing(wanted)) is not None:
            try:
                self._train_on(host)
            except _HostLostError as lost:
                _LOG.warning("%s: %s: %s", self._name, host.site, lost)
                self._strike(host, str(lost))
                self._go_back()
                wanted = host
                continue
            # Without the lock: an order that comes from now on is as late as one after the end.
            if self._stopped.is_set() or self._next is None:
                break
            wanted = self._ordered(host)
        ended: State = "stopped" if self._stopped.is_set() else "done"
        self._note(state=ended)

    def _train_on(self, host: Host) -> None:
        """Trains on a host until the training is over or has to move; its checkpoints are home then."""
        try:
            process = self._processes.take_process(host)
        except NoProcessError as error:
            raise _HostLostError(str(error)) from error
        its = _Process(process, self._now_s)
        try:
            self._begin(host, its)
            self._run_epochs(host, its)
            # Its checkpoints are lost as soon as the process rests.
            if not self._stopped.is_set() or self._checkpoints.best is None:
                self._go_back()
        except BaseException:
            # It is dead, or in an unknown state, and must not be used again.
            process.end_process()
            raise
        self._processes.give_back_process(host, process)

    def _begin(self, host: Host, process: "_Process") -> None:
        newest = self._checkpoints.newest
        snapshot = None if newest is None else newest.data
        self._count_sent(self._home, host.site, self._bundle.nbytes + len(snapshot or b""))
        accuracy = process.ask("begin_training", self._bundle, snapshot, host.share_milli)
        self._note(state="training", **({"start_accuracy": accuracy} if newest is None else {}))

    def _run_epochs(self, host: Host, process: "_Process") -> None:
        while not self._stopped.is_set():
            with self._lock:
                done, planned = len(self._progress.epochs), self._progress.planned_epochs
                if self._next is not None or done >= planned:
                    return
            above = ALWAYS if done + 1 == planned else self._checkpoints.wanted_above
            ended: EpochOutcome | None = process.ask("run_epoch", above, aborts=self._stopped.is_set)
            if ended is None:
                continue
            result = ended.result
            with self._lock:
                now = self._progress
                share_s = now.share_s + ended.took_s * host.share_milli / 1000
                self._note(epochs=(*now.epochs, result), crops=now.crops + ended.crops, share_s=share_s)
            if ended.kept:
                fetch = partial(process.fetch_snapshot, result.epoch)
                there = RemoteEpochCheckpoint(host.site, result.epoch, result.validation_accuracy, fetch)
                self._checkpoints.add_checkpoint(there)

    def _ordered(self, before: Host | None) -> Host:
        """Returns the host of the last order."""
        with self._lock:
            ordered, self._next = self._next, None
            if ordered is None:
                raise RuntimeError("nothing was ordered")
            if before is not None:
                self._note(moves=self._progress.moves + 1)
            return ordered

    def _standing(self, host: Host) -> Host | None:
        """Returns the host; waits for another where it is excluded, None if the training is stopped."""
        while host.machine_id in self._strikes.out:
            reason = f"{self._name}: no host is left to train on ({host.site} failed); give it another"
            _LOG.warning("%s", reason)
            self._note(state="stranded", reason=reason)
            with self._lock:
                self._lock.wait_for(lambda: self._stopped.is_set() or self._next is not None)
            if self._stopped.is_set():
                return None
            self._note(state="starting", reason="")
            host = self._ordered(host)
        return host

    def _strike(self, host: Host, reason: str) -> None:
        there = self._processes.is_there(host.machine_id)
        self._strikes = (
            self._strikes.with_failures(host.machine_id)
            if there
            else self._strikes.with_dead_node(host.machine_id)
        )
        with self._lock:
            epoch, out = len(self._progress.epochs) + 1, host.machine_id in self._strikes.out
            self._note(failures=(*self._progress.failures, Failure(host.site, epoch, reason, out)))

    def _go_back(self) -> None:
        """Resets the progress to the newest checkpoint, which is fetched home first if it is not lost."""
        self._checkpoints.wait_home()
        newest = self._checkpoints.newest
        with self._lock:
            self._note(epochs=self._progress.epochs[: 0 if newest is None else newest.epochs])

    def _note_home(self, checkpoint: RemoteEpochCheckpoint, count: int) -> None:
        self._count_sent(checkpoint.site, self._home, count)
        with self._lock:
            self._note(epochs_home=max(self._progress.epochs_home, checkpoint.epochs))

    def _count_sent(self, origin: SiteName, target: SiteName, count: int) -> None:
        with self._lock:
            sent, way = self._progress.sent, (origin, target)
            self._note(sent={**sent, way: sent.get(way, 0) + count})

    def _note(self, **changes: Any) -> None:
        with self._lock:
            self._progress = replace(self._progress, **changes)
            self._lock.notify_all()


class _Process:
    """A ``TrainingActor`` at work, which is asked for heartbeats.

    Args:
        process: of a host.
        now_s: a clock that is never set.
    """

    def __init__(self, process: Handle, now_s: Callable[[], float]) -> None:
        self._process, self._now_s = process, now_s
        self._ping: Future[Any] | None = None
        self._pinged_s = now_s()

    def ask(self, method: str, *arguments: Any, aborts: Callable[[], bool] = lambda: False) -> Any:
        """Returns a method's result.

        Args:
            method: of the process.
            arguments: of the method.
            aborts: polled; True ends an epoch early.

        Raises:
            _HostLostError: the process died, or the method failed.
            UserError: it found invalid input.
        """
        told, aborted = self._process.call(method, *arguments), False
        while True:
            try:
                answer = told.result(_LOOK_S)
            except TimeoutError:
                self._require_heartbeat()
            except CallError as error:
                raise _HostLostError(str(error)) from error
            else:
                return answer
            if aborts() and not aborted:
                aborted = True
                with suppress(CallError, TimeoutError):
                    # Awaited, so that it does not reach the process's next training.
                    self._process.call("abort_epoch").result(SILENT_S)

    def fetch_snapshot(self, epoch: int) -> bytes:
        """Returns the snapshot of an epoch; raises CallError or TimeoutError where it is lost."""
        return bytes(self._process.call("fetch_snapshot", epoch).result(SILENT_S))

    def _require_heartbeat(self) -> None:
        """Sends a heartbeat request from time to time; raises _HostLostError where one is not answered."""
        now_s = self._now_s()
        if self._ping is None or self._ping.done():
            if now_s - self._pinged_s > _PING_EVERY_S:
                self._ping, self._pinged_s = self._process.call("pid"), now_s
        elif now_s - self._pinged_s > SILENT_S:
            raise _HostLostError(f"no answer for {SILENT_S:g} s")
