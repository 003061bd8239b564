"""What a fleet's script had happen, and what became of the shares at that."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ekya.core import events as ev
from ekya.core.ids import StreamId
from ekya.core.turns import TurnRecord
from ekya.core.units import us_to_seconds
from ekya.measuring.shares import ShareBook


class Happening(StrEnum):
    """What can happen to a stream. The loop is told of the first three, and finds out about the others."""

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
    """A moment of the script.

    Attributes:
        t_us: run time at which it is due.
        until_us: run time at which it is over; None for what does not last.
    """

    t_us: int
    stream: StreamId
    happens: Happening
    until_us: int | None = None


@dataclass(frozen=True, slots=True)
class CueTold:
    """A cue that has come.

    Attributes:
        t_us: when it came.
        before, after: shares of retraining and of inference of each stream, before and after the turn in
            which the loop was told, or which was the first one after it.
    """

    cue: Cue
    t_us: int
    before: Mapping[StreamId, tuple[int, int]]
    after: Mapping[StreamId, tuple[int, int]]

    def values(self) -> dict[str, Any]:
        """As JSON values."""
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
    """Follows a run turn by turn, and says which cues have come."""

    def __init__(self, cues: Sequence[Cue]) -> None:
        self._waiting = sorted(cues, key=lambda cue: cue.t_us)
        self._book = ShareBook()

    def follow(self, turn: TurnRecord) -> list[CueTold]:
        """The cues that came in this turn, in order."""
        before = self._book.now()
        self._book.follow(turn)
        came = {cue: at_us for cue in self._waiting if (at_us := _came_us(cue, turn)) is not None}
        self._waiting = [cue for cue in self._waiting if cue not in came]
        after = self._book.now()
        return [CueTold(cue, at_us, before, after) for cue, at_us in came.items()]


def told_cues(cues: Sequence[Cue], turns: Sequence[TurnRecord]) -> Iterator[CueTold]:
    """All cues that came in a run."""
    follower = CueFollower(cues)
    for turn in turns:
        yield from follower.follow(turn)


def _came_us(cue: Cue, turn: TurnRecord) -> int | None:
    kind = _TOLD.get(cue.happens)
    if kind is None:
        return cue.t_us if cue.t_us <= turn.now_us else None
    for event in turn.events:
        match event:
            # What is told late must not be taken for the next of its kind.
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
