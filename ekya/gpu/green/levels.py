"""Levels of a GPU: spans of SMs, each a green context with streams, made once and checked before use."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ekya.gpu.backends.gpu_streams import GpuStreams
from ekya.gpu.green.sm_driver import SmDriver, SmDriverError, SmGroup, SmLayout
from ekya.system.numeric_result import Checked

Gate = Callable[[], Sequence[Checked]]
"""Checks arithmetic on the calling thread's stream and waits for the result."""


@dataclass(frozen=True, slots=True)
class Level:
    """Span of SMs with a stream that runs there.

    Attributes:
        first, groups: first group and number of groups that were requested.
        sms: SMs that the driver granted, as read back; can be fewer.
        stream: address of the CUDA stream whose kernels run only there.
    """

    first: int
    groups: int
    sms: int
    stream: int


@dataclass(frozen=True, slots=True)
class _Context:
    """Green context of a span, and its number of SMs."""

    handle: object
    sms: int


class LevelPool:
    """Levels of one GPU in one process, shared by its jobs. Thread-safe.

    The device is split once: groups of two splits cannot be mixed. Green contexts and their streams live as
    long as the process. Each job has a lane, and each lane has a separate stream on every level: torch reuses
    freed memory for the next allocation on the stream of the first one, while a job that moved to another
    stream may still be using it.
    """

    def __init__(self, driver: SmDriver) -> None:
        """Splits the GPU; makes no context.

        Raises:
            SmDriverError: a driver call fails, or the driver makes no groups.
        """
        self._driver = driver
        self._groups, self._rest = driver.split_groups(driver.whole())
        if not self._groups:
            raise SmDriverError("the driver splits this GPU into no groups of SMs")
        self._lock = threading.Lock()
        self._contexts: dict[tuple[int, int], _Context] = {}
        self._streams: dict[tuple[int, int, int], int] = {}
        self._lanes: set[int] = set()
        rest_sms = 0 if self._rest is None else self._rest.sms
        self.layout = SmLayout(self._groups[0].sms, len(self._groups), rest_sms)

    def take_lane(self) -> int:
        """Takes the smallest free lane, so that later jobs reuse the cached memory of earlier ones."""
        with self._lock:
            lane = next(lane for lane in range(len(self._lanes) + 1) if lane not in self._lanes)
            self._lanes.add(lane)
            return lane

    def give_lane_back(self, lane: int) -> None:
        """Frees the lane of a job that has ended. Takes no lock, since garbage collection may call it."""
        self._lanes.discard(lane)

    def level(self, first: int, groups: int, lane: int = 0) -> Level:
        """Returns the level of a span, and makes it if it was not made ahead.

        Raises:
            ValueError: there is no such span.
            SmDriverError: a driver call fails; no part of the level is left behind.
        """
        if not 0 <= first < first + groups <= len(self._groups):
            raise ValueError(
                f"groups {first} to {first + groups} of {len(self._groups)}: there is no such span"
            )
        with self._lock:
            if (first, groups) not in self._contexts:
                self._contexts[first, groups] = self._make_context(first, groups)
            context = self._contexts[first, groups]
            if (first, groups, lane) not in self._streams:
                self._streams[first, groups, lane] = self._make_stream(context)
            return Level(first, groups, context.sms, self._streams[first, groups, lane])

    def _make_context(self, first: int, groups: int) -> _Context:
        context = self._context(self._groups[first : first + groups], first + groups == len(self._groups))
        try:
            return _Context(context, self._driver.context_sms(context))
        except SmDriverError:
            self._driver.destroy_context(context)
            raise

    def _make_stream(self, context: _Context) -> int:
        stream = self._driver.make_stream(context.handle)
        try:
            # On a stream elsewhere kernels would silently run on the SMs of other jobs.
            if not self._driver.is_on(stream, context.handle):
                raise SmDriverError(
                    "the driver made a stream outside the green context that it was asked for"
                )
        except SmDriverError:
            self._driver.destroy_stream(stream)
            raise
        return stream

    def _context(self, chosen: tuple[SmGroup, ...], is_last: bool) -> object:
        if is_last and self._rest is not None:
            try:
                return self._driver.make_context((*chosen, self._rest))
            except SmDriverError:
                # Not every driver can join the rest to groups; `sms` then shows that it is missing.
                pass
        return self._driver.make_context(chosen)


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

    def _check(self, level: Level) -> tuple[Checked, ...]:
        # One check at a time: its result holds for all levels with this number of SMs.
        with self._lock:
            if level.sms not in self._failed:
                self._streams.enter_stream(level.stream)
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
