"""Actor `<site>/server`: one server of a live fleet, with Ekya inside, on a separate Ray node."""

import json
import threading
import time
from collections.abc import Mapping
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
        desk: actor of the loan desk; None: there is none.
        ray_nodes: Ray node id of each server.
    """

    def __init__(
        self,
        server: ServerConfig,
        folder: Path,
        options: RunOptions,
        desk: Any | None,
        ray_nodes: Mapping[SiteName, str],
    ) -> None:
        self._server, self._desk, self._ray_nodes = server, desk, ray_nodes
        self._options = replace(
            options, runs=folder, name=str(server.terms.site), scheduler=server.fleet.scheduler
        )
        self._above: AboveServer | None = None
        self._ready, self._go, self._stop = threading.Event(), threading.Event(), threading.Event()
        self._begin_time_ns: int | None = None
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
                above = AboveServer(self._server, run, shares, self._desk, self._ray_nodes, self._begins)
                with closing(above):
                    self._above = above
                    session = RunSession(
                        run,
                        shares,
                        server=str(self._server.terms.site),
                        coordinator=above,
                        stop=self._stop,
                    )
                    path = session.run(Console(quiet=True))
        finally:
            self._ready.set()
        summary: dict[str, Any] = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        return summary

    def wait_ready(self) -> bool:
        """Waits until the server's actors are ready; False where they cannot start, and ``run`` raises."""
        self._ready.wait()
        return self._waits

    def begin(self, at_time_ns: int, servers: Mapping[SiteName, Any]) -> None:
        """Sets the start of the first window, by ``time.time_ns``, and the actors of all servers."""
        self._begin_time_ns, self._servers = at_time_ns, servers
        self._go.set()

    def stop(self) -> None:
        """Ends the run early; the results up to then are measured and written."""
        self._stop.set()
        self._go.set()

    def room(self, now_us: int, until_us: int) -> Room | None:
        """Forwards to ``LendingServer``, as do the methods up to ``fail``; None before the run begins."""
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

    def ask_again(self) -> None:
        """Makes the server plan again, because other servers have new spare capacity."""
        if self._lending is not None:
            self._lending.ask_again()

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
        if self._begin_time_ns is None:
            return now_ns, self._servers  # It was stopped before the start was set.
        return now_ns + self._begin_time_ns - time.time_ns(), self._servers
