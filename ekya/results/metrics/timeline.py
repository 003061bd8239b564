"""Timeline of a run: shares of each stream over time, and the data of its figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.step_record import StepRecord
from ekya.core.units import ModelVersion, StreamId


@dataclass(frozen=True, slots=True)
class ShareSample:
    """Shares of a stream's jobs from ``t_us`` until its next sample or the run's end."""

    t_us: int
    stream: StreamId
    retrain_share_milli: int
    inference_share_milli: int


@dataclass(frozen=True, slots=True)
class PreparationSpan:
    """Labelling and profiling of all streams together, and the share reserved for them."""

    start_us: int
    end_us: int
    share_milli: int


@dataclass(frozen=True, slots=True)
class Swap:
    """Hot swap: from ``t_us`` on a stream serves another model."""

    t_us: int
    stream: StreamId
    version: ModelVersion


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """Start and end of a window, in run time."""

    index: int
    start_us: int
    end_us: int


def mean_shares(
    samples: Sequence[ShareSample], stream: StreamId, start_us: int, end_us: int
) -> tuple[int, int]:
    """Returns a stream's mean shares of retraining and inference over a span, in whole thousandths.

    Args:
        samples: of any streams, in rising order of time. Before its first a stream has no share.
        stream: the stream.
        start_us, end_us: the span; end after start.
    """
    own = [sample for sample in samples if sample.stream == stream and sample.t_us < end_us]
    retrain = inference = 0
    for i, sample in enumerate(own):
        until_us = own[i + 1].t_us if i + 1 < len(own) else end_us
        held_us = until_us - max(sample.t_us, start_us)
        if held_us > 0:
            retrain += held_us * sample.retrain_share_milli
            inference += held_us * sample.inference_share_milli
    span_us = end_us - start_us
    return (2 * retrain + span_us) // (2 * span_us), (2 * inference + span_us) // (2 * span_us)


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

    def follow(self, step: StepRecord) -> list[ShareSample]:
        """Applies a step of the loop and returns the shares that it changes."""
        changed = {*self._after_events(step), *self._after_commands(step)}
        now = self.now()
        return [ShareSample(step.now_us, stream, *now[stream]) for stream in sorted(changed)]

    def _after_events(self, step: StepRecord) -> Iterator[StreamId]:
        for event in step.events:
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

    def _after_commands(self, step: StepRecord) -> Iterator[StreamId]:
        for command in step.commands:
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


def share_samples(steps: Sequence[StepRecord]) -> Iterator[ShareSample]:
    """Yields all changes of shares in a run."""
    book = ShareBook()
    for step in steps:
        yield from book.follow(step)
