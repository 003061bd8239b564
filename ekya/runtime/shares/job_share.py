"""Share of a job in its process: numbered commands from many threads, and the use of the share."""

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Generic, TypeVar

from ekya.core.speed import SpeedCurve
from ekya.core.units import US_PER_S
from ekya.gpu.backends.backend import Measured, Resized, ShareHandle
from ekya.pipeline.device_scopes import DeviceScopes

_AGAIN_S = 0.02
"""Interval between two tries of a handle that could not release its share yet."""

_NO_MORE = sys.maxsize
"""Serial number of a part's last command."""

_BEGIN_TIMEOUT_S = 5.0
"""Timeout of a command that arrives before its job has begun."""

JobT = TypeVar("JobT")


class VersionedShare:
    """Share handle that applies commands by serial number: a later one overrides an earlier one.

    Several jobs may use one handle. Each then has a part of it, serial numbers count within a part, and the
    handle holds the sum. A part has released a share when the handle has settled at a sum without it.

    Attributes:
        holds_milli: share at which the handle settled last, over all parts.
    """

    def __init__(self, handle: ShareHandle) -> None:
        self.holds_milli = 0
        self._handle = handle
        self._parts: dict[Hashable, tuple[int, int]] = {}
        self._resizing = threading.Lock()
        self._ended = threading.Event()

    def resize(self, serial: int, share_milli: int, part: Hashable = None) -> Resized | None:
        """Sets the share of a part; returns when it has settled, at a boundary between two batches.

        Returns None if a newer command for the part, or the end of the jobs, has overtaken this one.
        """
        took_us = 0
        while not self._ended.is_set():
            with self._resizing:
                newest, _ = self._parts.get(part, (serial, 0))
                if serial < newest:
                    return None
                self._parts[part] = (serial, share_milli)
                whole_milli = sum(of_part for _, of_part in self._parts.values())
                resized = self._handle.resize(whole_milli)
            took_us += resized.took_us
            if resized.settled:
                self.holds_milli = resized.share_milli
                # The part's portion of what is held, if the whole was not granted as requested.
                holds_milli = share_milli * resized.share_milli // whole_milli if whole_milli else 0
                return replace(resized, share_milli=holds_milli, took_us=took_us)
            self._ended.wait(_AGAIN_S)
        return None

    def end_part(self, part: Hashable) -> None:
        """Ends a part; returns when its share is released. Later commands for it do nothing."""
        self.resize(_NO_MORE, 0, part)

    def release(self) -> None:
        """Lets the jobs run without limit from now on, since they are ending."""
        self._ended.set()
        self._handle.release()


class JobStoppedError(Exception):
    """The job was stopped; unwinds its thread."""


class JobShare:
    """Share of one job from its begin to its end, and its GPU use. Thread-safe.

    Nothing else may call the handle's ``measured``, which counts from one call to the next. Used time is
    converted after each batch, at the share that the job holds then.

    Args:
        handle: of the job.
        speed: speed curve of the job over its share.
        share_milli: initial share of the job.
        device: torch's name of the share's device.

    Attributes:
        scopes: contexts of each batch, by the device that computes it; all end with the job.
    """

    def __init__(self, handle: ShareHandle, speed: SpeedCurve, share_milli: int, device: str = "cpu") -> None:
        self.scope = handle.scope
        self.scopes = DeviceScopes(device, self.batch, self._beside)
        self._handle = handle
        self._share = VersionedShare(handle)
        self._speed = speed
        self._share_milli = share_milli
        self._stopped, self._over = threading.Event(), threading.Event()
        self._counting = threading.Lock()
        self._worth_us = 0.0
        self._unreported_us = 0

    @property
    def is_stopped(self) -> bool:
        """True if the job is to end at its next batch."""
        return self._stopped.is_set()

    def resize(self, serial: int, share_milli: int) -> Resized | None:
        """Changes the share, as ``VersionedShare.resize``."""
        resized = self._share.resize(serial, share_milli)
        # A batch that a pause has caught up with still counts at its share.
        if resized is not None and resized.share_milli:
            self._share_milli = resized.share_milli
        return resized

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Context of each batch: waits for the share, and counts its use.

        Raises:
            JobStoppedError: the job is to end.
        """
        with self._handle.scope():
            if self.is_stopped:
                raise JobStoppedError
            yield
        self._count()

    @contextmanager
    def _beside(self) -> Iterator[None]:
        if self.is_stopped:
            raise JobStoppedError
        yield

    def stop_job(self) -> Resized:
        """Stops the job at its next batch, which runs without limit; returns when the job is over."""
        began_ns = time.monotonic_ns()
        self._stopped.set()
        self.release()
        self._over.wait()
        return Resized(0, (time.monotonic_ns() - began_ns) // 1000)

    def release(self) -> None:
        """Lets the job run without limit."""
        self._share.release()

    def finish_job(self) -> None:
        """Releases the share; called by the job's thread when it has done its last work."""
        self.release()
        self._over.set()

    def wait_over(self) -> None:
        """Waits until the job is over."""
        self._over.wait()

    def worth_s(self) -> float:
        """Returns the seconds that a whole GPU would have needed for everything so far."""
        self._count()
        return self._worth_us / US_PER_S

    def unreported_us(self) -> int:
        """Returns the GPU time used since this was last called."""
        self._count()
        with self._counting:
            unreported_us, self._unreported_us = self._unreported_us, 0
        return unreported_us

    def _count(self) -> None:
        with self._counting:
            used_us = self._handle.measured().used_us
            self._worth_us += self._speed.whole_gpu_time(used_us, self._share_milli)
            self._unreported_us += used_us


class NewestJob(Generic[JobT]):
    """The newest of an actor's jobs, which have rising numbers; commands may arrive before their job.

    Attributes:
        job: the newest one; None before the first.
    """

    def __init__(self) -> None:
        self.job: JobT | None = None
        self._number = self._begun = -1
        self._changed = threading.Condition()

    def replace_job(self, number: int, job: JobT) -> None:
        """Replaces the job.

        Raises:
            LookupError: a newer one is here.
        """
        with self._changed:
            if number < self._number:
                raise LookupError(f"job {number} is over, since job {self._number} has begun")
            self._number, self.job = number, job

    def mark_begun(self, number: int) -> None:
        """Lets commands that wait for a job continue; also called for a job that could not begin."""
        with self._changed:
            self._begun = max(self._begun, number)
            self._changed.notify_all()

    def get_job(self, number: int) -> JobT | None:
        """Returns the job of this number, if it is the newest."""
        with self._changed:
            return self.job if self._number == number else None

    def wait_begun(self, number: int) -> JobT | None:
        """Waits until the job has begun; returns None if it is over, or never began."""
        with self._changed:
            self._changed.wait_for(lambda: self._begun >= number, _BEGIN_TIMEOUT_S)
            return self.get_job(number)


class SharedUse:
    """Charges each owner its part of a handle's measured use, in proportion to its analysed pictures.

    A batched call for all streams has only one measured cost. Thread-safe. Nothing else may call the handle's
    ``measure_owner``, which counts from one call to the next.
    """

    def __init__(self, handle: ShareHandle) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._pictures: defaultdict[Hashable, float] = defaultdict(float)
        self._open_us = 0.0
        self._used_us: dict[Hashable, float] = {}
        self._wall_us = 0
        self._reported_at_us: dict[Hashable, int] = {}

    def add_owner(self, owner: Hashable) -> None:
        """Adds an owner."""
        with self._lock:
            self._divide()
            self._used_us[owner], self._reported_at_us[owner] = 0.0, self._wall_us

    def remove_owner(self, owner: Hashable) -> None:
        """Removes an owner."""
        with self._lock:
            self._divide()
            self._used_us.pop(owner, None)
            self._reported_at_us.pop(owner, None)

    def count_pictures(self, owner: Hashable, pictures: float) -> None:
        """Counts pictures that were analysed for an owner, or other work that costs as much as these."""
        with self._lock:
            if owner in self._used_us:
                self._pictures[owner] += pictures

    def measure_owner(self, owner: Hashable) -> Measured:
        """Returns the use of an owner since the last call, or since it entered.

        Raises:
            KeyError: the owner has not entered.
        """
        with self._lock:
            self._divide()
            wall_us = self._wall_us - self._reported_at_us[owner]
            used_us = round(self._used_us[owner])
            self._used_us[owner], self._reported_at_us[owner] = 0.0, self._wall_us
            return Measured(used_us, wall_us)

    def _divide(self) -> None:
        whole = self._handle.measured()
        self._wall_us += whole.wall_us
        self._open_us += whole.used_us
        pictures = sum(self._pictures.values())
        if pictures:
            for owner, count in self._pictures.items():
                self._used_us[owner] += self._open_us * count / pictures
            self._pictures.clear()
            self._open_us = 0.0
