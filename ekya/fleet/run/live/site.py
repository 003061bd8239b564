"""A site: the process on each machine of a fleet, which runs its server when it is told to."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from ekya import __version__
from ekya.config.fleet_reading import load_fleet
from ekya.config.run_options import RunOptions
from ekya.core.errors import UserError
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import CallError, LocalHandle, public_methods
from ekya.fleet.run.live.orders import Neighbour, RunOrder, server_name
from ekya.fleet.run.live.site_run import SiteRun, kept_folder
from ekya.fleet.run.sites.server import SiteServer
from ekya.fleet.servers_file import ServerConfig

_THREADS = 24
"""Calls of a site's run that are handled at a time; ``wait_ready`` holds one for long."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A run.

    Attributes:
        id: as its driver has given it.
        name: under which it is offered to others.
        run: the server's.
        thread: in which it runs.
        opened: how others reach it.
    """

    id: str
    name: str
    run: SiteRun
    thread: threading.Thread
    opened: Neighbour


class Site:
    """Runs the server of this machine, one run at a time. Thread-safe.

    Args:
        site: name of the server.
        read: returns the server with changes of its fleet file; raises UserError where this machine cannot
            run it.
        runs: folder of runs.
        shares: name of a share backend, or ``auto``.
        doors: where other sites reach this one.
        clock: seconds.
    """

    def __init__(
        self,
        site: SiteName,
        read: Callable[[Mapping[str, object]], ServerConfig],
        runs: Path,
        shares: str,
        doors: SiteServer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._site, self._read, self._runs, self._shares, self._doors = site, read, runs, shares, doors
        self._clock = clock
        self._machine = uuid4().hex
        self._begun: _Begun | None = None
        self._forgotten, self._used_s = False, clock()
        self._lock = threading.Lock()

    def identify(self) -> tuple[SiteName, str, str]:
        """Returns its name, its process's id, and its version of Ekya."""
        return self._site, self._machine, __version__

    def open_run(self, order: RunOrder) -> Neighbour:
        """Begins a run, which then waits for its start, or takes one up that this site's last process began.

        Raises:
            UserError: this machine cannot run it, another run is under way, or its folder is not here.
        """
        with self._lock:
            before = self._begun
            if before is not None and before.id == order.run and order.resume_us is not None:
                return before.opened  # This process did not die: it was cut off.
            if before is not None and before.thread.is_alive():
                raise UserError(f"{self._site}: another run is under way; wait for its end, or stop it")
            server = self._read(order.changes)
            folder = self._runs / order.name if order.folder is None else Path(order.folder)
            options = RunOptions(seed=order.seed, runs=folder, name=order.name, shares=self._shares)
            if order.resume_us is not None:
                kept = kept_folder(folder, order.run, self._site)
                server = replace(server, fleet=load_fleet(kept.fleet))
                options = replace(options, resume=kept.path)
            run = SiteRun(server, folder, options, order, self._machine, self._doors)
            if before is not None:
                self._doors.withdraw_object(before.name)
            name, served = server_name(order.run), LocalHandle(run, _THREADS)
            opened = Neighbour(self._doors.offer_object(name, served, public_methods(SiteRun)), self._machine)
            run.meet_neighbours({self._site: opened}, None)
            self._begun = _Begun(order.run, name, run, threading.Thread(target=run.run, name=name), opened)
            self._forgotten = False
            self._begun.thread.start()
            return opened

    def reopen_run(self, run: str) -> Neighbour:
        """Returns the reply to ``open_run`` again, for a driver that was started again.

        Raises:
            CallError: this site has no such run.
        """
        with self._lock:
            if self._begun is None or self._begun.id != run:
                raise CallError(f"{self._site} has no run {run}; it was started again since")
            return self._begun.opened

    def forget_run(self, run: str) -> None:
        """Marks a run as collected: its results are not needed here any more."""
        with self._lock:
            self._forgotten = self._forgotten or (self._begun is not None and self._begun.id == run)

    def is_done(self, within_s: float) -> bool:
        """Returns whether a run has ended and was collected, or there has been none for this time."""
        with self._lock:
            if self._begun is not None and self._begun.thread.is_alive():
                self._used_s = self._clock()
                return False
            return self._forgotten or self._clock() - self._used_s > within_s

    def stop_run(self) -> None:
        """Ends a run that is under way, and waits until it is measured and written.

        Its end is not reported: this site may be started again, and take it up.
        """
        with self._lock:
            begun = self._begun
        if begun is not None:
            if begun.thread.is_alive():
                self._doors.withdraw_object(begun.name)
            begun.run.stop_run()
            begun.thread.join()
