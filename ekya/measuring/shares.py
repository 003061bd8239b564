"""Who held which share when, from turn to turn."""

from collections.abc import Iterator, Sequence

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.ids import StreamId
from ekya.core.turns import TurnRecord
from ekya.measuring.timeline import ShareSample


class ShareBook:
    """Every stream's shares as they were last commanded, or given back by what happened."""

    def __init__(self) -> None:
        self._inference: dict[StreamId, int] = {}
        self._retraining: dict[StreamId, int] = {}

    def now(self) -> dict[StreamId, tuple[int, int]]:
        """Shares of retraining and of inference, in thousandths, of every stream that ever had one."""
        streams = sorted({*self._inference, *self._retraining})
        return {
            stream: (self._retraining.get(stream, 0), self._inference.get(stream, 0)) for stream in streams
        }

    def follow(self, turn: TurnRecord) -> list[ShareSample]:
        """What a turn changes."""
        changed = {*self._after_events(turn), *self._after_commands(turn)}
        now = self.now()
        return [ShareSample(turn.now_us, stream, *now[stream]) for stream in sorted(changed)]

    def _after_events(self, turn: TurnRecord) -> Iterator[StreamId]:
        for event in turn.events:
            match event:
                case ev.RetrainFinished() | ev.RetrainFailed() | ev.WorkerDied(role=ev.Role.RETRAINING):
                    self._retraining[event.stream] = 0
                case ev.StreamLost() | ev.WorkerDied():
                    self._inference[event.stream] = 0
                case ev.StreamEnded():
                    self._retraining[event.stream] = self._inference[event.stream] = 0
                case _:
                    continue
            yield event.stream

    def _after_commands(self, turn: TurnRecord) -> Iterator[StreamId]:
        for command in turn.commands:
            match command:
                case cmd.SetInference():
                    self._inference[command.stream] = command.share_milli
                case cmd.StartRetraining() | cmd.ResizeRetraining():
                    self._retraining[command.stream] = command.share_milli
                case cmd.StopRetraining():
                    self._retraining[command.stream] = 0
                case cmd.SetAside():
                    self._retraining[command.stream] = self._inference[command.stream] = 0
                case _:
                    continue
            yield command.stream


def share_samples(turns: Sequence[TurnRecord]) -> Iterator[ShareSample]:
    """All shares of a run, whenever they changed."""
    book = ShareBook()
    for turn in turns:
        yield from book.follow(turn)
