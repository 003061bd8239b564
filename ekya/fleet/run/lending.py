"""Executor of a server in a fleet: lends shares to others' jobs, and follows its own jobs elsewhere."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ekya.control.protocols import Batch, Executor
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Loan, Way
from ekya.fleet.policy.moves import Move
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.elsewhere import Awaited, InferenceElsewhere, Interrupted

ARRIVED, GIVEN_UP = "arrived", "given up"
WINDOW_OVER, NO_ANSWER = "its window is over", "its host did not answer"

Over = Callable[[StreamId, int, str, Mapping[Way, float]], None]
"""Callback for the end of a remote retraining: stream, time, outcome, traffic over each link."""

MoveOver = Callable[[Move, int, str, Mapping[Way, float]], None]
"""The same for a move of inference."""


@dataclass(slots=True, eq=False)
class _Moved:
    """A stream's inference that other servers do, or are about to.

    Attributes:
        told: the loop knows it.
        ended: why it is over; empty otherwise.
    """

    move: Move
    told: bool = False
    ended: str = ""


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


@dataclass(frozen=True, slots=True)
class Lent:
    """A share of this server that a job of another server holds."""

    share_milli: int
    from_us: int
    to_us: int


class LendingExecutor:
    """Wraps an executor of any world and adds the events that other servers cause. A ``Peer``.

    ``wait`` and ``execute`` belong to the loop's thread; everything else may be called from other threads.

    Args:
        inner: carries out the commands for this server.
        awaited: this server's remote retrainings.
        over: see ``Over``.
        inference: this server's inference elsewhere.
        move_over: see ``MoveOver``.
        room: returns what the server could lend between two times; None: nothing.
        listens_every_us: how often ``wait`` polls for news of remote retrainings; None where none can come
            during a wait.
    """

    def __init__(
        self,
        inner: Executor,
        awaited: Awaited,
        over: Over,
        inference: InferenceElsewhere,
        move_over: MoveOver,
        room: Callable[[int, int], Room | None] = lambda now_us, until_us: None,
        listens_every_us: int | None = None,
    ) -> None:
        self._inner = inner
        self._awaited = awaited
        self._over, self.room = over, room
        self._inference, self._move_over = inference, move_over
        self._moves: dict[StreamId, _Moved] = {}
        self._listens_every_us = listens_every_us
        self._lock = threading.RLock()
        self._lent: dict[int, Lent] = {}
        self._told_milli = 0
        self._expected: dict[StreamId, _Expected] = {}
        self._away: dict[StreamId, Loan] = {}
        self._ask_again = False
        self._stop_us: int | None = None
        self.now_us = 0

    def lend(self, number: int, lent: Lent) -> None:
        """Lends a share to another server's job for a time; the loan's number is unique in the fleet."""
        with self._lock:
            self._lent[number] = lent

    def take_back(self, number: int, at_us: int) -> None:
        """Ends a loan of this server's share before its time, because the job is over."""
        with self._lock:
            lent = self._lent.get(number)
            if lent is not None:
                self._lent[number] = replace(lent, to_us=min(lent.to_us, at_us))

    def lends(self) -> list[int]:
        """Returns the numbers of the loans for which it keeps a share."""
        with self._lock:
            return sorted(number for number, lent in self._lent.items() if lent.to_us > self.now_us)

    def borrowed(self, granted: bool = True) -> list[Loan]:
        """Returns the loans under which retrainings run, or are about to; with those only granted, or not."""
        with self._lock:
            expected = [one.loan for one in self._expected.values() if granted or not one.granted]
            return [*expected, *self._away.values()]

    def grant(self, loan: Loan | Move) -> None:
        """Begins a move, or plans again with a loan for an offer that was left open."""
        if isinstance(loan, Move):
            self._move(loan)
            return
        with self._lock:
            self._expected[loan.offer.stream] = _Expected(loan, granted=True)
            self._ask_again = True

    def take_granted(self) -> list[Loan]:
        """Returns the granted loans, for a plan, and forgets them."""
        with self._lock:
            streams = sorted(stream for stream, one in self._expected.items() if one.granted)
            return [self._expected.pop(stream).loan for stream in streams]

    def expect(self, loan: Loan) -> None:
        """Runs the retraining that the stream starts in this step under the loan."""
        with self._lock:
            self._expected[loan.offer.stream] = _Expected(loan)

    def moved(self) -> frozenset[StreamId]:
        """Returns the streams whose frames are classified elsewhere, or are about to be."""
        with self._lock:
            return frozenset(self._moves)

    def keep_moves(self, numbers: Collection[int], reason: str) -> None:
        """Ends all other moves of its streams, since their hosts do not know them any more."""
        with self._lock:
            for moved in self._moves.values():
                if moved.move.number not in numbers:
                    moved.ended = reason

    def come_home(self, stream: StreamId, reason: str) -> None:
        """Ends a stream's move."""
        with self._lock:
            if stream in self._moves:
                self._moves[stream].ended = reason

    def interrupted(self, stream: StreamId, now_us: int) -> Interrupted:
        """Returns the progress of a retraining whose host has died, possibly before it began."""
        with self._lock:
            expected = self._expected.get(stream)
            if expected is not None:
                return Interrupted(expected.loan.offer.epochs, {})
            return self._awaited.interrupted(stream, now_us)

    def go_on(self, stream: StreamId, loan: Loan) -> None:
        """Continues the rest of it, or all where it has not begun, under the new loan."""
        with self._lock:
            expected = self._expected.get(stream)
            if expected is None:
                self._awaited.go_on(stream, loan)
                if stream in self._away:
                    self._away[stream] = loan
            else:
                expected.loan = loan

    def fail(self, stream: StreamId, reason: str, now_us: int) -> None:
        """Fails it: no other server has capacity for the rest. One that is only granted is forgotten."""
        with self._lock:
            expected = self._expected.get(stream)
            if expected is None:
                self._awaited.fail(stream, reason, now_us)
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
            events = (
                *filter(self._heard, batch.events),
                *self._ended_moves(),
                *self._arrivals(),
                *self._changes(),
            )
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
        for stream in sorted(self._moves):
            self._home_again(self._moves.pop(stream), GIVEN_UP)

    def _move(self, move: Move) -> None:
        """Has a stream's frames classified elsewhere until the move's window ends."""
        with self._lock:
            if move.stream in self._moves:  # it is about to end
                self._move_over(move, self.now_us, GIVEN_UP, {})
                return
            self._moves[move.stream] = _Moved(move)
        self._inference.begin(move)

    def _heard(self, event: ev.Event) -> bool:
        """Notes what a world says of a move; returns whether the loop hears it, too."""
        if not isinstance(event, ev.InferenceMoved | ev.WorkerDied):
            return True
        with self._lock:
            moved = self._moves.get(event.stream)
            match event:
                case ev.WorkerDied():
                    if moved is not None and event.role is ev.Role.INFERENCE:
                        moved.ended = event.reason
                    return True
                case ev.InferenceMoved(share_milli=0):
                    if moved is not None:
                        moved.ended = moved.ended or NO_ANSWER
                    return False  # it is said when the move ends
            if moved is None or moved.ended:
                return False
            moved.told = True
            return True

    def _ended_moves(self) -> list[ev.Event]:
        """Ends the moves that are over, and returns the events that say so."""
        events: list[ev.Event] = []
        with self._lock:
            for stream, moved in sorted(self._moves.items()):
                if moved.move.until_us <= self.now_us:
                    moved.ended = moved.ended or WINDOW_OVER
                if moved.ended:
                    del self._moves[stream]
                    self._home_again(moved, moved.ended)
                    if moved.told:
                        events.append(ev.InferenceMoved(self.now_us, stream, 0))
        return events

    def _home_again(self, moved: _Moved, outcome: str) -> None:
        moved_mb = self._inference.end(moved.move, self.now_us)
        self._move_over(moved.move, self.now_us, outcome, moved_mb)

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
            self._awaited.begin(command, expected.loan)
            if expected.failed:
                self._awaited.fail(stream, expected.failed, self.now_us)
            self._away[stream] = expected.loan
            return True

    def _give_up(self, stream: StreamId) -> None:
        with self._lock:
            del self._away[stream]
        self._over(stream, self.now_us, GIVEN_UP, self._awaited.stop(stream, self.now_us))

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
            if any(moved.ended for moved in self._moves.values()):
                return self.now_us
            borders = [border for lent in self._lent.values() for border in (lent.from_us, lent.to_us)]
            borders += [moved.move.until_us for moved in self._moves.values()]
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
