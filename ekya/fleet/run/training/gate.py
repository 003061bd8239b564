"""Who may go on: versions of the weights, and which gradients make up the next update.

A worker pulls a version, works on a gradient, pushes it and waits until the weights have moved along it.
Everything that a mode of training is, is which waiting gradients make up the next update.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ekya.fleet.run.training.workers import WorkerId


@dataclass(frozen=True, slots=True)
class Round:
    """Where all workers stand.

    Attributes:
        version: how many updates there were.
        waiting: workers whose gradient is there, with the version that it is of.
        working: workers whose gradient is to come, likewise.
        away: workers that have not pulled since their last gradient moved the weights.
    """

    version: int
    waiting: Mapping[WorkerId, int]
    working: Mapping[WorkerId, int]
    away: frozenset[WorkerId]


Rule = Callable[[Round], tuple[WorkerId, ...]]
"""Whose gradients are averaged to the next update; nobody's: it has to wait."""


def together(now: Round) -> tuple[WorkerId, ...]:
    """Synchronous: all of them, in their order, when all are there."""
    return () if now.working or now.away else tuple(sorted(now.waiting))


def within(staleness: int, workers: int) -> Rule:
    """Asynchronous: one after the other, as long as nobody's gradient gets further behind than this.

    Of W workers that begin together one has to be W - 1 behind, and so many are always allowed.

    A gradient of version p has to move the weights before version p + staleness is over. So one may go first
    if all others could still follow one by one, the oldest first: the test for unit jobs with deadlines. The
    oldest always may, so nobody waits for ever.
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
    """The bookkeeping of one epoch.

    Attributes:
        version: how many updates there were.
        stalest: by how many updates a gradient that moved the weights was behind, at most.
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
        """Whether everybody has left."""
        return not (self._away or self._working or self._waiting)

    @property
    def others(self) -> int:
        """How many there are beside one that has not left."""
        return len(self._away) + len(self._working) + len(self._waiting) - 1

    def pull(self, worker: WorkerId) -> None:
        """It has the newest weights now."""
        self._away.remove(worker)
        self._working[worker] = self.version

    def push(self, worker: WorkerId) -> None:
        """Its gradient is there."""
        self._waiting[worker] = self._working.pop(worker)

    def leave(self, worker: WorkerId) -> None:
        """It has no more work in this epoch, and no gradient under way."""
        self._away.remove(worker)

    def next_update(self) -> tuple[WorkerId, ...]:
        """Whose gradients move the weights now; these may pull again. Nobody's: somebody is waited for."""
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
