"""A training on another server, as its home follows it: its epochs, checkpoints, moves and failures."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ekya.core.errors import UserError
from ekya.core.weights import RemoteCheckpoint
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.training.bundle_file import TrainingBundle, pack_bundle
from ekya.fleet.run.training.protocol import (
    MOST_ATTEMPTS,
    CallError,
    GoneError,
    Host,
    LentProgress,
    State,
    TrainingProgress,
)
from ekya.models.edge.checkpoints import to_bytes
from ekya.models.training.trainer import Compute

_LOG = logging.getLogger(__name__)

CHECKPOINTS_PART = 0.1
"""Upper bound of the part of the time that goes to fetching checkpoints.

Sending a checkpoint of two blocks takes as long as training an epoch. The last one is always fetched.
"""

AWAY_S = 5.0
"""A host that is not reached for this long is lost."""

_LOOK_S = 0.3


class _HostLostError(Exception):
    """The host is not reached, has lost too many processes, or does not know the training any more."""


class RemoteTraining:
    """One training, followed by a separate thread. Thread-safe; only ``wait`` blocks.

    When its host is lost it is stranded until it is moved, and then goes on from its best checkpoint at home.

    Args:
        name: for messages.
        gather: waits for what is needed; called by its thread.
        epochs: of γ.
        host: where it begins.
        home: site of its inputs, and destination of checkpoints.
        lost: called, by its thread, for a host that is lost.
        now_s: a clock that is never set.
    """

    def __init__(
        self,
        name: str,
        gather: Callable[[], TrainingBundle],
        epochs: int,
        host: Host,
        home: SiteName,
        lost: Callable[[SiteName], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._gather, self._epochs = name, gather, epochs
        self._home, self._lost, self._now_s = home, lost, now_s
        self._bundle: TrainingBundle | None = None
        self._lock = threading.Condition()
        self._progress = TrainingProgress("starting", epochs)
        self._next: Host | None = host
        self._stopped = threading.Event()
        self._best: RemoteCheckpoint | None = None
        self._best_digest, self._rests_until_s = "", 0.0
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
        """Continues on another host, from its best checkpoint; a stranded training immediately."""
        with self._lock:
            self._next = host
            self._lock.notify_all()

    def stop_training(self) -> None:
        """Ends the training. The best epoch at home remains."""
        with self._lock:
            self._stopped.set()
            self._lock.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the end, at most for the timeout; returns whether the training has ended."""
        with self._lock:
            return self._lock.wait_for(lambda: self._progress.over, timeout_s)

    def best_yet(self) -> RemoteCheckpoint | None:
        """Returns the best checkpoint at home, made anew in each call; None before the first epoch."""
        best = self._best
        if best is None or self._bundle is None:
            return None
        model = self._bundle.make_retraining(Compute()).model_of_snapshot(best.weights)
        return replace(best, weights=to_bytes(model))

    def _run(self) -> None:
        try:
            self._bundle = self._gathered()
            self._train(self._bundle)
        except (UserError, CallError) as error:
            self._note(state="failed", reason=str(error))
        except Exception as error:
            _LOG.exception("%s fails", self._name)
            self._note(state="failed", reason=f"{type(error).__name__}: {error}")

    def _gathered(self) -> TrainingBundle:
        try:
            return self._gather()
        except (ValueError, LookupError, TimeoutError) as error:
            raise CallError(str(error) or type(error).__name__) from error

    def _train(self, bundle: TrainingBundle) -> None:
        while (host := self._ordered()) is not None:
            try:
                self._train_on(host, bundle)
            except _HostLostError as lost:
                if self._stopped.is_set():
                    break
                _LOG.warning("%s: %s", self._name, lost)
                self._strand(host, str(lost))
                self._lost(host.site)
            else:
                if self._stopped.is_set() or self._next is None:
                    break
            finally:
                host.there.end_training(host.loan)
        ended: State = "stopped" if self._stopped.is_set() else "done"
        self._note(state=ended)

    def _ordered(self) -> Host | None:
        """Waits for the next host; None if the training is stopped."""
        with self._lock:
            self._lock.wait_for(lambda: self._stopped.is_set() or self._next is not None)
            ordered, self._next = self._next, None
            if self._stopped.is_set():
                return None
            self._note(state="starting", reason="")
            return ordered

    def _train_on(self, host: Host, bundle: TrainingBundle) -> None:
        """Follows the training on a host until it is over or has to move; its checkpoint is home then."""
        home = 0 if self._best is None else self._best.epoch
        self._note(epochs=self._progress.epochs[:home], epochs_home=home)
        before, snapshot = self._progress, None if self._best is None else self._best.weights
        packed = pack_bundle(replace(bundle, snapshot=snapshot))
        self._count_sent(self._home, host.site, len(packed))
        self._reach(host.there.begin_training, host.loan, packed)
        del packed
        planned, begins_anew = self._epochs, before.start_accuracy is None
        while True:
            wanted = self._progress.planned_epochs
            if wanted != planned:
                self._reach(host.there.set_epochs, host.loan, wanted)
                planned = wanted
            told: LentProgress = self._reach(host.there.read_progress, host.loan)
            self._follow(before, told, host, begins_anew)
            leaves = told.over or self._stopped.is_set() or self._next is not None
            if told.best not in ("", self._best_digest) and (leaves or self._now_s() >= self._rests_until_s):
                self._bring_home(told, host, needed=told.over)
            if told.best in ("", self._best_digest) and told.epochs:
                self._note(epochs_home=len(self._progress.epochs))
            if told.state == "failed" and len(told.failures) >= MOST_ATTEMPTS:
                raise _HostLostError(f"{host.site}: {told.reason}")
            if told.state == "failed":
                raise CallError(f"{host.site}: {told.reason}")
            if leaves:
                return
            with self._lock:
                self._lock.wait_for(lambda: self._stopped.is_set() or self._next is not None, _LOOK_S)

    def _follow(self, before: TrainingProgress, told: LentProgress, host: Host, begins_anew: bool) -> None:
        """Notes what a host tells of its part of the training."""
        failures = (f"{host.site}: {reason}" for reason in told.failures)
        started: dict[str, Any] = {"start_accuracy": told.start_accuracy} if begins_anew else {}
        self._note(
            state="starting" if told.start_accuracy is None else "training",
            epochs=(*before.epochs, *told.epochs),
            failures=(*before.failures, *failures),
            crops=before.crops + told.crops,
            share_s=before.share_s + told.took_s * host.share_milli / 1000,
            **started,
        )

    def _bring_home(self, told: LentProgress, host: Host, needed: bool) -> None:
        began_s, snapshot = self._now_s(), b""
        reach = self._reach if needed else _once
        try:
            snapshot = reach(host.there.fetch_checkpoint, host.loan, told.best)
        except CallError as error:
            # A better one may have come meanwhile; a later look asks for that.
            _LOG.warning("%s: %s", self._name, error)
        self._rests_until_s = self._now_s() + (self._now_s() - began_s) * (1.0 / CHECKPOINTS_PART - 1.0)
        if snapshot:
            accuracy = {one.epoch: one.validation_accuracy for one in told.epochs}[told.best_epoch]
            self._best, self._best_digest = RemoteCheckpoint(snapshot, accuracy, told.best_epoch), told.best
            self._count_sent(host.site, self._home, len(snapshot))

    def _reach(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Returns what a call returns; tries again until the host is lost."""
        since_s = self._now_s()
        while True:
            try:
                return call(*arguments)
            except GoneError as error:
                raise _HostLostError(str(error)) from error
            except CallError as error:
                if self._stopped.is_set() or self._now_s() - since_s > AWAY_S:
                    raise _HostLostError(str(error)) from error
            self._stopped.wait(_LOOK_S)

    def _strand(self, host: Host, reason: str) -> None:
        with self._lock:
            now = self._progress
            why = f"{self._name}: {host.site} is lost; it waits for another host"
            self._note(state="stranded", reason=why, failures=(*now.failures, f"{host.site}: {reason}"))

    def _count_sent(self, origin: SiteName, target: SiteName, count: int) -> None:
        with self._lock:
            sent, way = self._progress.sent, (origin, target)
            self._note(sent={**sent, way: sent.get(way, 0) + count})

    def _note(self, **changes: Any) -> None:
        with self._lock:
            self._progress = replace(self._progress, **changes)
            self._lock.notify_all()


def _once(call: Callable[..., Any], *arguments: Any) -> Any:
    return call(*arguments)
