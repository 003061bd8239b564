"""Event mailbox of an actor with the clock of a run, and the driver's poller of mailboxes."""

import queue
import time
from collections.abc import Collection
from typing import Any

from ekya.core.events import Event, Role
from ekya.core.units import StreamId
from ekya.runtime.actor_processes import NEWS


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

    def take(self, timeout_s: float) -> list[Event]:
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


_POLL_S = 1.0

Worker = tuple[StreamId, Role]


class ActorPoller:
    """Polled actors and their workers. Actors without workers, such as the micro-profiler, are polled too."""

    def __init__(self) -> None:
        self._asked: dict[Any, Any] = {}
        self._workers: dict[Any, set[Worker]] = {}

    @property
    def references(self) -> Collection[Any]:
        """References of the outstanding replies."""
        return self._asked.keys()

    def follow(self, actor: Any, *workers: Worker) -> None:
        """Polls an actor from now on, if it is not polled yet, and adds workers to it."""
        if actor not in self._workers:
            self._workers[actor] = set()
            self.ask(actor)
        self._workers[actor].update(workers)

    def ask(self, actor: Any) -> None:
        """Requests an actor's events since its last reply."""
        self._asked[actor.poll.options(concurrency_group=NEWS).remote(_POLL_S)] = actor

    def answered(self, reference: Any) -> Any:
        """Returns the actor that sent a reply."""
        return self._asked.pop(reference)

    def join(self, actor: Any, worker: Worker) -> bool:
        """Adds a worker to an actor; returns False if the actor is already dead."""
        if actor not in self._workers:
            return False
        self._workers[actor].add(worker)
        return True

    def leave(self, worker: Worker) -> None:
        """Removes a worker from its actor."""
        for workers in self._workers.values():
            workers.discard(worker)

    def died(self, actor: Any) -> list[Worker]:
        """Removes a dead actor; returns the workers that were in it."""
        return sorted(self._workers.pop(actor))
