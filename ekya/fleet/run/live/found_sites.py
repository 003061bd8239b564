"""Sites of a fleet: those at known addresses, and those that are started on this machine."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from ekya.core.errors import UserError
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import CallError, Handle
from ekya.fleet.run.live.orders import SITE, server_name
from ekya.fleet.run.sites.client import SiteHandle
from ekya.fleet.run.sites.server import TOKEN_VARIABLE
from ekya.fleet.servers_file import split_address

STARTS_WITHIN_S = 60.0
"""Time for a site's process to listen: it loads torch first."""

_ANSWERS_S = 10.0
_ENDS_WITHIN_S = 20.0
_LOOK_S = 0.05


class FoundSites:
    """Sites by name; those of this machine are processes that this one has started.

    Args:
        addresses: of the sites elsewhere.
        token: of the fleet.
    """

    def __init__(self, addresses: Mapping[SiteName, str], token: str) -> None:
        self._token = token
        self._processes: dict[SiteName, subprocess.Popen[bytes]] = {}
        self.addresses = dict(addresses)
        self.handles: dict[SiteName, Handle] = {
            site: SiteHandle(address, SITE, token) for site, address in addresses.items()
        }

    def start_sites(self, sites: Sequence[SiteName], servers: Path, folder: Path, shares: str) -> None:
        """Starts sites on this machine, and waits until they listen.

        Args:
            sites: names of their servers.
            servers: the servers file.
            folder: of the run; each site's address and output are written there.
            shares: name of a share backend, or ``auto``.

        Raises:
            UserError: a site does not start; with the last line of its output.
        """
        host = address_towards(self.addresses)
        listen = f"[{host}]:0" if ":" in host else f"{host}:0"
        for site in sites:
            command = [
                *(sys.executable, "-m", "ekya", "fleet", "site", str(servers.absolute())),
                *("--site", site, "--listen", listen, "--shares", shares, "--once"),
                *("--json", str(folder / f"{site}.json")),
            ]
            with (folder / f"{site}.log").open("wb") as log:
                self._processes[site] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, TOKEN_VARIABLE: self._token},
                    # Ctrl-C is for this process, which stops the sites' runs in order.
                    start_new_session=True,
                )
        until_s = time.monotonic() + STARTS_WITHIN_S
        for site in sites:
            self._await(site, folder, until_s)

    def require_sites(self, site: SiteName) -> None:
        """Raises UserError where a site elsewhere is not reached, or is another than expected."""
        address = self.addresses[site]
        try:
            name, _, _ = self.handles[site].call("identify").result(_ANSWERS_S)
        except (CallError, TimeoutError) as error:
            raise UserError(
                f"{site}: {str(error) or f'{address} does not answer'}; start it there with: ekya fleet site "
                f"SERVERS --site {site} --listen {address}"
            ) from error
        if name != site:
            raise UserError(f"{site}: at {address} is the site {name}; correct one of the addresses")

    def folder(self, site: SiteName, folder: Path) -> str | None:
        """Returns the folder of a run on the site's machine; None where the site chooses it."""
        return str(folder.absolute()) if site in self._processes else None

    def server(self, site: SiteName, run: str) -> Handle:
        """Returns a site's server in a run, whether it is there or not."""
        return SiteHandle(self.addresses[site], server_name(run), self._token)

    def has_died(self, site: SiteName) -> bool:
        """Returns whether a site of this machine has ended."""
        process = self._processes.get(site)
        return process is not None and process.poll() is not None

    def kill_site(self, site: SiteName) -> None:
        """Kills a site of this machine with all its processes, as a power cut does."""
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._processes[site].pid)
            for process in [root, *root.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._processes[site].wait()

    def close(self) -> None:
        """Waits until the sites of this machine have ended; kills those that do not."""
        for site, process in self._processes.items():
            if not self.has_died(site):
                process.terminate()
        until_s = time.monotonic() + _ENDS_WITHIN_S
        try:
            for process in self._processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, until_s - time.monotonic()))
        finally:
            for site in self._processes:
                if not self.has_died(site):
                    self.kill_site(site)

    def _await(self, site: SiteName, folder: Path, until_s: float) -> None:
        file = folder / f"{site}.json"
        while not file.is_file():
            if self.has_died(site) or time.monotonic() > until_s:
                lines = (folder / f"{site}.log").read_text(errors="replace").strip().splitlines()
                last = lines[-1] if lines else "it said nothing"
                raise UserError(f"{site}: it does not start: {last.removeprefix('ekya: ')}")
            time.sleep(_LOOK_S)
        self.addresses[site] = json.loads(file.read_text(encoding="utf-8"))["address"]
        self.handles[site] = SiteHandle(self.addresses[site], SITE, self._token)


def address_towards(addresses: Mapping[SiteName, str]) -> str:
    """Returns the address of this machine by which sites elsewhere reach it; that of loopback without any."""
    for address in addresses.values():
        with suppress(OSError):
            host, port = split_address(address)
            family, kind, _, _, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as asking:
                asking.connect(there)  # Nothing is sent.
                return str(asking.getsockname()[0])
    return "127.0.0.1"
