"""Polls actors for events, and tracks which workers run in which actor."""

from collections.abc import Collection
from typing import Any

from ekya.core.events import Role
from ekya.core.ids import StreamId
from ekya.runtime.actor_processes import NEWS

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
