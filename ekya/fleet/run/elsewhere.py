"""Tracks retrainings of a server that run on other servers until their last weights are back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ekya.control.protocols import Executor
from ekya.core import commands as cmd
from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Loan, Way


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Progress of a retraining when one of its hosts died.

    Attributes:
        epochs_left: epochs that are in no snapshot at home.
        moved_mb: traffic over each link since the retraining began or continued there.
    """

    epochs_left: int
    moved_mb: Mapping[Way, float]


@dataclass(frozen=True, slots=True)
class Came:
    """News of a remote retraining: weights of more epochs have arrived, or it is over, or both.

    Attributes:
        command: that started it.
        over: nothing more will come.
        failed: why it ended before γ's last epoch; empty otherwise.
        moved_mb: as in ``Interrupted``, where it is over.
    """

    command: cmd.StartRetraining
    over: bool
    failed: str
    moved_mb: Mapping[Way, float]


class Awaited(Protocol):
    """Remote retrainings of one server; each world has an implementation."""

    def begin_training(self, command: cmd.StartRetraining, loan: Loan) -> None:
        """Begins a remote retraining under a loan."""

    def training_so_far(self, stream: StreamId, now_us: int) -> Interrupted:
        """Returns its progress when one of its hosts has died."""

    def continue_training(self, stream: StreamId, loan: Loan) -> None:
        """Continues the rest of it under a new loan."""

    def fail_training(self, stream: StreamId, reason: str, now_us: int) -> None:
        """Fails it: no other server has capacity for the rest."""

    def stop_training(self, stream: StreamId, now_us: int) -> Mapping[Way, float]:
        """Stops it, because its weights are not needed any more, and returns its traffic over each link."""

    def next_us(self) -> int | None:
        """Returns when the next weights or the next failure come; None where that cannot be foreseen."""

    def take_home(self, now_us: int) -> Sequence[Came]:
        """Hands arrived weights to the executor at home, and returns all news once, sorted by stream.

        The executor itself emits the events for epochs and for the end of γ's last one.
        """


class Home(Executor, Protocol):
    """An executor on virtual time that receives weights from other servers."""

    def receive(self, command: cmd.StartRetraining, epochs: int, over: bool) -> None:
        """Receives weights of a retraining's first epochs; they serve from now on if the loop asks for that.

        Args:
            command: the loop's command that started it.
            epochs: of γ, more than before, or the same number where it is ``over``. The weights are of the
                last of them; with γ's last one, of the best epoch not received before.
            over: nothing more will come.
        """


@dataclass(slots=True, eq=False)
class _Foreseen:
    """A remote retraining that goes as its loan foresees.

    Attributes:
        epochs_home: epochs that the executor has received.
        failed_us: when it failed; None where it has not.
    """

    command: cmd.StartRetraining
    loan: Loan
    epochs_home: int = 0
    failed: str = ""
    failed_us: int | None = None

    def next_home(self) -> tuple[int, int]:
        """Returns when the next epochs arrive at home, and how many epochs of γ are home then."""
        before = self.command.config.epochs - self.loan.offer.epochs
        at_us, epochs = self.loan.next_home(max(self.epochs_home - before, 0))
        return at_us, before + epochs

    def moved_mb(self, now_us: int) -> Mapping[Way, float]:
        """Returns the traffic since it began or continued; none after a failure, which was counted before."""
        return {} if self.failed else self.loan.moved_mb(now_us)


class AsForeseen:
    """Remote retrainings on virtual time, which take exactly as long as agreed. An ``Awaited``.

    Args:
        home: executor that receives the weights.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._waiting: dict[StreamId, _Foreseen] = {}

    def begin_training(self, command: cmd.StartRetraining, loan: Loan) -> None:
        """Begins a remote retraining; its end is given by the loan."""
        self._waiting[command.stream] = _Foreseen(command, loan)

    def training_so_far(self, stream: StreamId, now_us: int) -> Interrupted:
        """Returns the progress that the loan foresees at that time."""
        loan = self._waiting[stream].loan
        epochs_home, _ = loan.came_home(now_us)
        return Interrupted(loan.offer.epochs - epochs_home, loan.moved_mb(now_us))

    def continue_training(self, stream: StreamId, loan: Loan) -> None:
        self._waiting[stream].loan = loan

    def fail_training(self, stream: StreamId, reason: str, now_us: int) -> None:
        """Fails it now; weights that have arrived before are kept."""
        waiting = self._waiting[stream]
        waiting.failed, waiting.failed_us = reason, now_us

    def stop_training(self, stream: StreamId, now_us: int) -> Mapping[Way, float]:
        """Stops it and returns its traffic so far."""
        return self._waiting.pop(stream).moved_mb(now_us)

    def next_us(self) -> int | None:
        """Returns the time of the first arrival or failure."""
        return min(
            (
                waiting.next_home()[0] if waiting.failed_us is None else waiting.failed_us
                for waiting in self._waiting.values()
            ),
            default=None,
        )

    def take_home(self, now_us: int) -> Sequence[Came]:
        """Delivers snapshots that have arrived, and ends retrainings that are complete or have failed."""
        came = [self._deliver(waiting, now_us) for _, waiting in sorted(self._waiting.items())]
        news = [one for one in came if one is not None]
        for one in news:
            if one.over:
                del self._waiting[one.command.stream]
        return news

    def _deliver(self, waiting: _Foreseen, now_us: int) -> Came | None:
        command, until_us, news = waiting.command, now_us, False
        if waiting.failed_us is not None:
            until_us = min(now_us, waiting.failed_us)
        whole = False
        while not whole and waiting.next_home()[0] <= until_us:
            waiting.epochs_home = waiting.next_home()[1]
            whole, news = waiting.epochs_home == command.config.epochs, True
            self._home.receive(command, waiting.epochs_home, whole)
        if waiting.failed and not whole:
            if waiting.epochs_home:
                self._home.receive(command, waiting.epochs_home, True)
            return Came(command, True, waiting.failed, {})
        return Came(command, whole, "", waiting.moved_mb(now_us) if whole else {}) if news else None
