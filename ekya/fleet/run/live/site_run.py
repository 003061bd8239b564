"""One server's part of a live run of several: Ekya in this process, and what others call of it."""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from rich.console import Console

from ekya.config.run_options import RunOptions
from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import CallError, Handle, call_part, public_methods
from ekya.fleet.run.lending import Peer
from ekya.fleet.run.live.above_server import AboveServer
from ekya.fleet.run.live.coordination import RemoteCoordinator
from ekya.fleet.run.live.lent_processes import LentProcesses
from ekya.fleet.run.live.neighbours import Neighbours
from ekya.fleet.run.live.orders import Neighbour, Phase, RunOrder, RunState
from ekya.fleet.run.servers_folder import files_of, part_of
from ekya.fleet.run.sites.server import SiteServer
from ekya.fleet.servers_file import ServerConfig
from ekya.gpu.backends.registry import choose_backend
from ekya.results.finalize import finish_run
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.driver.open_run import open_run, start_probe
from ekya.runtime.driver.ray_of_run import start_ray
from ekya.runtime.driver.resuming import is_complete
from ekya.runtime.driver.run_session import RunSession
from ekya.system.files import hold_folder, write_text_atomic

_LOG = logging.getLogger(__name__)

_RUN = "fleet_run"
"""File in a server's run folder with the id of the run of all, and the server's name."""

BEGINS_WITHIN_S = 600.0
"""Time for which a server that is ready waits for the others; their driver may have died."""


class SiteRun:
    """Runs one server to its end. Thread-safe; ``run`` takes long, and other methods are called meanwhile.

    Args:
        server: to run.
        folder: of the run of all servers; the server's run folder is made there.
        options: of the run.
        order: of the driver; without a coordinator the server works alone.
        machine: identifies this process.
        doors: offers processes of this site to others.
        now_ns: ``time.monotonic_ns``.
    """

    def __init__(
        self,
        server: ServerConfig,
        folder: Path,
        options: RunOptions,
        order: RunOrder,
        machine: str,
        doors: SiteServer,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._now_ns = now_ns
        self._server, self._order, self._machine, self._doors = server, order, machine, doors
        self._fleet = server.fleet
        coordinator = order.coordinator
        self._coordinator = None if coordinator is None else RemoteCoordinator(coordinator)
        self._options = replace(
            options, runs=folder, name=str(server.terms.site), scheduler=server.fleet.scheduler
        )
        self._above: AboveServer | None = None
        self._go, self._stop, self._changed = threading.Event(), threading.Event(), threading.Condition()
        self._phase: Phase = "opening"
        self._reason, self._by_user = "", False
        self._begin_ns: int | None = None
        self._from_us = 0
        self._folder: Path | None = None
        self._summary: dict[str, Any] | None = None
        self._neighbours = Neighbours(server.terms.site)
        if order.resume_us is not None:
            self.set_start(-order.resume_us)  # The others do not wait for it.

    def run(self) -> None:
        """Runs the server; its outcome is in ``run_state`` and ``run_summary`` afterwards."""
        try:
            self._run()
        except UserError as error:
            self._end("failed", str(error), by_user=True)
        except Exception as error:
            _LOG.exception("%s: its run fails", self._server.terms.site)
            self._end("failed", f"{type(error).__name__}: {error}")
        else:
            self._end("ended")

    def _run(self) -> None:
        fleet, options = self._fleet, self._options
        chosen = choose_backend(options.shares)
        with ExitStack() as held:
            held.callback(ray.shutdown)
            if options.resume is not None:
                held.enter_context(hold_folder(options.resume))
                if self._is_over(RunFolder.open(options.resume)):
                    self._measured(options.resume)
                    return
            # The machine is measured while Ray starts.
            with start_probe(fleet, options, chosen) as probe:
                start_ray(False, chosen)
                run = open_run(fleet, options, chosen, probe.result())
            if options.resume is None:
                held.enter_context(hold_folder(run.folder.path))
                kept_as = f"{self._order.run} {self._server.terms.site}\n"
                write_text_atomic(run.folder.path / _RUN, kept_as)
            self._fleet, self._from_us = run.fleet, run.continue_us
            shares = held.enter_context(run.open_shares())
            ray_node = ray.get_runtime_context().get_node_id()
            guests = LentProcesses(ray_node, shares, run.guests_gpu, self._doors)
            above = AboveServer(self._server, run, guests, self._coordinator, self._neighbours, self._begins)
            held.enter_context(closing(above))
            self._above = above
            session = RunSession(
                run, shares, server=str(self._server.terms.site), coordinator=above, stop=self._stop
            )
            path = session.run(Console(quiet=True))
        self._measured(path)

    def _is_over(self, kept: RunFolder) -> bool:
        """Measures a run that is to be taken up where its time is over; returns whether it is."""
        _, options, steps = read_journal(kept.journal)
        state = self.run_state()
        if not is_complete(steps) and (state.ends_us is None or state.now_us < state.ends_us):
            return False
        if not (kept.summary.is_file() and kept.report.is_file()):
            finish_run(kept, self._fleet, "live", options.seed)
        return True

    def _measured(self, path: Path) -> None:
        self._folder = path
        self._summary = json.loads(RunFolder(path).summary.read_text(encoding="utf-8"))

    def run_state(self) -> RunState:
        """Returns the present state."""
        fleet = self._fleet
        ends_us = None if fleet.windows is None else round(fleet.windows * fleet.window_s * US_PER_S)
        now_us = 0
        if self._begin_ns is not None:
            now_us = max(0, (self._now_ns() - self._begin_ns) // 1000)
        return RunState(self._phase, now_us, ends_us, self._reason, self._by_user)

    def wait_ready(self) -> RunState:
        """Waits until its actors are ready, or it has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._phase != "opening")
        return self.run_state()

    def run_summary(self) -> dict[str, Any]:
        """Returns the summary of its run, which has ended."""
        if self._summary is None:
            raise CallError("this run has no summary yet")
        return self._summary

    def file_sizes(self) -> dict[str, int]:
        """Returns the sizes of the files in its run folder, by path; none before its run has ended."""
        return {} if self._folder is None else files_of(self._folder)

    def file_part(self, file: str, offset: int) -> bytes:
        """Returns a part of one of these files; empty at its end."""
        if self._folder is None or file not in files_of(self._folder):
            return b""
        return part_of(self._folder, file, offset)

    def meet_neighbours(self, neighbours: Mapping[SiteName, Neighbour], coordinator: Handle | None) -> None:
        """Sets the other servers and the coordinator, where they are now."""
        self._neighbours.add_neighbours(neighbours)
        if self._coordinator is not None and coordinator is not None:
            self._coordinator.reach_at(coordinator)

    def set_start(self, lead_us: int) -> None:
        """Sets the start of the first window, from now on; negative if it has passed.

        Clocks of machines differ, so all servers are told at the same time how long to wait.
        """
        if self._begin_ns is None:
            self._begin_ns = self._now_ns() + lead_us * 1000
            self._go.set()

    def stop_run(self) -> None:
        """Ends the run early; the results up to then are measured and written."""
        self._stop.set()
        self._go.set()

    def call_peer(self, method: str, *arguments: Any) -> Any:
        """Calls a method of this server as a ``Peer``; before the run begins it does nothing: None."""
        lending = None if self._above is None else self._above.lending
        return (
            None if lending is None else call_part(lending.executor, public_methods(Peer), method, arguments)
        )

    def machine_id(self) -> str:
        """Returns what identifies this process."""
        return self._machine

    def take_process(self, borrower: SiteName) -> Handle:
        """Returns a process here for that server's training, or inference.

        Raises:
            CallError: it takes no guests yet, or no more.
        """
        if self._above is None:
            raise CallError("this server takes no guests yet")
        return self._above.guests.take_process(borrower)

    def give_back_process(self, borrower: SiteName, process: Handle) -> None:
        """Takes a process back from a guest."""
        if self._above is not None:
            self._above.guests.give_back_process(borrower, process)

    def other_died(self, site: SiteName) -> None:
        """Ends the processes of a dead server's guests here."""
        if self._above is not None:
            self._above.guests.end_of(site)

    def _begins(self) -> int:
        """Reports the actors as ready, and waits for the common start (local ``time.monotonic_ns``).

        Raises:
            UserError: it was not set for long.
        """
        self._become("ready")
        if not self._go.wait(BEGINS_WITHIN_S):
            raise UserError(f"the run was not begun for {BEGINS_WITHIN_S:g} s; start it again")
        if self._begin_ns is None:
            self._begin_ns = self._now_ns()  # It was stopped before the start was set.
        if self._from_us:
            # Where all servers were away, time has not passed for any of them.
            self._begin_ns = min(self._begin_ns, self._now_ns() - self._from_us * 1000)
        self._become("running")
        return self._begin_ns + self._from_us * 1000

    def _become(self, phase: Phase) -> None:
        with self._changed:
            self._phase = phase
            self._changed.notify_all()

    def _end(self, phase: Phase, reason: str = "", by_user: bool = False) -> None:
        self._reason, self._by_user = reason, by_user
        self._become(phase)


def kept_folder(folder: Path, run: str, site: SiteName) -> RunFolder:
    """Returns a server's run folder within the folder of a run of several, which may be a later one's too.

    Raises:
        UserError: it is not there.
    """
    for path in folder.glob(f"*/{_RUN}"):
        if path.read_text(encoding="utf-8").split() == [run, site]:
            return RunFolder.open(path.parent)
    raise UserError(
        f"{folder.absolute()} has no folder of this run; mount the disk that has it, or name it by --runs"
    )
