"""Measures what a service takes of its machine: memory, disk, restarts and answers that wait."""

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from ekya.service.run_folder_contents import folder_bytes

FOLDER_EVERY_S = 60.0
"""The folder is walked at most this often: after a week it has thousands of files."""


class SinkFacts(Protocol):
    """How far answers have got to one sink."""

    @property
    def name(self) -> str:
        """Its name in the fleet file."""

    @property
    def delivered(self) -> int:
        """Number of answers that it has confirmed since this process began."""

    @property
    def lost_frames(self) -> int:
        """Number of frames that were removed before their answers were confirmed, as counted since then."""

    @property
    def waiting_frames(self) -> int:
        """Number of frames whose answers it has not confirmed yet."""

    @property
    def waiting_s(self) -> float:
        """Age of the oldest of these; 0 without any."""


@dataclass(frozen=True, slots=True)
class ServiceHostFacts:
    """What a service takes of its machine.

    Attributes:
        restarts: how often the service was restarted after a crash, as long as it has its folder.
        memory_bytes: memory that its processes hold for themselves alone.
        folder_bytes: of all files in its folder; a file with two names counts once.
        disk_free_bytes, disk_size_bytes: of the folder's disk.
        sinks: of its answers.
        answered_unix_s: time of each camera's newest answer; none before the first.
    """

    restarts: int = 0
    memory_bytes: int = 0
    folder_bytes: int = 0
    disk_free_bytes: int = 0
    disk_size_bytes: int = 0
    sinks: Sequence[SinkFacts] = ()
    answered_unix_s: Mapping[str, float] = field(default_factory=dict)


class HostMeter:
    """Measures a service; a call takes some milliseconds, from any thread.

    Args:
        folder: of the service.
        restarts: returns their number.
        sinks: returns the state of each sink.
        answered_unix_s: returns the time of each camera's newest answer.
        clock: seconds.
    """

    def __init__(
        self,
        folder: Path,
        restarts: Callable[[], int],
        sinks: Callable[[], Sequence[SinkFacts]],
        answered_unix_s: Callable[[], Mapping[str, float]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._clock = folder, clock
        self._restarts, self._sinks, self._answered_unix_s = restarts, sinks, answered_unix_s
        self._folder_bytes, self._walk_s = 0, -FOLDER_EVERY_S
        self._lock = threading.Lock()

    def measure_host(self) -> ServiceHostFacts:
        """Returns the facts of now; the size of the folder may be a minute old."""
        disk = shutil.disk_usage(self._folder)
        return ServiceHostFacts(
            restarts=self._restarts(),
            memory_bytes=memory_bytes(),
            folder_bytes=self._size_of_folder(),
            disk_free_bytes=disk.free,
            disk_size_bytes=disk.total,
            sinks=self._sinks(),
            answered_unix_s=self._answered_unix_s(),
        )

    def _size_of_folder(self) -> int:
        # Held during the walk: a second scrape waits for it, and does not walk as well.
        with self._lock:
            now_s = self._clock()
            if now_s - self._walk_s >= FOLDER_EVERY_S:
                self._folder_bytes, self._walk_s = folder_bytes(self._folder), now_s
            return self._folder_bytes


def memory_bytes() -> int:
    """Returns the memory that this process and those below it hold for themselves alone.

    What they share, such as code and Ray's object store, would count in each of them.
    """
    own = psutil.Process()
    total = 0
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.Error):
            used = process.memory_info()
            total += used.rss - used.shared
    return total
