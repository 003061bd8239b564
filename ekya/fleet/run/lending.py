"""Executor of a server in a fleet: lends shares to others' jobs, and follows its own jobs elsewhere.

With it is what the coordinator calls of a server, and what it answers.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ekya.control.protocols import Batch, Executor
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Loan, Way
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.elsewhere import Awaited, Interrupted


@dataclass(frozen=True, slots=True)
class Lent:
    """A share of this server that a job of another server holds."""

    share_milli: int
    from_us: int
    to_us: int


LoanId = int | str
"""Number of a loan in a fleet with one coordinator, or its id among services."""


class Lends(Protocol):
    """A server that lends, as the coordinator sees it."""

    def spare_room(self, now_us: int, until_us: int) -> Room | None:
        """Returns what it could lend between the two times, with what it lends already; None: nothing."""

    def lend_share(self, number: LoanId, lent: Lent) -> bool:
        """Asks it to lend a share under this loan number; returns whether it does."""

    def take_back_share(self, number: LoanId, at_us: int) -> None:
        """Returns a lent share to the server before the loan's end."""


class Borrows(Protocol):
    """A server that borrows, as the coordinator sees it."""

    def grant_loan(self, loan: Loan) -> None:
        """Gives it a loan for an offer that it has left open; it plans again and starts or gives it up."""

    def training_so_far(self, stream: StreamId, now_us: int) -> Interrupted:
        """Returns the progress of one of its remote retrainings."""

    def continue_training(self, stream: StreamId, loan: Loan) -> None:
        """Continues the rest of that retraining under the new loan."""

    def fail_training(self, stream: StreamId, reason: str, now_us: int) -> None:
        """Ends that retraining; what has arrived of it counts."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a server's offers.

    Attributes:
        loan: for one of the offers; None where no loan pays.
        why_not: reasons of the refused offers, by stream; empty where no server could be asked.
    """

    loan: Loan | None = None
    why_not: Mapping[StreamId, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Made:
    """A loan and its outcome.

    Attributes:
        number: of the loan.
        loan: as it was agreed.
        among: number of offers, its own included, that were open when it was decided on.
        outcome: empty while the loan lasts; then how it ended.
        over_us: when it ended.
        moved_mb: traffic over each link.
        costs: loss of the hosts' streams, in accuracy times seconds, as foreseen when it was made.
        came: gain of its stream in the same unit; None before it is known.
        serves_after_us: as in ``Gains``.
    """

    number: int
    loan: Loan
    among: int = 1
    outcome: str = ""
    over_us: int = 0
    moved_mb: Mapping[Way, float] = field(default_factory=dict)
    costs: float = 0.0
    came: float | None = None
    serves_after_us: int | None = None


ARRIVED, GIVEN_UP = "arrived", "given up"

Over = Callable[[StreamId, int, str, Mapping[Way, float]], None]
"""Callback for the end of a remote retraining: stream, time, outcome, traffic over each link."""


@dataclass(slots=True, eq=False)
class _Expected:
    """A loan whose retraining has not begun yet.

    Attributes:
        granted: no plan has heard of it yet. Otherwise the retraining begins in this step.
        failed: why it cannot begin any more; empty otherwise.
    """

    loan: Loan
    granted: bool = False
    failed: str = ""


class LendingExecutor:
    """Wraps an executor of any world and adds the events that other servers cause; ``Lends`` and ``Borrows``.

    ``wait`` and ``execute`` belong to the loop's thread; everything else may be called from other threads.

    Args:
        inner: carries out the commands for this server.
        awaited: this server's remote retrainings.
        over: see ``Over``.
        spare_room: returns what the server could lend between two times; None: nothing.
        listens_every_us: how often ``wait`` polls for news of remote retrainings; None where none can come
            during a wait.
    """

    def __init__(
        self,
        inner: Executor,
        awaited: Awaited,
        over: Over,
        spare_room: Callable[[int, int], Room | None] = lambda now_us, until_us: None,
        listens_every_us: int | None = None,
    ) -> None:
        self._inner = inner
        self._awaited = awaited
        self._over, self.spare_room = over, spare_room
        self._listens_every_us = listens_every_us
        self._lock = threading.RLock()
        self._lent: dict[LoanId, Lent] = {}
        self._told_milli = 0
        self._expected: dict[StreamId, _Expected] = {}
        self._away: dict[StreamId, Loan] = {}
        self._ask_again = False
        self._stop_us: int | None = None
        self.now_us = 0

    def lend_share(self, number: LoanId, lent: Lent) -> bool:
        """Lends a share to another server's job for a time; returns True."""
        with self._lock:
            self._lent[number] = lent
        return True

    def take_back_share(self, number: LoanId, at_us: int) -> None:
        """Ends a loan of this server's share before its time, because the job is over."""
        with self._lock:
            lent = self._lent.get(number)
            if lent is not None:
                self._lent[number] = replace(lent, to_us=min(lent.to_us, at_us))

    def borrowed_loans(self) -> list[Loan]:
        """Returns the loans under which retrainings run, or begin in this step."""
        with self._lock:
            expected = [one.loan for one in self._expected.values() if not one.granted]
            return [*expected, *self._away.values()]

    def grant_loan(self, loan: Loan) -> None:
        """Plans again with a loan for an offer that was left open."""
        with self._lock:
            self._expected[loan.offer.stream] = _Expected(loan, granted=True)
            self._ask_again = True

    def take_granted(self) -> list[Loan]:
        """Returns the granted loans, for a plan, and forgets them."""
        with self._lock:
            streams = sorted(stream for stream, one in self._expected.items() if one.granted)
            return [self._expected.pop(stream).loan for stream in streams]

    def expect_start(self, loan: Loan) -> None:
        """Runs the retraining that the stream starts in this step under the loan."""
        with self._lock:
            self._expected[loan.offer.stream] = _Expected(loan)

    def training_so_far(self, stream: StreamId, now_us: int) -> Interrupted:
        """Returns the progress of a retraining whose host has died, possibly before it began."""
        with self._lock:
            expected = self._expected.get(stream)
            if expected is not None:
                return Interrupted(expected.loan.offer.epochs, {})
            return self._awaited.training_so_far(stream, now_us)

    def continue_training(self, stream: StreamId, loan: Loan) -> None:
        """Continues the rest of it, or all where it has not begun, under the new loan."""
        with self._lock:
            expected = self._expected.get(stream)
            if expected is None:
                self._awaited.continue_training(stream, loan)
                if stream in self._away:
                    self._away[stream] = loan
            else:
                expected.loan = loan

    def fail_training(self, stream: StreamId, reason: str, now_us: int) -> None:
        """Fails it: no other server has capacity for the rest. One that is only granted is forgotten."""
        with self._lock:
            expected = self._expected.get(stream)
            if expected is None:
                self._awaited.fail_training(stream, reason, now_us)
            elif expected.granted:
                del self._expected[stream]
            else:
                expected.failed = reason

    def not_beyond(self, stop_us: int | None) -> None:
        """Sets the time beyond which ``wait`` does not go, so that no change between servers comes too late.

        None removes the limit.
        """
        self._stop_us = stop_us

    def wait(self, until_us: int) -> Batch:
        """Returns the next events of this server, or the next change that other servers cause."""
        while True:
            batch = self._inner.wait(self._next_us(until_us))
            self.now_us = batch.now_us
            events = (*batch.events, *self._arrivals(), *self._changes())
            if events or self._listens_every_us is None or self.now_us >= until_us:
                return Batch(self.now_us, events)

    def execute_commands(self, commands: Sequence[cmd.Command]) -> None:
        """Carries commands out, except those that start retrainings elsewhere."""
        self._inner.execute_commands([command for command in commands if not self._concerns_others(command)])
        self._forget_expected()

    def give_up_all(self) -> None:
        """Gives up all remote retrainings at the end of the run, which may come early."""
        self._forget_expected(granted=True)
        for stream in sorted(self._away):
            self._give_up(stream)

    def _concerns_others(self, command: cmd.Command) -> bool:
        match command:
            case cmd.StartRetraining():
                return self._begins(command)
            case cmd.StopRetraining() if command.stream in self._away:
                # The executor keeps the weights that have arrived, and may be about to serve them.
                self._give_up(command.stream)
            case cmd.SetAside() | cmd.RestartWorker(role=ev.Role.RETRAINING) if command.stream in self._away:
                # The loop counts its retraining as lost wherever it runs, and sends no command that stops it.
                self._give_up(command.stream)
        return False

    def _begins(self, command: cmd.StartRetraining) -> bool:
        """Begins a retraining elsewhere; returns False where it begins here."""
        stream = command.stream
        # Atomic: a thread that reports a host's death must find the retraining either here or there.
        with self._lock:
            expected = self._expected.get(stream)
            if expected is None or expected.granted:
                return False
            del self._expected[stream]
            self._awaited.begin_training(command, expected.loan)
            if expected.failed:
                self._awaited.fail_training(stream, expected.failed, self.now_us)
            self._away[stream] = expected.loan
            return True

    def _give_up(self, stream: StreamId) -> None:
        with self._lock:
            del self._away[stream]
        self._over(stream, self.now_us, GIVEN_UP, self._awaited.stop_training(stream, self.now_us))

    def _forget_expected(self, granted: bool = False) -> None:
        """Gives up loans whose retraining was not started in the step in which they were agreed."""
        with self._lock:
            forgotten = sorted(stream for stream, one in self._expected.items() if granted or not one.granted)
            for stream in forgotten:
                del self._expected[stream]
        for stream in forgotten:
            self._over(stream, self.now_us, GIVEN_UP, {})

    def _next_us(self, until_us: int) -> int:
        """Returns the time of the next change that others cause; changes that are due count as now."""
        with self._lock:
            if self._ask_again or self._held_milli() != self._told_milli:
                return self.now_us
            borders = [border for lent in self._lent.values() for border in (lent.from_us, lent.to_us)]
        if self._stop_us is not None:
            borders.append(self._stop_us)
        if self._listens_every_us is not None:
            borders.append(self.now_us + self._listens_every_us)
        ahead = [border for border in borders if border > self.now_us]
        arrives_us = self._awaited.next_us()
        if arrives_us is not None:
            ahead.append(max(arrives_us, self.now_us))
        return min([until_us, *ahead])

    def _held_milli(self) -> int:
        """Returns the share that others' jobs hold now, and forgets loans that are over."""
        self._lent = {number: lent for number, lent in self._lent.items() if lent.to_us > self.now_us}
        return sum(lent.share_milli for lent in self._lent.values() if lent.from_us <= self.now_us)

    def _changes(self) -> list[ev.Event]:
        with self._lock:
            held_milli = self._held_milli()
            if held_milli == self._told_milli and not self._ask_again:
                return []
            self._told_milli, self._ask_again = held_milli, False
        return [ev.CapacityLent(self.now_us, held_milli)]

    def _arrivals(self) -> list[ev.Event]:
        """Returns events for weights that have arrived and retrainings that have failed."""
        news = self._awaited.take_home(self.now_us)
        events = list(self._inner.wait(self.now_us).events) if news else []
        for came in news:
            stream, job = came.command.stream, came.command.job
            if came.failed:
                events.append(ev.RetrainFailed(self.now_us, stream, job, came.failed))
            if came.over:
                with self._lock:
                    del self._away[stream]
                self._over(stream, self.now_us, came.failed or ARRIVED, came.moved_mb)
        return events
