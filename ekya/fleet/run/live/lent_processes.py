"""Processes of a site that trainings of other sites use."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from ekya.fleet.policy.names import SiteName
from ekya.fleet.run.calls import CallError, Handle, public_methods
from ekya.fleet.run.live.hosted_processes import GuestProcesses
from ekya.fleet.run.sites.server import SiteServer
from ekya.fleet.run.training.actors import TrainingActor
from ekya.gpu.backends.backend import ShareBackend

_METHODS = public_methods(TrainingActor)


class LentProcesses:
    """Offers guest processes of this site to the sites that take them. Thread-safe.

    Args:
        site: of this server.
        ray_node: id of the Ray node of this process.
        shares: the server's backend, opened; it is closed after this.
        gpu: index of the server's GPU for guests.
        doors: where other sites reach the processes.
    """

    def __init__(
        self, site: SiteName, ray_node: str, shares: ShareBackend, gpu: int, doors: SiteServer
    ) -> None:
        self._guests = GuestProcesses(site, ray_node, shares, gpu)
        self._doors = doors
        self._taken: dict[Handle, tuple[str, SiteName, Handle]] = {}
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Makes one idle process before it is needed."""
        self._guests.warm()

    def take(self, borrower: SiteName) -> Handle:
        """Returns a process for a training of that server, as other sites reach it.

        Raises:
            CallError: the server is closing.
        """
        try:
            process = self._guests.take(borrower)
        except LookupError as error:
            raise CallError(str(error)) from error
        self._guests.heard(borrower)
        name = f"training-{uuid4().hex[:12]}"
        reached = self._doors.offer(name, _Noted(process, lambda: self._guests.heard(borrower)), _METHODS)
        with self._lock:
            self._taken[reached] = (name, borrower, process)
        return reached

    def give_back(self, borrower: SiteName, reached: Handle) -> None:
        """Takes a process back; one that is not taken is ignored."""
        with self._lock:
            taken = self._taken.pop(reached, None)
        if taken is not None:
            self._doors.withdraw(taken[0])
            self._guests.give_back(borrower, taken[2])

    def end_silent(self) -> None:
        """Ends the processes of servers that have not been heard of for long: the link to them may be cut."""
        for borrower in self._guests.end_silent(time.monotonic()):
            self._forget(borrower)

    def end_of(self, borrower: SiteName) -> None:
        """Ends the processes of a dead server's guests here."""
        self._guests.end_of(borrower)
        self._forget(borrower)

    def close(self) -> None:
        """Ends all processes, also busy ones, and waits until they are gone."""
        with self._lock:
            taken, self._taken = list(self._taken.values()), {}
        for name, _, _ in taken:
            self._doors.withdraw(name)
        self._guests.close()

    def _forget(self, borrower: SiteName) -> None:
        with self._lock:
            gone = {reached: taken for reached, taken in self._taken.items() if taken[1] == borrower}
            for reached in gone:
                del self._taken[reached]
        for name, _, _ in gone.values():
            self._doors.withdraw(name)


@dataclass(frozen=True, slots=True)
class _Noted:
    """A process whose calls are noted."""

    process: Handle
    note: Callable[[], None]

    def call(self, method: str, *arguments: Any) -> "Future[Any]":
        self.note()
        return self.process.call(method, *arguments)

    def end(self) -> None:
        self.process.end()
