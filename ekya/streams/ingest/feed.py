"""Source of a stream that restarts in a new process when its process dies."""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Self

from ekya.core.areas import WHOLE_PICTURE, Areas
from ekya.streams.ingest.camera import ASSUMED_FPS, CameraReconnect
from ekya.streams.ingest.frame import Frame, Truth
from ekya.streams.ingest.process import Arrived, SourceDiedError, SourceProcess, SourceSpec

_LOG = logging.getLogger(__name__)

_DEATHS_ALLOWED, DEATHS_WITHIN_S = 2, 60.0
"""A recording is given up when its decoder dies more often than this within this time."""


class LiveSample:
    """Reads a live source for a limited time as if it were a recording; may yield nothing.

    Args:
        spec: specification of the source.
        duration_s: seconds to read.
        now_ns: monotonic clock; tests pass their own.
    """

    def __init__(
        self, spec: SourceSpec, duration_s: float, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._feed = Feed(spec, ())
        self._duration_s, self._now_ns = duration_s, now_ns
        self.wait_open = self._feed.wait_open

    @property
    def cpu_s(self) -> float:
        """Processor time that reading has taken, in seconds."""
        return self._feed.cpu_s

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields the newest frame at each request until the time is over."""
        self._feed.wait_open()
        began_ns = self._now_ns()
        until_ns = began_ns + round(self._duration_s * 1e9)
        self._feed.start_frames(began_ns)
        while (left_ns := until_ns - self._now_ns()) > 0:
            for arrived in self._feed.poll_frames(min(left_ns / 1e9, 1.0)):
                if arrived.frame is not None:
                    yield arrived.frame, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._feed.close()


class Feed:
    """Runs a ``SourceProcess`` and replaces it when it dies.

    A live source is restarted as long as the feed is open: meanwhile its camera counts as lost, as if its
    address did not answer. A recording ends when its process dies too often, since a damaged file aborts the
    decoder again, or when the process refused to open it.
    """

    def __init__(
        self,
        spec: SourceSpec,
        classes: tuple[str, ...],
        name: str = "a source",
        areas: Areas = WHOLE_PICTURE,
    ) -> None:
        """Starts the process, which opens the source; ``name`` is for the log."""
        self._name = name
        self._spec = spec
        self._classes = classes
        self._areas = areas
        self._process = SourceProcess(spec, classes, areas=areas)
        self._started_monotonic_ns: int | None = None
        self._next_index = self._from_us = 0
        self._lost_by: str | None = None
        self._reconnect = CameraReconnect()
        self._again_s = 0.0
        self._damaged = 0
        self._deaths_s: list[float] = []
        self._has_given_up = False
        self._paused = False

    @property
    def lost(self) -> str | None:
        """Reason why a live camera currently gives no frames, in words; None while it does, or is paused."""
        return None if self._paused else self._lost_by or self._process.lost

    @property
    def died(self) -> str | None:
        """Reason why a recording ended before its last frame, in words; None if it did not."""
        if not self._has_given_up:
            return None
        if self._process.refused:
            return self._process.died
        return f"its decoder died {len(self._deaths_s)} times, {self._process.died}"

    @property
    def ended(self) -> bool:
        """True when no more frames will come."""
        return self._has_given_up or (not self._spec.live and self._process.ended and not self._process.died)

    @property
    def cpu_s(self) -> float:
        """Processor time that its process has used, in seconds."""
        return self._process.cpu_s

    @property
    def damaged(self) -> int:
        """Number of frames so far that could not be decoded."""
        return max(self._damaged, self._process.damaged)

    def wait_open(self) -> float:
        """Waits until the source is open; see ``SourceProcess.wait_open``.

        Returns:
            Frames a second; ``ASSUMED_FPS`` if opening killed the process of a live source (now lost) or, too
            often, that of a recording (now ended).
        """
        while True:
            try:
                return self._process.wait_open()
            except SourceDiedError:
                if not self._spec.live:
                    self._take_over()
                if self._spec.live or self._has_given_up:
                    return ASSUMED_FPS

    def start_frames(self, started_monotonic_ns: int, from_index: int = 0, from_us: int = 0) -> None:
        """Starts the paced delivery of frames; see ``SourceProcess.start_frames``."""
        self._started_monotonic_ns, self._next_index, self._from_us = (
            started_monotonic_ns,
            from_index,
            from_us,
        )
        self._process.start_frames(started_monotonic_ns, from_index, from_us=from_us)

    def poll_frames(self, timeout_s: float) -> list[Arrived]:
        """Returns the frames that arrived, as ``SourceProcess.poll``.

        Restarts a process that died; that of a live source after an increasing back-off.
        """
        if self._paused:
            # The caller polls in a loop, and would spin.
            time.sleep(timeout_s)
            return []
        arrived = self._process.poll_frames(timeout_s)
        if arrived:
            self._next_index = arrived[-1].index + 1
            self._lost_by, self._reconnect = None, CameraReconnect()
            # Without frames every death counts.
            since_s = time.monotonic() - DEATHS_WITHIN_S
            self._deaths_s = [at_s for at_s in self._deaths_s if at_s > since_s]
        if self._spec.live and self._process.ended:
            self._reconnect_camera(timeout_s)
        elif self._process.died is not None and not self._has_given_up:
            self._take_over()
        return arrived

    def pause_source(self) -> None:
        """Closes the source until ``resume_source``. Called by the thread that polls."""
        if not self._paused:
            self._paused = True
            self._process.close()

    def resume_source(self) -> None:
        """Opens the source again at the next frame. Called by the thread that polls."""
        if self._paused:
            self._paused = False
            self._restart()

    def set_areas(self, areas: Areas) -> None:
        """Sets where objects of the next frames count. Any thread may call."""
        self._areas = self._process.areas = areas

    def close(self) -> None:
        """Ends the process and releases its resources. May be called twice."""
        self._process.close()

    def _take_over(self) -> None:
        """Restarts the process of a recording at the next frame, or gives the recording up."""
        self._deaths_s.append(time.monotonic())
        self._has_given_up = self._process.refused or len(self._deaths_s) > _DEATHS_ALLOWED
        if self._has_given_up:
            return
        _LOG.warning(
            "%s: its decoder died (%s) and is started again at frame %d",
            self._name,
            self._process.died,
            self._next_index,
        )
        self._restart()

    def _reconnect_camera(self, timeout_s: float) -> None:
        """Restarts the process of a live source when its back-off is over."""
        now_s = time.monotonic()
        if self._again_s <= now_s and self._lost_by is None:
            self._lost_by = f"its process died ({self._process.died})"
            self._again_s = now_s + self._reconnect.next_delay_s()
        if now_s < self._again_s:
            time.sleep(min(timeout_s, self._again_s - now_s))
            return
        self._again_s = now_s + self._reconnect.next_delay_s()
        self._restart()

    def _restart(self) -> None:
        # Each process counts damaged frames from the first frame, so the counts must not be added.
        self._damaged = self.damaged
        self._process.close()
        self._process = SourceProcess(self._spec, self._classes, areas=self._areas)
        if self._started_monotonic_ns is not None:
            # The request waits in the process's input until the source is open.
            self._process.start_frames(self._started_monotonic_ns, self._next_index, from_us=self._from_us)
