"""Event mailbox of an actor, and the clock of a run."""

import queue
import time

from ekya.core.events import Event


class RunClock:
    """Run time: microseconds since the run began, the same in every process of a machine."""

    def __init__(self, started_monotonic_ns: int) -> None:
        self.started_monotonic_ns = started_monotonic_ns

    def now_us(self) -> int:
        """Returns microseconds since the run began; negative before it."""
        return (time.monotonic_ns() - self.started_monotonic_ns) // 1000


class Mailbox:
    """Queue of one actor's events in order of occurrence. Any thread may put, one takes."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        """Adds an event."""
        self._events.put(event)

    def drain(self, timeout_s: float) -> list[Event]:
        """Returns all queued events; waits up to ``timeout_s`` for the first."""
        try:
            events = [self._events.get(timeout=timeout_s)]
        except queue.Empty:
            return []
        while True:
            try:
                events.append(self._events.get_nowait())
            except queue.Empty:
                return events
