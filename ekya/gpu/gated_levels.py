"""Levels that may be used: those on whose SMs arithmetic has been checked."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ekya.arithmetic.checked import Checked
from ekya.gpu.gpu_streams import GpuStreams
from ekya.gpu.levels import Level, LevelPool
from ekya.gpu.sm_driver import SmDriverError
from ekya.gpu.sm_layout import SmLayout

Gate = Callable[[], Sequence[Checked]]
"""Checks arithmetic on the calling thread's stream and waits for it."""


@dataclass(frozen=True, slots=True)
class Usable:
    """What can be used of a span.

    Attributes:
        level: the largest level at the span's start that may be used, or None.
        refused: why no larger one, a clause each.
    """

    level: Level | None
    refused: tuple[str, ...]


class GatedLevels:
    """The levels of a pool, each number of SMs checked before it is first used.

    What fails depends on how many SMs there are and not on which, so a number is checked once.
    Every method may be called by any thread; the calling thread may be on another stream afterwards.
    """

    def __init__(self, pool: LevelPool, streams: GpuStreams, gate: Gate) -> None:
        self._pool = pool
        self._streams = streams
        self._gate = gate
        self._lock = threading.Lock()
        self._failed: dict[int, tuple[Checked, ...]] = {}

    @property
    def layout(self) -> SmLayout:
        """Of the GPU."""
        return self._pool.layout

    @property
    def failed(self) -> dict[int, tuple[Checked, ...]]:
        """What failed, by number of SMs, of those that were checked so far."""
        with self._lock:
            return dict(self._failed)

    def take_lane(self) -> int:
        """As the pool's."""
        return self._pool.take_lane()

    def give_lane_back(self, lane: int) -> None:
        """As the pool's."""
        self._pool.give_lane_back(lane)

    def usable(self, first: int, groups: int, lane: int = 0) -> Usable:
        """The largest level of at most so many groups from ``first`` on that is made and passes."""
        refused: list[str] = []
        for fewer in range(groups, 0, -1):
            try:
                level = self._pool.level(first, fewer, lane)
                failed = self._check(level)
            except SmDriverError as error:
                refused.append(str(error))
                continue
            if not failed:
                return Usable(level, tuple(refused))
            refused.append(f"on {level.sms} SMs " + ", ".join(str(one) for one in failed))
        return Usable(None, tuple(refused))

    def make_ahead(self, spans: Iterable[tuple[int, int]]) -> None:
        """Makes and checks levels that will be wanted; what fails is left to ``usable`` to say."""
        for first, groups in spans:
            self.usable(first, groups)

    def close(self) -> None:
        """Waits for all work and destroys all levels."""
        self._pool.close()

    def _check(self, level: Level) -> tuple[Checked, ...]:
        with self._lock:
            if level.sms not in self._failed:
                self._streams.enter(level.stream)
                self._failed[level.sms] = tuple(one for one in self._gate() if not one.passed)
            return self._failed[level.sms]


def sizes_of(layout: SmLayout, levels: int) -> tuple[int, ...]:
    """So many numbers of groups, or fewer, evenly from small to all."""
    return tuple(sorted({max(1, round(layout.groups * one / levels)) for one in range(1, levels + 1)}))


def spans_ahead(layout: SmLayout) -> tuple[tuple[int, int], ...]:
    """Spans of each quarter more, from the first group on and up to the last.

    They are few, since every process makes them and what the GPU has for green contexts is not without
    end. Others are made on the spot, while the job goes on where it is.
    """
    sizes = sizes_of(layout, 4)
    from_start = [(0, groups) for groups in sizes]
    to_end = [(layout.groups - groups, groups) for groups in sizes if groups < layout.groups]
    return (*from_start, *to_end)
