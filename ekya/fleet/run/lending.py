"""The executor of one server of several: others' jobs beside its own, and some of its own with others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ekya.control.protocols import Batch, Executor
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.elsewhere import Elsewhere
from ekya.core.ids import StreamId


@dataclass(slots=True, eq=False)
class Lent:
    """A share that a job of another server has here."""

    share_milli: int
    from_us: int
    to_us: int


@dataclass(slots=True, eq=False)
class _Awaited:
    """A retraining of ours on another server: its command is carried out here when the weights are back."""

    command: cmd.StartRetraining
    arrives_us: int
    failed: str = ""


class LendingExecutor:
    """An executor of any world, which learns of other servers what its loop must know.

    Args:
        inner: carries out what happens here.
        given_up: is told of a stream whose retraining elsewhere nobody waits for any more.
    """

    def __init__(self, inner: Executor, given_up: Callable[[StreamId, int], None]) -> None:
        self._inner = inner
        self._given_up = given_up
        self._lent: list[Lent] = []
        self._told_milli = 0
        self._expected: dict[StreamId, int] = {}
        self._awaited: dict[StreamId, _Awaited] = {}
        self._ask_again = False
        self._stop_us: int | None = None
        self.now_us = 0

    @property
    def lent_milli(self) -> int:
        """What is promised to others, from now on or already theirs."""
        return sum(lent.share_milli for lent in self._lent if lent.to_us > self.now_us)

    def lend(self, lent: Lent) -> None:
        """Gives a share to another server's job for a time."""
        self._lent.append(lent)

    def expect(self, stream: StreamId, arrives_us: int) -> None:
        """The retraining that the stream starts next comes from elsewhere, then."""
        self._expected[stream] = arrives_us

    def postpone(self, stream: StreamId, arrives_us: int) -> None:
        """The weights on their way come later."""
        self._awaited[stream].arrives_us = arrives_us

    def fail(self, stream: StreamId, reason: str, at_us: int) -> None:
        """The weights on their way never come."""
        awaited = self._awaited[stream]
        awaited.arrives_us, awaited.failed = at_us, reason

    def not_beyond(self, stop_us: int | None) -> None:
        """Until it is told otherwise it goes no further, so that nothing between servers comes too late."""
        self._stop_us = stop_us

    def ask_again(self) -> None:
        """Lets the loop plan anew: there is room elsewhere that was not there before."""
        self._ask_again = True

    def wait(self, until_us: int) -> Batch:
        """The next events here, or the next change that others make."""
        batch = self._inner.wait(min(until_us, *self._changes_us(), until_us))
        self.now_us = batch.now_us
        events = [*batch.events, *self._arrivals()]
        held_milli = self._held_milli()
        if held_milli != self._told_milli or self._ask_again:
            self._told_milli, self._ask_again = held_milli, False
            events.append(ev.CapacityLent(self.now_us, held_milli))
        return Batch(self.now_us, tuple(events))

    def execute(self, commands: Sequence[cmd.Command]) -> None:
        """Carries commands out, but for retrainings elsewhere."""
        self._inner.execute([command for command in commands if not self._concerns_others(command)])

    def _concerns_others(self, command: cmd.Command) -> bool:
        match command:
            case cmd.StartRetraining() if command.stream in self._expected:
                self._awaited[command.stream] = _Awaited(command, self._expected.pop(command.stream))
                return True
            case cmd.StopRetraining() if command.stream in self._awaited:
                del self._awaited[command.stream]
                self._given_up(command.stream, self.now_us)
                return True
            case _:
                return False

    def _changes_us(self) -> list[int]:
        """When others change something next; what is due already is due now."""
        if self._ask_again or self._held_milli() != self._told_milli:
            return [self.now_us]
        stops = [] if self._stop_us is None else [self._stop_us]
        borders = (border for lent in self._lent for border in (lent.from_us, lent.to_us))
        at = [awaited.arrives_us for awaited in self._awaited.values()]
        return [max(one, self.now_us) for one in at] + [
            border for border in (*borders, *stops) if border > self.now_us
        ]

    def _held_milli(self) -> int:
        """What jobs of others have now; loans that are over are forgotten."""
        self._lent = [lent for lent in self._lent if lent.to_us > self.now_us]
        return sum(lent.share_milli for lent in self._lent if lent.from_us <= self.now_us)

    def _arrivals(self) -> list[ev.Event]:
        """Weights that are here now, or known never to come."""
        events: list[ev.Event] = []
        for stream, awaited in sorted(self._awaited.items()):
            if awaited.arrives_us > self.now_us:
                continue
            del self._awaited[stream]
            self._given_up(stream, self.now_us)
            if awaited.failed:
                job = awaited.command.job
                events.append(ev.RetrainFailed(self.now_us, stream, job, awaited.failed))
                continue
            here = replace(awaited.command, elsewhere=Elsewhere(self.now_us))
            self._inner.execute([here])
            events += self._inner.wait(self.now_us).events
        return events
