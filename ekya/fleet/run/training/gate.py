"""Versions of the weights, and the choice of the gradients that make up the next update.

A worker pulls a version, computes a gradient, pushes it and waits until the weights have moved along it.
Training modes differ only in which waiting gradients make up the next update.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ekya.fleet.run.training.workers import WorkerId


@dataclass(frozen=True, slots=True)
class Round:
    """State of all workers.

    Attributes:
        version: number of updates so far.
        waiting: workers whose gradient has arrived, with the version that it is of.
        working: workers whose gradient is to come, likewise.
        away: workers that have not pulled since their last gradient moved the weights.
    """

    version: int
    waiting: Mapping[WorkerId, int]
    working: Mapping[WorkerId, int]
    away: frozenset[WorkerId]


Rule = Callable[[Round], tuple[WorkerId, ...]]
"""Returns the workers whose gradients are averaged to the next update; none: it has to wait."""


def together(now: Round) -> tuple[WorkerId, ...]:
    """Synchronous: returns all workers, sorted, when all gradients have arrived."""
    return () if now.working or now.away else tuple(sorted(now.waiting))


def within(staleness: int, workers: int) -> Rule:
    """Asynchronous: returns one worker at a time and keeps every gradient within this staleness.

    Of W workers that begin together one has to be W - 1 behind, so that is always allowed.

    A gradient of version p has to move the weights before version p + staleness is over. So a worker may go
    first if all others could still follow one by one, the oldest first: the test for unit jobs with
    deadlines. The oldest always may, so every gradient is used in the end.
    """

    bound = max(staleness, workers - 1)

    def rule(now: Round) -> tuple[WorkerId, ...]:
        for worker in sorted(now.waiting, key=lambda of: (now.waiting[of], of)):
            others = {**now.waiting, **now.working}
            del others[worker]
            following = enumerate(sorted(others.values()), now.version + 1)
            if all(at - pulled <= bound for at, pulled in following):
                return (worker,)
        return ()

    return rule


class Gate:
    """Bookkeeping of one epoch.

    Attributes:
        version: number of updates so far.
        stalest: maximum number of updates by which a gradient that moved the weights was behind.
    """

    def __init__(self, workers: Iterable[WorkerId], rule: Rule) -> None:
        self._rule = rule
        self._away = set(workers)
        self._working: dict[WorkerId, int] = {}
        self._waiting: dict[WorkerId, int] = {}
        self.version = 0
        self.stalest = 0

    @property
    def over(self) -> bool:
        """True when all workers have left."""
        return not (self._away or self._working or self._waiting)

    @property
    def others(self) -> int:
        """Number of workers that have not left, less one."""
        return len(self._away) + len(self._working) + len(self._waiting) - 1

    def pull(self, worker: WorkerId) -> None:
        """Notes that a worker has the newest weights."""
        self._away.remove(worker)
        self._working[worker] = self.version

    def push(self, worker: WorkerId) -> None:
        """Notes that a worker's gradient has arrived."""
        self._waiting[worker] = self._working.pop(worker)

    def leave(self, worker: WorkerId) -> None:
        """Removes a worker that has no more work in this epoch and no gradient under way."""
        self._away.remove(worker)

    def next_update(self) -> tuple[WorkerId, ...]:
        """Returns the workers whose gradients move the weights now and which may pull again; none: wait."""
        now = Round(
            self.version,
            MappingProxyType(self._waiting),
            MappingProxyType(self._working),
            frozenset(self._away),
        )
        group = self._rule(now)
        for worker in group:
            self.stalest = max(self.stalest, self.version - self._waiting.pop(worker))
            self._away.add(worker)
        self.version += bool(group)
        return group
