"""Actors that are asked for news, all the time, and the workers that each of them is the process of."""

from collections.abc import Collection
from typing import Any

from ekya.core.events import Role
from ekya.core.ids import StreamId
from ekya.runtime.actor_processes import NEWS

_POLL_S = 1.0

Worker = tuple[StreamId, Role]


class News:
    """Who is asked, and who is in it. An actor of no worker, as the micro-profiler, has news as well."""

    def __init__(self) -> None:
        self._asked: dict[Any, Any] = {}
        self._workers: dict[Any, set[Worker]] = {}

    @property
    def references(self) -> Collection[Any]:
        """Of the answers that are to come."""
        return self._asked.keys()

    def follow(self, actor: Any, *workers: Worker) -> None:
        """An actor is asked from now on, unless it is already, and these are in it."""
        if actor not in self._workers:
            self._workers[actor] = set()
            self.ask(actor)
        self._workers[actor].update(workers)

    def ask(self, actor: Any) -> None:
        """Asks an actor for what has happened since it was asked last."""
        self._asked[actor.poll.options(concurrency_group=NEWS).remote(_POLL_S)] = actor

    def answered(self, reference: Any) -> Any:
        """The actor whose answer it is."""
        return self._asked.pop(reference)

    def join(self, actor: Any, worker: Worker) -> bool:
        """A worker is in an actor; False where that one is dead already."""
        if actor not in self._workers:
            return False
        self._workers[actor].add(worker)
        return True

    def leave(self, worker: Worker) -> None:
        """A worker is in no actor any more."""
        for workers in self._workers.values():
            workers.discard(worker)

    def died(self, actor: Any) -> list[Worker]:
        """An actor has died; who was in it."""
        return sorted(self._workers.pop(actor))
