"""Levels that may be used, since arithmetic on their number of SMs has been checked."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ekya.gpu.backends.meter import GpuStreams
from ekya.gpu.green.levels import Level, LevelPool
from ekya.gpu.green.sm_driver import SmDriverError
from ekya.gpu.green.sm_layout import SmLayout
from ekya.system.numeric_result import Checked

Gate = Callable[[], Sequence[Checked]]
"""Checks arithmetic on the calling thread's stream and waits for the result."""


@dataclass(frozen=True, slots=True)
class Usable:
    """Usable part of a span.

    Attributes:
        level: the largest usable level at the span's start, or None.
        refused: why larger ones are not usable, a clause each.
    """

    level: Level | None
    refused: tuple[str, ...]


class GatedLevels:
    """Levels of a pool, with each number of SMs checked before its first use.

    Failures depend on the number of SMs and not on which ones, so each number is checked once.
    All methods are thread-safe; the calling thread may be on another stream afterwards.
    """

    def __init__(self, pool: LevelPool, streams: GpuStreams, gate: Gate) -> None:
        self._pool = pool
        self._streams = streams
        self._gate = gate
        self._lock = threading.Lock()
        self._failed: dict[int, tuple[Checked, ...]] = {}

    @property
    def layout(self) -> SmLayout:
        """Division of the GPU into groups."""
        return self._pool.layout

    @property
    def failed(self) -> dict[int, tuple[Checked, ...]]:
        """Failed checks by number of SMs, for the numbers checked so far."""
        with self._lock:
            return dict(self._failed)

    def take_lane(self) -> int:
        """Takes a lane of the pool."""
        return self._pool.take_lane()

    def give_lane_back(self, lane: int) -> None:
        """Gives a lane back to the pool."""
        self._pool.give_lane_back(lane)

    def usable(self, first: int, groups: int, lane: int = 0) -> Usable:
        """Returns the largest level from ``first``, of at most ``groups``, that can be made and passes."""
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
        """Makes and checks levels ahead of use; failures are reported later, by ``usable``."""
        for first, groups in spans:
            self.usable(first, groups)

    def close(self) -> None:
        """Waits for all work, then destroys all levels."""
        self._pool.close()

    def _check(self, level: Level) -> tuple[Checked, ...]:
        with self._lock:
            if level.sms not in self._failed:
                self._streams.enter(level.stream)
                self._failed[level.sms] = tuple(one for one in self._gate() if not one.passed)
            return self._failed[level.sms]


def sizes_of(layout: SmLayout, levels: int) -> tuple[int, ...]:
    """Returns at most ``levels`` numbers of groups, evenly spaced up to all."""
    return tuple(sorted({max(1, round(layout.groups * one / levels)) for one in range(1, levels + 1)}))


def spans_ahead(layout: SmLayout) -> tuple[tuple[int, int], ...]:
    """Returns spans of a quarter, half, three quarters and all of the GPU, from its start and to its end.

    They are few, since every process makes them and the GPU's resources for green contexts are limited.
    Others are made on demand, while the job continues on its current level.
    """
    sizes = sizes_of(layout, 4)
    from_start = [(0, groups) for groups in sizes]
    to_end = [(layout.groups - groups, groups) for groups in sizes if groups < layout.groups]
    return (*from_start, *to_end)
