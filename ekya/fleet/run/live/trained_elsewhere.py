"""Retrainings that really run on servers which lend for them."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ekya.core import commands as cmd
from ekya.core.units import StreamId
from ekya.core.weights import RemoteCheckpoint
from ekya.fleet.policy.loans import Loan, Way
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.elsewhere import Came, Interrupted
from ekya.fleet.run.live.lender import Lender
from ekya.fleet.run.training.bundle_file import TrainingBundle
from ekya.fleet.run.training.protocol import Host, TrainingProgress
from ekya.fleet.run.training.trainer import RemoteTraining

MOVED_WITHIN_US = 30_000_000
"""Time in which a training that has lost its host must be moved to another.

Afterwards it ends, and its progress so far comes home.
"""

TELLS_EVERY_US = 2_000_000
"""Minimum interval of events for a retraining's epochs: preparing weights to serve takes about a second."""

ENDS_WITHIN_S = 5.0
"""Time within which hosts are told of trainings that were stopped before this process ends."""

Gather = Callable[[cmd.StartRetraining], Callable[[], TrainingBundle]]
"""Begins to collect a retraining's inputs; the result, in another thread, waits for them."""

Bring = Callable[[cmd.StartRetraining, Sequence[float], Callable[[], RemoteCheckpoint], bool], None]
"""Callback for the accuracies after each epoch whose weights are home, with what makes the best of these, and
whether it is over."""


@dataclass(slots=True, eq=False)
class _Away:
    """A remote retraining.

    Attributes:
        handle: follows it.
        epochs_home: epochs that were reported to the loop.
        told_us: when they were reported.
        failed: why it ended early; empty otherwise.
        counted_mb: traffic that was reported before, when a host died or it was given up.
        stranded_us: when it lost its host; None where it has one.
    """

    command: cmd.StartRetraining
    handle: RemoteTraining
    epochs_home: int = 0
    told_us: int = 0
    failed: str = ""
    counted_mb: Mapping[Way, float] = field(default_factory=dict)
    stranded_us: int | None = None


class TrainedElsewhere:
    """An ``Awaited`` of the live world. Thread-safe.

    Args:
        site: borrower.
        lenders: servers that may train.
        gather: see ``Gather``.
        bring: see ``Bring``.
        lose_host: called by separate threads for a host that is lost; it moves the trainings there, or fails
            them.
    """

    def __init__(
        self,
        site: SiteName,
        lenders: Mapping[SiteName, Lender],
        gather: Gather,
        bring: Bring,
        lose_host: Callable[[SiteName], None],
    ) -> None:
        self._site, self._lenders, self._gather, self._bring = site, lenders, gather, bring
        self._lose_host = lose_host
        self._lock = threading.RLock()
        self._away: dict[StreamId, _Away] = {}
        self._ending: list[RemoteTraining] = []

    def begin_training(self, command: cmd.StartRetraining, loan: Loan) -> None:
        """Begins a retraining; its thread collects the inputs, since crops come from another process."""
        name, epochs = f"{command.stream}, retraining {command.job}", command.config.epochs
        handle = RemoteTraining(
            name, self._gather(command), epochs, self._host(loan), self._site, self._lose_host
        )
        with self._lock:
            self._away[command.stream] = _Away(command, handle, told_us=loan.offer.now_us)
        handle.start_thread()

    def find_training(self, stream: StreamId) -> RemoteTraining | None:
        """Returns the training of a stream's retraining; None where there is none."""
        with self._lock:
            away = self._away.get(stream)
            return None if away is None else away.handle

    def training_so_far(self, stream: StreamId, now_us: int) -> Interrupted:
        """Returns its progress up to the last epoch whose checkpoint is here."""
        with self._lock:
            away = self._away.get(stream)
            if away is None:
                return Interrupted(1, {})
            now = away.handle.poll()
            moved_mb = self._newly_moved(away, now)
            return Interrupted(max(1, now.planned_epochs - now.epochs_home), moved_mb)

    def continue_training(self, stream: StreamId, loan: Loan) -> None:
        """Continues it from its last checkpoint under the new loan."""
        with self._lock:
            away = self._away.get(stream)
            if away is not None:
                away.handle.move_to(self._host(loan))

    def fail_training(self, stream: StreamId, reason: str, now_us: int) -> None:
        """Marks it as failed; ``take_home`` reports that."""
        with self._lock:
            away = self._away.get(stream)
            if away is not None:
                away.failed = reason

    def stop_training(self, stream: StreamId, now_us: int) -> Mapping[Way, float]:
        """Stops it; its processes end within a step, and their traffic until then is not counted."""
        with self._lock:
            return self._leave(self._away.pop(stream))

    def next_us(self) -> int | None:
        """Returns None: real trainings have no known end."""
        return None

    def take_home(self, now_us: int) -> Sequence[Came]:
        """Delivers checkpoints that have arrived, and ends retrainings that are over."""
        with self._lock:
            waiting = [away for _, away in sorted(self._away.items())]
        return [came for away in waiting if (came := self._come(away, now_us)) is not None]

    def close(self) -> None:
        """Ends all retrainings, and waits until their hosts are told."""
        with self._lock:
            for away in self._away.values():
                self._leave(away)
            self._away.clear()
        for handle in self._ending:
            handle.wait(ENDS_WITHIN_S)

    def _host(self, loan: Loan) -> Host:
        """Returns the host of a loan, with its share."""
        there = self._lenders[loan.host]
        return Host(loan.host, there.loan_id(loan.number), loan.share_milli, there)

    def _come(self, away: _Away, now_us: int) -> Came | None:
        command, handle, failed = away.command, away.handle, away.failed
        now = handle.poll()
        epochs = now.epochs_home
        over = bool(failed) or self._is_over(away, handle, now, now_us)
        news = epochs > away.epochs_home and now_us - away.told_us >= TELLS_EVERY_US
        if news or (over and epochs):
            away.epochs_home, away.told_us = epochs, now_us
            accuracies = [epoch.validation_accuracy for epoch in now.epochs[:epochs]]
            self._bring(command, accuracies, lambda: _best(handle), over)
        if over:
            reason = failed or now.reason or f"it ended after {epochs} epochs"
            # Not every epoch leaves a checkpoint where an accuracy monitor has set fewer.
            shortened = now.state == "done" and now.planned_epochs < command.config.epochs
            return self._ended(away, "" if epochs >= command.config.epochs or shortened else reason)
        return Came(command, False, "", {}) if news else None

    def _is_over(self, away: _Away, handle: RemoteTraining, now: TrainingProgress, now_us: int) -> bool:
        if now.state != "stranded":
            away.stranded_us = None
        elif away.stranded_us is None:
            away.stranded_us = now_us
        elif now_us - away.stranded_us >= MOVED_WITHIN_US:
            handle.stop_training()
        return now.over

    def _ended(self, away: _Away, failed: str) -> Came:
        with self._lock:
            self._away.pop(away.command.stream, None)
            return Came(away.command, True, failed, self._leave(away))

    def _leave(self, away: _Away) -> Mapping[Way, float]:
        """Stops it and returns its traffic that was not reported before."""
        away.handle.stop_training()
        self._ending = [*(one for one in self._ending if not one.poll().over), away.handle]
        return self._newly_moved(away, away.handle.poll())

    def _newly_moved(self, away: _Away, now: TrainingProgress) -> Mapping[Way, float]:
        """Returns traffic that was not reported before, and marks it as reported."""
        before = away.counted_mb
        away.counted_mb = {way: count / 1e6 for way, count in now.sent.items()}
        return {way: mb - before.get(way, 0.0) for way, mb in away.counted_mb.items()}


def _best(handle: RemoteTraining) -> RemoteCheckpoint:
    trained = handle.best_yet()
    if trained is None:
        raise RuntimeError("an epoch was told of that has left no weights")
    return trained
