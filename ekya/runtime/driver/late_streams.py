"""Streams that join a run after its start."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from ekya.core import events as ev
from ekya.core.units import StreamId


class LateStreams:
    """Holds back the events of streams that have not been added.

    Args:
        added: the times at which streams are added.
    """

    def __init__(self, added: Sequence[ev.StreamAdded]) -> None:
        self._added = deque(sorted(added, key=lambda event: event.t_us))
        self._held: dict[StreamId, list[ev.Event]] = {event.stream: [] for event in added}

    @property
    def next_us(self) -> int | None:
        """Run time at which the next stream joins; None when all have joined."""
        return self._added[0].t_us if self._added else None

    def join(self, now_us: int) -> list[ev.Event]:
        """Returns the due StreamAdded events, each followed by the events held back for its stream."""
        events: list[ev.Event] = []
        while self._added and self._added[0].t_us <= now_us:
            events += self.joined(self._added.popleft())
        return events

    def expect(self, stream: StreamId) -> None:
        """Holds back the events of a stream that is about to be added."""
        self._held[stream] = []

    def joined(self, added: ev.StreamAdded) -> list[ev.Event]:
        """Returns the addition of an expected stream, followed by the events held back for it."""
        held = self._held.pop(added.stream, [])
        return [added, *(replace(event, t_us=max(event.t_us, added.t_us)) for event in held)]

    def drop(self, stream: StreamId) -> None:
        """Forgets an expected stream that is not added after all."""
        self._held.pop(stream, None)

    def let_through(self, event: ev.Event) -> list[ev.Event]:
        """Returns the event, unless its stream has not joined: then holds it back, or drops a measurement."""
        stream = getattr(event, "stream", None)
        if stream not in self._held:
            return [event]
        if not isinstance(event, ev.ShareMeasured | ev.NeedMeasured | ev.FramesCounted):
            self._held[stream].append(event)
        return []
