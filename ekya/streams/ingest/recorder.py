"""Records a live camera to a video file, in which a second is a second of real time."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.credentials import mask_passwords
from ekya.streams.ingest.feed import Feed
from ekya.streams.ingest.process import Arrived
from ekya.streams.ingest.video import SUFFIX, VideoFile
from ekya.system.files import atomic_path

_LOG = logging.getLogger(__name__)

_NOT_YET = "it was not there yet"


@dataclass(frozen=True, slots=True)
class Gap:
    """Slots in which the camera was lost; they repeat its last picture.

    Attributes:
        begin, end: first slot of the gap, and first slot after it.
        reason: why the camera was lost, in words.
    """

    begin: int
    end: int
    reason: str


@dataclass(eq=False)
class FrameGrid:
    """Fills every slot with the newest picture that had arrived by the slot's time.

    A gap begins at the camera's last picture, not when the loss is detected. If the first picture comes late,
    it also fills the slots before, as a gap.

    Attributes:
        fps: slots a second.
        limit: number of slots.
        put: callback that takes the picture of the next slot, (H, W, 3) uint8.
        slots: number of slots filled so far.
        repeated: number of slots outside gaps that repeat the picture of the slot before.
        gaps: closed gaps, in order.
    """

    fps: float
    limit: int
    put: Callable[[NDArray[np.uint8]], None]
    slots: int = field(default=0, init=False)
    repeated: int = field(default=0, init=False)
    gaps: list[Gap] = field(default_factory=list, init=False)
    _newest: NDArray[np.uint8] | None = field(default=None, init=False)
    _fresh: bool = field(default=False, init=False)
    _same_since: int = field(default=0, init=False)
    _lost: str | None = field(default=None, init=False)

    @property
    def due_us(self) -> int:
        """Time at which the next slot is due, microseconds since the first slot."""
        return round(self.slots * US_PER_S / self.fps)

    @property
    def full(self) -> bool:
        """True when all slots are filled."""
        return self.slots >= self.limit

    def show_picture(self, t_us: int, image: NDArray[np.uint8]) -> None:
        """Adds the picture that is shown from ``t_us`` on; times rise, and may lie before the first slot."""
        if self._newest is None and t_us > 0:
            self._newest, self._lost = image, self._lost or _NOT_YET
        # A slot that is due at this very time shows the new picture.
        self.fill_slots(t_us - 1)
        self.close_gap()
        self._newest, self._fresh = image, True

    def note_loss(self, reason: str) -> None:
        """Marks the camera as lost until its next picture."""
        self._lost = reason

    def fill_slots(self, until_us: int) -> None:
        """Fills all slots that are due by ``until_us``; none before the first picture."""
        while self._newest is not None and not self.full and self.due_us <= until_us:
            self.put(self._newest)
            self.slots += 1
            if self._fresh:
                self._fresh, self._same_since = False, self.slots

    def close_gap(self) -> None:
        """Records the slots since the last new picture, as a gap if the camera was lost, else as repeated.

        To be called after the last picture.
        """
        same = self.slots - self._same_since
        if self._lost is not None and same:
            self.gaps.append(Gap(self._same_since, self.slots, self._lost))
        elif self._lost is None:
            self.repeated += same
        self._lost = None
        self._same_since = self.slots


_LATE_US = 250_000
"""Delay after which a slot is filled, so that every picture that arrived by its time has been received."""

_STEP_S = 0.1
_NOTHING_CAME = "it gave no picture"
_SLOWEST_FPS = 0.1


@dataclass(frozen=True, slots=True)
class Recording:
    """A camera's video file.

    Attributes:
        file: path of the file.
        fps: frames a second.
        frames: number of frames in the file.
        repeated: frames outside gaps that repeat the one before, as no newer picture had arrived in time.
        width, height: pixels.
        size_bytes: size of the file.
        gaps: losses of the camera, in frames of the file.
        problem: why the file ends early, in one sentence; None if it does not.
    """

    file: Path
    fps: float
    frames: int
    repeated: int
    width: int
    height: int
    size_bytes: int
    gaps: tuple[Gap, ...]
    problem: str | None

    @property
    def duration_s(self) -> float:
        """Duration of the video, seconds."""
        return self.frames / self.fps


class CameraRecorder:
    """Records one camera: construct, ``wait_picture``, ``record``, ``close``. Memory does not grow with time.

    Attributes:
        fps: frames a second of the file, available after ``wait_picture``.
    """

    def __init__(self, name: str, spec: CameraSpec, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Starts to connect to the camera.

        Args:
            name: name of its stream, for the log.
            spec: the camera.
            now_ns: monotonic clock; tests pass their own.
        """
        self._now_ns = now_ns
        self._name = name
        self._spec = spec
        self._feed = Feed(spec, ())
        self._began_ns = 0
        self.fps = 0.0
        self._first: NDArray[np.uint8] | None = None
        self._grid: FrameGrid | None = None
        self._lost: str | None = None

    @property
    def slots(self) -> int:
        """Number of frames written so far."""
        return 0 if self._grid is None else self._grid.slots

    def wait_picture(self) -> str | None:
        """Waits until the camera gives its first picture or counts as lost.

        Returns:
            Why there is no picture, in words; None if there is one.
        """
        # The container stores two decimals exactly, so the file does not drift against real time.
        try:
            self.fps = max(_SLOWEST_FPS, round(self._feed.wait_open(), 2))
        except UserError as error:
            return mask_passwords(str(error), self._spec.model_dump_json())
        self._began_ns = self._now_ns()
        self._feed.start_frames(self._began_ns)
        until_ns = self._began_ns + round(self._spec.stall_s * 1e9)
        while self._first is None and self._feed.lost is None and self._now_ns() < until_ns:
            self._first = _newest(self._feed.poll_frames(_STEP_S), self._first)
        return None if self._first is not None else self._feed.lost or _NOTHING_CAME

    def record_video(self, path: Path, started_ns: int, seconds: float, stop: threading.Event) -> Recording:
        """Records a file; returns when it is complete, or soon after ``stop`` is set.

        Args:
            path: path of the file, which appears when it is complete.
            started_ns: monotonic time of the first frame, in the near future.
            seconds: duration of the file.
            stop: ends the recording early.

        Raises:
            UserError: the camera gave no picture, or the file cannot be written.
        """
        began_us = (started_ns - self._began_ns) // 1000
        frames = max(1, round(seconds * self.fps))
        first = self._first if self._first is not None else self._awaited(started_ns, seconds, stop)
        if first is None:
            raise UserError(self._no_picture())
        with atomic_path(path, f".tmp{SUFFIX}") as temporary:
            video = VideoFile(temporary, first, self.fps)
            grid = self._grid = FrameGrid(self.fps, frames, video.write_picture)
            problem = None
            try:
                if self._first is not None:
                    # Before the first slot, so that the recording does not begin with a gap.
                    grid.show_picture(-1, first)
                self._fill(grid, began_us, started_ns, stop)
            except UserError as error:
                problem = str(error)
            finally:
                # Only a closed file tells how many of its pictures can be read.
                readable = video.close()
            grid.close_gap()
            # A file that is one gap shows nothing of its time.
            if not readable or any(gap.begin == 0 and gap.end >= readable for gap in grid.gaps):
                raise UserError(problem or self._no_picture())
            if problem is None and readable < grid.slots:
                problem = (
                    f"{path}: the last {grid.slots - readable} of its frames cannot be read; check the disk"
                )
            size_bytes = temporary.stat().st_size
        return Recording(
            file=path,
            fps=self.fps,
            frames=readable,
            repeated=min(grid.repeated, readable),
            width=video.size[0],
            height=video.size[1],
            size_bytes=size_bytes,
            gaps=tuple(
                Gap(gap.begin, min(gap.end, readable), gap.reason)
                for gap in grid.gaps
                if gap.begin < readable
            ),
            problem=problem,
        )

    def close(self) -> None:
        """Releases the camera. May be called twice."""
        self._feed.close()

    def _awaited(self, started_ns: int, seconds: float, stop: threading.Event) -> NDArray[np.uint8] | None:
        """Waits for the first picture of a camera that was lost at the start; None if none comes in time."""
        end_ns = started_ns + round(seconds * 1e9)
        first = None
        while first is None and not stop.is_set() and self._now_ns() < end_ns:
            first = _newest(self._feed.poll_frames(_STEP_S), None)
            self._log_loss()
        return first

    def _fill(self, grid: FrameGrid, began_us: int, started_ns: int, stop: threading.Event) -> None:
        while not grid.full and not stop.is_set():
            now_us = (self._now_ns() - started_ns) // 1000
            waits_s = (grid.due_us + _LATE_US - now_us) / US_PER_S
            # Only without a picture can a slot be overdue, and then it waits for one.
            arrived = self._feed.poll_frames(min(waits_s, _STEP_S) if waits_s > 0 else _STEP_S)
            if arrived and arrived[-1].frame is not None:
                grid.show_picture(arrived[-1].t_us - began_us, arrived[-1].frame.image)
            if self._feed.lost is not None:
                grid.note_loss(self._feed.lost)
            self._log_loss()
            grid.fill_slots((self._now_ns() - started_ns) // 1000 - _LATE_US)

    def _log_loss(self) -> None:
        """Logs when the camera is lost or back."""
        if self._feed.lost != self._lost:
            if self._lost is None:
                _LOG.warning("%s is lost: %s", self._name, self._feed.lost)
            elif self._feed.lost is None:
                _LOG.warning("%s is back", self._name)
            self._lost = self._feed.lost

    def _no_picture(self) -> str:
        return mask_passwords(self._feed.lost or _NOTHING_CAME, self._spec.model_dump_json())


def _newest(arrived: list[Arrived], before: NDArray[np.uint8] | None) -> NDArray[np.uint8] | None:
    """Returns the last picture among these, or ``before`` if there is none."""
    frame = arrived[-1].frame if arrived else None
    return before if frame is None else frame.image
