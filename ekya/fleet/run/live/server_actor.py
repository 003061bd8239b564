"""Actor `<site>/server`: one server of a live fleet, with Ekya inside, on a separate Ray node."""

import json
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ekya.config.run_options import RunOptions
from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Loan
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.elsewhere import Interrupted
from ekya.fleet.run.lending import Lent
from ekya.fleet.run.live.above_server import AboveServer
from ekya.fleet.run.live.collected import files_of, part_of
from ekya.fleet.run.server import LendingServer
from ekya.fleet.servers_file import ServerConfig
from ekya.gpu.backends.registry import choose_backend
from ekya.runtime.open_run import open_run, start_probe
from ekya.runtime.run_session import RunSession


class ServerActor:
    """Runs one server to its end. Thread-safe; ``run`` takes long, and other methods are called meanwhile.

    Args:
        server: to run.
        folder: of the run of all servers; the server's run folder is made there.
        options: of the run.
        coordinator: its actor; None: the server works alone.
        ray_nodes: Ray node id of each server.
    """

    def __init__(
        self,
        server: ServerConfig,
        folder: Path,
        options: RunOptions,
        coordinator: Any | None,
        ray_nodes: Mapping[SiteName, str],
    ) -> None:
        self._server, self._coordinator, self._ray_nodes = server, coordinator, ray_nodes
        self._options = replace(
            options, runs=folder, name=str(server.terms.site), scheduler=server.fleet.scheduler
        )
        self._above: AboveServer | None = None
        self._ready, self._go, self._stop = threading.Event(), threading.Event(), threading.Event()
        self._begin_ns: int | None = None
        self._folder: Path | None = None
        self._servers: Mapping[SiteName, Any] = {}
        self._waits = False

    def run(self) -> dict[str, Any]:
        """Runs the server and returns the summary of its run.

        Raises:
            UserError: something is wrong with its input.
        """
        try:
            fleet, chosen = self._server.fleet, choose_backend(self._options.shares)
            with start_probe(fleet, self._options, chosen) as probe:
                run = open_run(fleet, self._options, chosen, probe.result())
            with run.open_shares() as shares:
                above = AboveServer(
                    self._server, run, shares, self._coordinator, self._ray_nodes, self._begins
                )
                with closing(above):
                    self._above = above
                    session = RunSession(
                        run,
                        shares,
                        server=str(self._server.terms.site),
                        coordinator=above,
                        stop=self._stop,
                    )
                    path = self._folder = session.run(Console(quiet=True))
        finally:
            self._ready.set()
        summary: dict[str, Any] = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        return summary

    def files(self) -> dict[str, int]:
        """Returns the sizes of the files in its run folder, by path; none before its run has ended."""
        return {} if self._folder is None else files_of(self._folder)

    def part(self, file: str, offset: int) -> bytes:
        """Returns a part of one of these files; empty at its end."""
        return b"" if self._folder is None else part_of(self._folder, file, offset)

    def wait_ready(self) -> bool:
        """Waits until the server's actors are ready; False where they cannot start, and ``run`` raises."""
        self._ready.wait()
        return self._waits

    def begin(self, lead_ns: int, servers: Mapping[SiteName, Any]) -> None:
        """Sets the start of the first window, from now on, and the actors of all servers.

        Clocks of machines differ, so all servers are told at the same time how long to wait.
        """
        self._begin_ns, self._servers = time.monotonic_ns() + lead_ns, servers
        self._go.set()

    def stop(self) -> None:
        """Ends the run early; the results up to then are measured and written."""
        self._stop.set()
        self._go.set()

    def room(self, now_us: int, until_us: int) -> Room | None:
        """Forwards to ``LendingServer``, as do the methods up to ``lends``; None before the run begins."""
        lending = self._lending
        return None if lending is None else lending.room(now_us, until_us)

    def lend(self, number: int, lent: Lent) -> None:
        """Lends a share."""
        if self._lending is not None:
            self._lending.lend(number, lent)

    def take_back(self, number: int, at_us: int) -> None:
        """Returns a lent share to the server."""
        if self._lending is not None:
            self._lending.take_back(number, at_us)

    def grant(self, loan: Loan) -> None:
        """Plans again, with a loan for an offer that was left open."""
        if self._lending is not None:
            self._lending.grant(loan)

    def interrupted(self, stream: StreamId, now_us: int) -> Interrupted | None:
        """Returns the progress of one of its retrainings when a host of it has died."""
        return None if self._lending is None else self._lending.interrupted(stream, now_us)

    def go_on(self, stream: StreamId, loan: Loan) -> None:
        """Continues the rest of that retraining under the new loan."""
        if self._lending is not None:
            self._lending.go_on(stream, loan)

    def fail(self, stream: StreamId, reason: str, now_us: int) -> None:
        """Ends that retraining: no other server has capacity for the rest."""
        if self._lending is not None:
            self._lending.fail(stream, reason, now_us)

    def borrowed(self) -> Sequence[Loan]:
        """Returns the loans under which its retrainings run, or are about to."""
        return () if self._lending is None else self._lending.borrowed()

    def lends(self) -> Collection[int]:
        """Returns the numbers of the loans for which it keeps a share."""
        return () if self._lending is None else self._lending.lends()

    def take_process(self, borrower: SiteName) -> Any:
        """Returns a process here for that server's training.

        Raises:
            LookupError: it takes no guests yet, or no more.
        """
        if self._above is None:
            raise LookupError("this server takes no guests yet")
        return self._above.guests.take(borrower)

    def give_back_process(self, borrower: SiteName, actor: Any) -> None:
        """Takes a process back from a guest."""
        if self._above is not None:
            self._above.guests.give_back(borrower, actor)

    def machine(self) -> str:
        """Returns the id of its Ray node."""
        return self._ray_nodes[self._server.terms.site]

    def other_died(self, site: SiteName) -> None:
        """Ends the processes of a dead server's guests here."""
        if self._above is not None:
            self._above.guests.end_of(site)

    @property
    def _lending(self) -> LendingServer | None:
        return None if self._above is None else self._above.lending

    def _begins(self) -> tuple[int, Mapping[SiteName, Any]]:
        """Reports the actors as ready, and waits for the common start (local ``time.monotonic_ns``)."""
        self._waits = True
        self._ready.set()
        self._go.wait()
        now_ns = time.monotonic_ns()
        if self._begin_ns is None:
            return now_ns, self._servers  # It was stopped before the start was set.
        return self._begin_ns, self._servers
