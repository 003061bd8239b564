"""Pool of a GPU's green contexts, made once each: a level is a span of SMs and a stream that runs there."""

import threading
from dataclasses import dataclass

from ekya.gpu.green.sm_driver import SmDriver, SmDriverError, SmGroup
from ekya.gpu.green.sm_layout import SmLayout


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

    The device is split once: groups of two splits cannot be mixed. Green contexts and their streams live
    until ``close``. Each job has a lane, and each lane has a separate stream on every level: torch reuses
    freed memory for the next allocation on the stream of the first one, while a job that moved to another
    stream may still be using it.
    """

    def __init__(self, driver: SmDriver) -> None:
        """Splits the GPU; makes no context.

        Raises:
            SmDriverError: a driver call fails, or the driver makes no groups.
        """
        self._driver = driver
        self._groups, self._rest = driver.split(driver.whole())
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

    def close(self) -> None:
        """Waits for all work and destroys everything, streams first. May be called again."""
        with self._lock:
            streams, self._streams = list(self._streams.values()), {}
            contexts, self._contexts = list(self._contexts.values()), {}
        for stream in streams:
            self._driver.synchronise(stream)
            self._driver.destroy_stream(stream)
        for context in contexts:
            self._driver.destroy_context(context.handle)
        self._driver.close()

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
