"""`ekya fleet run` on the wall clock: starts services that lend to each other, and collects their results."""

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from ekya.config.fleet_reading import load_fleet, write_fleet
from ekya.config.fleet_sections import HttpConfig, LenderConfig, LendingConfig
from ekya.config.run_options import ENDS
from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.places import STORES, SiteName
from ekya.fleet.run.servers import ServerDeath
from ekya.fleet.run.servers_folder import LiveRun, RanServers, ServersFolder
from ekya.fleet.servers_file import ServerConfig, Servers
from ekya.results.finalize import finish_run
from ekya.results.storage.run_folder import RunFolder
from ekya.system.files import holder_of
from ekya.system.token_file import make_token_file, read_token_file

_LOG = logging.getLogger(__name__)

SERVE = (sys.executable, "-P", "-m", "ekya", "serve")
"""Command that starts a service."""

SERVES = "service.json"
"""File in a service's folder from when its loop begins."""

_LOOK_S = 0.5
_TOKEN = "EKYA_TOKEN_{site}"
"""Variable with the token of a server, for those that borrow of it."""


class LaunchedServers:
    """Services of one run on this machine, as their launcher watches over them.

    They go on when it dies, and one that dies is started again by its supervisor.

    Args:
        folder: of the run.
        live: what is kept of it.
        now_s: wall-clock time.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        folder: ServersFolder,
        live: LiveRun,
        now_s: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder, self._live, self._now_s, self._sleep = folder, live, now_s, sleep
        self._processes: dict[SiteName, subprocess.Popen[bytes]] = {}
        self._running = list(live.ports)
        self._ran = RanServers()
        self._begun_us: int | None = None

    @staticmethod
    def launch(
        folder: ServersFolder,
        servers: Servers,
        tier: str | None,
        seed: int,
        shares: str,
        stores: Path | None = None,
    ) -> "LaunchedServers":
        """Starts all servers of a new run.

        Args:
            folder: newly made.
            servers: to start.
            tier: policy that finds loans; None: every server works alone.
            seed: of all random draws.
            shares: name of a share backend, or ``auto``.
            stores: file of its stores, for a launcher that is started again.

        Raises:
            UserError: a file cannot be written.
        """
        ports = _free_ports(servers.sites)
        where = None if stores is None else stores.absolute()
        live = LiveRun(tier, seed, shares, servers.links.usual_mb_s, ports, time.time(), where)
        live.save(folder.live)
        _file(folder, SiteName("")).parent.mkdir()
        for server in servers.servers:
            site = server.terms.site
            own = folder.path / site
            own.mkdir()
            make_token_file(own / "token")
            lending = LendingConfig() if tier is None else _lending(server, ports, servers.links, tier)
            http = HttpConfig(port=ports[site])
            write_fleet(
                _file(folder, site), server.fleet.model_copy(update={"http": http, "lending": lending})
            )
        launched = LaunchedServers(folder, live)
        launched.start_missing()
        return launched

    def start_missing(self) -> None:
        """Starts the servers that do not run and have no result; those that ran before go on."""
        tokens = {_variable(site): _token(self._folder, site) for site in self._live.ports}
        for site in self._live.ports:
            folder = self._folder.path / site
            if (folder / "summary.json").is_file() or holder_of(folder) is not None:
                continue
            command = [
                *(*SERVE, str(_file(self._folder, site))),
                *("--name", site, "--runs", str(self._folder.path)),
                *("--seed", str(self._live.seed), "--shares", self._live.shares),
            ]
            with self._log(site).open("ab") as log:
                self._processes[site] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **tokens, ENDS: "1"},
                    # Ctrl-C is for this process, which stops the servers in order.
                    start_new_session=True,
                )

    def lenders(self) -> Sequence[LenderConfig]:
        """Returns the servers as lenders of this process, whose environment gets their tokens."""
        os.environ.update({_variable(site): _token(self._folder, site) for site in self._live.ports})
        return _lenders_for(STORES, self._live.ports, Links({}, self._live.mb_s))

    @property
    def tier(self) -> str:
        """Policy that finds loans."""
        return self._live.tier or ""

    @property
    def now_us(self) -> int:
        """Time since the run was launched, in microseconds."""
        return max(0, round((self._now_s() - self._live.began_unix_s) * US_PER_S))

    def watch_runs(
        self,
        failures: Sequence[ServerDeath],
        look: Callable[[int, Sequence[SiteName]], None],
    ) -> RanServers:
        """Watches until the last server has ended, and returns what came of them.

        Ctrl-C ends the run early; the results up to then are measured and written as usual.

        Args:
            failures: servers that are killed.
            look: called twice a second with the time since all have begun, and those that run.

        Raises:
            UserError: no server has a result, with the reasons.
        """
        due, reasons = sorted(failures, key=lambda one: one.at_us), list[str]()
        while self._running:
            try:
                ran_us = self._ran_us()
                while due and self._begun_us is not None and due[0].at_us <= ran_us:
                    self._kill(due.pop(0).site)
                look(ran_us, self._running)
                for site in list(self._running):
                    if self._has_ended(site):
                        reasons += self._collect(site)
                self._sleep(_LOOK_S)
            except KeyboardInterrupt:
                _LOG.warning("stopping; measuring what there is")
                due = []
                self.close()
        if not self._ran.summaries:
            raise UserError("; ".join(reasons))
        return self._ran

    def close(self) -> None:
        """Stops the servers that still run."""
        for site in self._running:
            self._stop(site)

    def _ran_us(self) -> int:
        """Returns the time since all that run have begun; 0 before."""
        if self._begun_us is None and all(
            (self._folder.path / site / SERVES).is_file() for site in self._running
        ):
            self._begun_us = self.now_us
        return 0 if self._begun_us is None else self.now_us - self._begun_us

    def _has_ended(self, site: SiteName) -> bool:
        process = self._processes.get(site)
        starting = process is not None and process.poll() is None
        return not starting and holder_of(self._folder.path / site) is None

    def _collect(self, site: SiteName) -> list[str]:
        """Takes the result of a server that has ended; returns why there is none."""
        self._running.remove(site)
        folder = RunFolder(self._folder.path / site)
        if folder.summary.is_file():
            self._ran.summaries[site] = json.loads(folder.summary.read_text(encoding="utf-8"))
            return []
        reason = f"{site}: {self._last_error(site)}"
        _LOG.error("%s", reason)
        self._ran.died_s.setdefault(site, self._ran_us() / US_PER_S)
        summary = _left_behind(folder, self._live.seed)
        if summary is not None:
            self._ran.summaries[site] = summary
        return [reason]

    def _kill(self, site: SiteName) -> None:
        """Kills a server with all its processes, as a power cut does."""
        pid = holder_of(self._folder.path / site)
        if not pid:
            return
        _LOG.warning("%s is made to fail", site)
        self._ran.died_s[site] = self._ran_us() / US_PER_S
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            # First, since it would start the others again.
            for process in [root, *root.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def _stop(self, site: SiteName) -> None:
        process, pid = self._processes.get(site), holder_of(self._folder.path / site)
        with suppress(psutil.NoSuchProcess):
            if pid:
                psutil.Process(pid).terminate()
            elif process is not None:
                process.terminate()

    def _log(self, site: SiteName) -> Path:
        return self._folder.path / f"{site}.log"

    def _last_error(self, site: SiteName) -> str:
        """Returns its last error."""
        path = self._log(site)
        with suppress(OSError):
            for line in reversed(path.read_text(errors="replace").splitlines()):
                if line.startswith("ekya: "):
                    return line.removeprefix("ekya: ")
        return f"it has ended without a result; see {path}"


def _lending(server: ServerConfig, ports: "dict[SiteName, int]", links: Links, tier: str) -> LendingConfig:
    terms = server.terms
    may = terms.samples_may_leave
    lenders = [] if may == "no" else _lenders_for(terms.site, ports, links)
    return LendingConfig.model_validate(
        {"lend": terms.takes_guests, "borrow_from": lenders, "samples_may_leave": may, "tier": tier}
    )


def _lenders_for(borrower: SiteName, ports: "dict[SiteName, int]", links: Links) -> list[LenderConfig]:
    return [
        LenderConfig(
            url=f"http://ekya:${{{_variable(site)}}}@127.0.0.1:{port}",
            name=site,
            mb_s=1.0 / links.s_per_mb(borrower, site),
        )
        for site, port in ports.items()
        if site != borrower
    ]


def _variable(site: SiteName) -> str:
    return _TOKEN.format(site="".join(one if one.isalnum() else "_" for one in site))


def _file(folder: ServersFolder, site: SiteName) -> Path:
    """Returns the path of a server's fleet file; sites are names of folders, so none is called so."""
    return folder.path / "fleets" / f"{site}.yaml"


def _token(folder: ServersFolder, site: SiteName) -> str:
    return read_token_file(folder.path / site / "token", "begin another run")


def _free_ports(sites: Sequence[SiteName]) -> dict[SiteName, int]:
    """Returns a port of this machine for each server; another process may still take it."""
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in sites]
    ports = {site: int(one.getsockname()[1]) for site, one in zip(sites, taken, strict=True)}
    for one in taken:
        one.close()
    return ports


def _left_behind(folder: RunFolder, seed: int) -> dict[str, Any] | None:
    """Measures the run of a server that died; None where its folder is too incomplete."""
    if not folder.fleet.is_file():
        return None
    try:
        return finish_run(folder, load_fleet(folder.fleet), "live", seed)
    except UserError as error:
        _LOG.warning("%s: cannot be measured: %s", folder.path, error)
        return None
