"""Versions of the weights, and the choice of the gradients that make up the next update.

A worker pulls a version, computes a gradient, pushes it and waits until the weights have moved along it.
Training modes differ only in which waiting gradients make up the next update.
"""

from collections.abc import Callable, Iterable

from ekya.fleet.run.training.workers import WorkerId

Rule = Callable[["Gate"], tuple[WorkerId, ...]]
"""Returns the workers whose gradients are averaged to the next update; none: it has to wait."""


def together(now: "Gate") -> tuple[WorkerId, ...]:
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

    def rule(now: "Gate") -> tuple[WorkerId, ...]:
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
        waiting: workers whose gradient has arrived, with the version that it is of.
        working: workers whose gradient is to come, likewise.
        away: workers that have not pulled since their last gradient moved the weights.
    """

    def __init__(self, workers: Iterable[WorkerId], rule: Rule) -> None:
        self._rule = rule
        self.away = set(workers)
        self.working: dict[WorkerId, int] = {}
        self.waiting: dict[WorkerId, int] = {}
        self.version = 0
        self.stalest = 0

    @property
    def over(self) -> bool:
        """True when all workers have left."""
        return not (self.away or self.working or self.waiting)

    @property
    def others(self) -> int:
        """Number of workers that have not left, less one."""
        return len(self.away) + len(self.working) + len(self.waiting) - 1

    def note_pull(self, worker: WorkerId) -> None:
        """Notes that a worker has the newest weights."""
        self.away.remove(worker)
        self.working[worker] = self.version

    def note_push(self, worker: WorkerId) -> None:
        """Notes that a worker's gradient has arrived."""
        self.waiting[worker] = self.working.pop(worker)

    def remove_worker(self, worker: WorkerId) -> None:
        """Removes a worker that has no more work in this epoch and no gradient under way."""
        self.away.remove(worker)

    def next_update(self) -> tuple[WorkerId, ...]:
        """Returns the workers whose gradients move the weights now and which may pull again; none: wait."""
        group = self._rule(self)
        for worker in group:
            self.stalest = max(self.stalest, self.version - self.waiting.pop(worker))
            self.away.add(worker)
        self.version += bool(group)
        return group
