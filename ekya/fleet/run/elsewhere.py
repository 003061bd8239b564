"""Retrainings of a server that run on others: what it knows of them until their weights are back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

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
class Ended:
    """One whose weights are here now, or will never come.

    Attributes:
        command: what had asked for it.
        failed: why there are none; empty where there are.
        moved_mb: as of ``Interrupted``.
    """

    command: cmd.StartRetraining
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
        """When the next one ends, where that is known."""

    def take_ended(self, now_us: int) -> Sequence[Ended]:
        """Those that have ended by now, each once, by stream."""


@dataclass(slots=True, eq=False)
class _Foreseen:
    command: cmd.StartRetraining
    loan: Loan
    ends_us: int
    failed: str = ""

    def moved_mb(self, now_us: int) -> Mapping[Way, float]:
        """Since it began, or went on; one that has failed was told of when its host died."""
        return {} if self.failed else self.loan.moved_mb(now_us)


class AsForeseen:
    """On virtual time everything takes as long as was agreed. An ``Awaited``."""

    def __init__(self) -> None:
        self._waiting: dict[StreamId, _Foreseen] = {}

    def begin(self, command: cmd.StartRetraining, loan: Loan) -> None:
        """Its end is known."""
        self._waiting[command.stream] = _Foreseen(command, loan, loan.arrives_us)

    def interrupted(self, stream: StreamId, now_us: int) -> Interrupted:
        """What the loan says of that time."""
        loan = self._waiting[stream].loan
        epochs_home, _ = loan.came_home(now_us)
        return Interrupted(loan.offer.epochs - epochs_home, loan.moved_mb(now_us))

    def go_on(self, stream: StreamId, loan: Loan) -> None:
        """It ends as the new loan says."""
        waiting = self._waiting[stream]
        waiting.loan, waiting.ends_us = loan, loan.arrives_us

    def fail(self, stream: StreamId, reason: str, now_us: int) -> None:
        """It ends now."""
        waiting = self._waiting[stream]
        waiting.ends_us, waiting.failed = now_us, reason

    def stop(self, stream: StreamId, now_us: int) -> Mapping[Way, float]:
        """What it has moved by then."""
        return self._waiting.pop(stream).moved_mb(now_us)

    def next_us(self) -> int | None:
        """The first end."""
        return min((waiting.ends_us for waiting in self._waiting.values()), default=None)

    def take_ended(self, now_us: int) -> Sequence[Ended]:
        """Those whose time has come."""
        over = sorted(stream for stream, waiting in self._waiting.items() if waiting.ends_us <= now_us)
        ended = []
        for stream in over:
            waiting = self._waiting.pop(stream)
            ended.append(Ended(waiting.command, waiting.failed, waiting.moved_mb(now_us)))
        return ended
