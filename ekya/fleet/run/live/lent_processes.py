"""Processes of a site that others use; they are made under the share backend of its server."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import psutil

from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import CallError, Handle, public_methods
from ekya.fleet.run.sites.server import SiteServer
from ekya.fleet.run.training.actors import TrainingActor, TrainingProcesses
from ekya.fleet.run.training.trainer import SILENT_S
from ekya.gpu.backends.backend import ShareBackend
from ekya.system.processes import find_process, still_runs

_GONE_WITHIN_S = 5.0
"""Time in which processes are gone after Ray was told to end them."""

_SAYS_WHO_S = 1.0
"""Time in which a live process returns its pid."""

_METHODS = public_methods(TrainingActor)


class LentProcesses:
    """Offers processes of this site to the sites that take them. Thread-safe.

    Args:
        ray_node: id of the Ray node of this process.
        shares: the server's backend, opened; it is closed after this.
        gpu: index of the server's GPU for guests.
        doors: where other sites reach the processes.
        now_s: a clock that is never set.
    """

    def __init__(
        self,
        ray_node: str,
        shares: ShareBackend,
        gpu: int,
        doors: SiteServer,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._processes, self._doors = TrainingProcesses(ray_node, shares, gpu), doors
        self._taken: dict[Handle, _Taken] = {}
        self._now_s = now_s
        self._heard_s: dict[SiteName, float] = {}
        self._made: list[Handle] = []
        self._closed = False
        self._lock = threading.Lock()

    def warm_process(self) -> None:
        """Makes one idle process before it is needed: loading torch takes longer than a small training."""
        process = self._processes.take_process()
        with self._lock:
            self._made.append(process)
        process.call("pid").result()
        self._processes.give_back_process(process)

    def take_process(self, borrower: SiteName) -> Handle:
        """Returns a process for a job of that server, as other sites reach it.

        Raises:
            CallError: the server is closing.
        """
        process, name = self._processes.take_process(), f"training-{uuid4().hex[:12]}"
        heard = partial(self._hear, borrower)
        heard()
        with self._lock:
            if not self._closed:
                if process not in self._made:
                    self._made.append(process)
                reached = self._doors.offer_object(name, _Noted(process, heard), _METHODS)
                self._taken[reached] = _Taken(name, borrower, process)
                return reached
        process.end_process()
        raise CallError("this server takes no guests any more")

    def give_back_process(self, borrower: SiteName, reached: Handle) -> None:
        """Takes a process back; one that was ended before, or is not taken, is ignored."""
        self._hear(borrower)
        with self._lock:
            taken = self._taken.pop(reached, None)
        if taken is not None:
            self._doors.withdraw_object(taken.name)
            self._processes.give_back_process(taken.process)

    def end_silent(self) -> None:
        """Ends the processes of servers that were not heard of for ``SILENT_S``: the link may be cut."""
        now_s = self._now_s()
        self._end(lambda taken: now_s - self._heard_s[taken.borrower] > SILENT_S)

    def end_of(self, borrower: SiteName) -> None:
        """Ends the processes of a dead server's guests, which no other server would end."""
        self._end(lambda taken: taken.borrower == borrower)

    def close(self) -> None:
        """Ends all processes, also busy ones, and waits until they are gone."""
        with self._lock:
            self._closed = True
        living = _processes_of(self._made)
        self._end(lambda taken: True)
        self._processes.close()
        ends_s = time.monotonic() + _GONE_WITHIN_S
        while any(still_runs(process) for process in living) and time.monotonic() < ends_s:
            time.sleep(0.01)

    def _hear(self, borrower: SiteName) -> None:
        with self._lock:
            self._heard_s[borrower] = self._now_s()

    def _end(self, which: "Callable[[_Taken], bool]") -> None:
        with self._lock:
            ended = {reached: taken for reached, taken in self._taken.items() if which(taken)}
            for reached in ended:
                del self._taken[reached]
        for taken in ended.values():
            self._doors.withdraw_object(taken.name)
            taken.process.end_process()


@dataclass(frozen=True, slots=True)
class _Taken:
    """A process that a borrower uses.

    Attributes:
        name: under which it is offered.
        borrower: server whose training it is.
        process: as this site reaches it.
    """

    name: str
    borrower: SiteName
    process: Handle


@dataclass(frozen=True, slots=True)
class _Noted:
    """A process whose calls are noted."""

    process: Handle
    note: Callable[[], None]

    def call(self, method: str, *arguments: Any) -> "Future[Any]":
        self.note()
        return self.process.call(method, *arguments)

    def end_process(self) -> None:
        self.process.end_process()


def _processes_of(guests: Sequence[Handle]) -> list[psutil.Process]:
    """Returns the processes that are alive; all are on this machine."""
    known, _ = wait([guest.call("pid") for guest in guests], _SAYS_WHO_S)
    found = []
    for number in known:
        with suppress(CallError):
            found.append(find_process(number.result()))
    return [process for process in found if process is not None]
