"""Shares of each stream over time, from the steps of the control loop."""

from collections.abc import Iterator, Sequence

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.ids import StreamId
from ekya.core.turns import StepRecord
from ekya.measuring.timeline import ShareSample


class ShareBook:
    """Tracks every stream's shares, as last commanded, or as released by events."""

    def __init__(self) -> None:
        self._inference: dict[StreamId, int] = {}
        self._retraining: dict[StreamId, int] = {}

    def now(self) -> dict[StreamId, tuple[int, int]]:
        """Returns all streams' shares of retraining and inference, in thousandths, if they ever had any."""
        streams = sorted({*self._inference, *self._retraining})
        return {
            stream: (self._retraining.get(stream, 0), self._inference.get(stream, 0)) for stream in streams
        }

    def follow(self, turn: StepRecord) -> list[ShareSample]:
        """Applies a step of the loop and returns the shares that it changes."""
        changed = {*self._after_events(turn), *self._after_commands(turn)}
        now = self.now()
        return [ShareSample(turn.now_us, stream, *now[stream]) for stream in sorted(changed)]

    def _after_events(self, turn: StepRecord) -> Iterator[StreamId]:
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

    def _after_commands(self, turn: StepRecord) -> Iterator[StreamId]:
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


def share_samples(turns: Sequence[StepRecord]) -> Iterator[ShareSample]:
    """Yields all changes of shares in a run."""
    book = ShareBook()
    for turn in turns:
        yield from book.follow(turn)
