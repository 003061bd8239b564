"""Retrainings of a server that run on others: what it knows of them until their last weights are back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ekya.control.protocols import Executor
from ekya.core import commands as cmd
from ekya.core.ids import StreamId
from ekya.fleet.policy.loans import Loan, Way


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Where a retraining stood when a host died.

    Attributes:
        epochs_left: that no snapshot at home has seen.
        moved_mb: that has crossed each link since it began, or went on, there.
    """

    epochs_left: int
    moved_mb: Mapping[Way, float]


@dataclass(frozen=True, slots=True)
class Came:
    """What there is new of one: weights of more epochs are here, or it is over, or both.

    Attributes:
        command: what had asked for it.
        over: nothing more will come.
        failed: why that is before γ's last epoch; empty otherwise.
        moved_mb: where it is over, as of ``Interrupted``.
    """

    command: cmd.StartRetraining
    over: bool
    failed: str
    moved_mb: Mapping[Way, float]


class Awaited(Protocol):
    """All of a server's; each world has its own."""

    def begin(self, command: cmd.StartRetraining, loan: Loan) -> None:
        """One begins, as it was agreed."""

    def interrupted(self, stream: StreamId, now_us: int) -> Interrupted:
        """A host of it has died."""

    def go_on(self, stream: StreamId, loan: Loan) -> None:
        """The rest of it runs there."""

    def fail(self, stream: StreamId, reason: str, now_us: int) -> None:
        """Nobody has room for the rest."""

    def stop(self, stream: StreamId, now_us: int) -> Mapping[Way, float]:
        """Nobody waits for it any more; what it has moved."""

    def next_us(self) -> int | None:
        """When more of one comes, where that is known."""

    def take_home(self, now_us: int) -> Sequence[Came]:
        """Hands the executor at home what is here by now, and says once what is new, by stream.

        The executor tells of epochs, and of the end of γ's last one.
        """


class Home(Executor, Protocol):
    """An executor of a world of virtual time, to which weights come from elsewhere."""

    def receive(self, command: cmd.StartRetraining, epochs: int, over: bool) -> None:
        """Weights of a retraining's first epochs are here, and serve from now on if they are asked for.

        Args:
            command: what the loop had asked for.
            epochs: of γ, more than before; or as many, where it is ``over``. The last of them is here; with
                γ's last one it is the best of those that were not.
            over: nothing more will come.
        """


@dataclass(slots=True, eq=False)
class _Foreseen:
    """One of them.

    Attributes:
        epochs_home: that the executor has received.
        failed_us: when it failed; None where it has not.
    """

    command: cmd.StartRetraining
    loan: Loan
    epochs_home: int = 0
    failed: str = ""
    failed_us: int | None = None

    def next_home(self) -> tuple[int, int]:
        """When more epochs are home, and how many of γ then."""
        before = self.command.config.epochs - self.loan.offer.epochs
        at_us, epochs = self.loan.next_home(max(self.epochs_home - before, 0))
        return at_us, before + epochs

    def moved_mb(self, now_us: int) -> Mapping[Way, float]:
        """Since it began, or went on; one that has failed was told of when its host died."""
        return {} if self.failed else self.loan.moved_mb(now_us)


class AsForeseen:
    """On virtual time everything takes as long as was agreed. An ``Awaited``.

    Args:
        home: is handed what comes.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._waiting: dict[StreamId, _Foreseen] = {}

    def begin(self, command: cmd.StartRetraining, loan: Loan) -> None:
        """Its end is known."""
        self._waiting[command.stream] = _Foreseen(command, loan)

    def interrupted(self, stream: StreamId, now_us: int) -> Interrupted:
        """What the loan says of that time."""
        loan = self._waiting[stream].loan
        epochs_home, _ = loan.came_home(now_us)
        return Interrupted(loan.offer.epochs - epochs_home, loan.moved_mb(now_us))

    def go_on(self, stream: StreamId, loan: Loan) -> None:
        """It comes as the new loan says."""
        self._waiting[stream].loan = loan

    def fail(self, stream: StreamId, reason: str, now_us: int) -> None:
        """It ends now, with what is home by then."""
        waiting = self._waiting[stream]
        waiting.failed, waiting.failed_us = reason, now_us

    def stop(self, stream: StreamId, now_us: int) -> Mapping[Way, float]:
        """What it has moved by then."""
        return self._waiting.pop(stream).moved_mb(now_us)

    def next_us(self) -> int | None:
        """The first homecoming, or failure."""
        return min(
            (
                waiting.next_home()[0] if waiting.failed_us is None else waiting.failed_us
                for waiting in self._waiting.values()
            ),
            default=None,
        )

    def take_home(self, now_us: int) -> Sequence[Came]:
        """Those of which a snapshot is here, and those whose time has come."""
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
