"""Events of a fleet's script that occurred in a run, and the shares before and after each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.units import StreamId, us_to_seconds
from ekya.results.metrics.run_history import ShareBook


class Happening(StrEnum):
    """Scripted events of a stream. The loop receives the first three as events and must detect the others."""

    JOINS = "joins"
    LOST = "lost"
    BACK = "back"
    NIGHT = "night"
    BURST = "burst"


_TOLD = {
    Happening.JOINS: ev.StreamAdded,
    Happening.LOST: ev.StreamLost,
    Happening.BACK: ev.StreamBack,
}


@dataclass(frozen=True, slots=True)
class Cue:
    """One scripted event.

    Attributes:
        t_us: run time at which it is due.
        until_us: run time at which it is over; None if it has no duration.
    """

    t_us: int
    stream: StreamId
    happens: Happening
    until_us: int | None = None


@dataclass(frozen=True, slots=True)
class OccurredCue:
    """A cue that has occurred.

    Attributes:
        t_us: run time at which it occurred.
        before, after: shares of retraining and inference of each stream, before and after the step in which
            the loop received the event, or else the first step after it.
    """

    cue: Cue
    t_us: int
    before: Mapping[StreamId, tuple[int, int]]
    after: Mapping[StreamId, tuple[int, int]]

    def json_values(self) -> dict[str, Any]:
        """Returns the cue and its shares as JSON values."""
        until_us = self.cue.until_us
        return {
            "at_s": us_to_seconds(self.t_us),
            "until_s": None if until_us is None else us_to_seconds(until_us),
            "stream": self.cue.stream,
            "event": str(self.cue.happens),
            "shares_before": _values(self.before),
            "shares_after": _values(self.after),
        }


class CueFollower:
    """Follows a run step by step and finds the cues that have occurred."""

    def __init__(self, cues: Sequence[Cue]) -> None:
        self._waiting = sorted(cues, key=lambda cue: cue.t_us)
        self._book = ShareBook()

    def follow_step(self, step: StepRecord) -> list[OccurredCue]:
        """Applies a step of the loop and returns the cues that occurred in it, in order."""
        before = self._book.present_shares()
        self._book.follow_step(step)
        came = {cue: at_us for cue in self._waiting if (at_us := _came_us(cue, step)) is not None}
        self._waiting = [cue for cue in self._waiting if cue not in came]
        after = self._book.present_shares()
        return [OccurredCue(cue, at_us, before, after) for cue, at_us in came.items()]


def occurred_cues(cues: Sequence[Cue], steps: Sequence[StepRecord]) -> Iterator[OccurredCue]:
    """Yields all cues that occurred in a run."""
    follower = CueFollower(cues)
    for step in steps:
        yield from follower.follow_step(step)


def _came_us(cue: Cue, step: StepRecord) -> int | None:
    kind = _TOLD.get(cue.happens)
    if kind is None:
        return cue.t_us if cue.t_us <= step.now_us else None
    for event in step.events:
        match event:
            # A late event of an earlier occurrence must not match the next cue of its kind.
            case ev.StreamAdded() | ev.StreamLost() | ev.StreamBack() if (
                isinstance(event, kind) and event.stream == cue.stream and event.t_us >= cue.t_us
            ):
                return event.t_us
    return None


def _values(shares: Mapping[StreamId, tuple[int, int]]) -> dict[str, dict[str, int]]:
    return {
        stream: {"retraining_milli": retraining, "inference_milli": inference}
        for stream, (retraining, inference) in shares.items()
    }
