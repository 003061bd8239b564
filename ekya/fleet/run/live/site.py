"""A site: the process on each machine of a fleet, which runs its server when it is told to."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import uuid4

from ekya import __version__
from ekya.config.run_options import RunOptions
from ekya.core.errors import UserError
from ekya.fleet.policy.names import SiteName
from ekya.fleet.run.calls import CallError, LocalHandle, public_methods
from ekya.fleet.run.live.orders import Opened, RunOrder
from ekya.fleet.run.live.site_run import SiteRun
from ekya.fleet.run.sites.server import SiteServer
from ekya.fleet.servers_file import ServerConfig

_THREADS = 24
"""Calls of a site's run that are handled at a time; ``wait_ready`` holds one for long."""


class Site:
    """Runs the server of this machine, one run at a time. Thread-safe.

    Args:
        site: name of the server.
        read: returns the server with changes of its fleet file; raises UserError where this machine cannot
            run it.
        runs: folder of runs.
        shares: name of a share backend, or ``auto``.
        doors: where other sites reach this one.
    """

    def __init__(
        self,
        site: SiteName,
        read: Callable[[Mapping[str, object]], ServerConfig],
        runs: Path,
        shares: str,
        doors: SiteServer,
    ) -> None:
        self._site, self._read, self._runs, self._shares, self._doors = site, read, runs, shares, doors
        self._machine = uuid4().hex
        self._run: tuple[str, SiteRun, threading.Thread] | None = None
        self._opened: Opened | None = None
        self._forgotten = threading.Event()
        self._lock = threading.Lock()

    def who(self) -> tuple[SiteName, str, str]:
        """Returns its name, its process's id, and its version of Ekya."""
        return self._site, self._machine, __version__

    def open(self, order: RunOrder) -> Opened:
        """Begins a run, which then waits for its start.

        Raises:
            UserError: this machine cannot run it, or another run is under way.
        """
        with self._lock:
            if self._run is not None and self._run[2].is_alive():
                raise UserError(f"{self._site}: another run is under way; wait for its end, or stop it")
            server = self._read(order.changes)
            folder = self._runs / order.name if order.folder is None else Path(order.folder)
            options = RunOptions(seed=order.seed, runs=folder, name=order.name, shares=self._shares)
            run = SiteRun(server, folder, options, order.coordinator, self._machine, self._doors)
            thread = threading.Thread(target=run.run, name=f"run {order.run}")
            if self._run is not None:
                self._doors.withdraw(_name_of(self._run[0]))
            self._run = order.run, run, thread
            handle = self._doors.offer(
                _name_of(order.run), LocalHandle(run, _THREADS), public_methods(SiteRun)
            )
            thread.start()
            self._opened = Opened(handle, self._machine)
            return self._opened

    def opened(self, run: str) -> Opened:
        """Returns the reply to ``open`` again, for a driver that was started again.

        Raises:
            CallError: this site has no such run.
        """
        with self._lock:
            if self._run is None or self._opened is None or self._run[0] != run:
                raise CallError(f"{self._site} has no run {run}; it was started again since")
            return self._opened

    def forget(self, run: str) -> None:
        """Marks a run as collected: nobody will ask for its results again."""
        with self._lock:
            if self._run is not None and self._run[0] == run:
                self._forgotten.set()

    def is_done(self, within_s: float) -> bool:
        """Returns whether a run has ended and was collected, or nobody has come for it within this time."""
        with self._lock:
            ended = self._run is not None and not self._run[2].is_alive()
        return ended and (self._forgotten.wait(within_s) or True)

    def stop(self) -> None:
        """Ends a run that is under way, and waits until it is measured and written."""
        with self._lock:
            run = self._run
        if run is not None:
            run[1].stop()
            run[2].join()


def _name_of(run: str) -> str:
    return f"server-{run}"
