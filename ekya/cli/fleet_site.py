"""``ekya fleet site``: runs one server of a fleet on its machine, when ``ekya fleet run`` says so."""

import signal
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import Output, command
from ekya.core.errors import UserError
from ekya.fleet.policy.places import SiteName

if TYPE_CHECKING:
    from ekya.fleet.servers_file import ServerConfig

IDLE_S = 120.0
"""Time that ``--once`` stays without a run: before it while other sites start, and after it for questions."""


@dataclass(frozen=True, kw_only=True)
class SiteConfig:
    """Options of ``ekya fleet site``."""

    servers: Annotated[Path, typer.Argument(metavar="SERVERS", help="Servers file, on this machine.")]
    site: Annotated[str, typer.Option(metavar="NAME", help="Server of the file that runs here.")]
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where others reach it; default: its address in the file."),
    ] = None
    token_file: opt.FleetToken = None
    runs: opt.Runs = Path("runs")
    shares: opt.Shares = "auto"
    once: Annotated[bool, typer.Option("--once", help="End after one run.")] = False
    json_to: opt.Json = None


@command(
    SiteConfig,
    "ekya fleet site town.yaml --site south",
    "ekya fleet site town.yaml --site south --listen 10.0.0.2:7070 --runs /var/lib/ekya",
)
def site(config: SiteConfig, output: Output) -> None:
    """Run one server of a fleet on this machine, whenever ekya fleet run asks for it, until Ctrl-C.

    Paths and passwords of its fleet file are those of this machine. It goes on when the other sites, or the
    machine of ekya fleet run, are not reached. Started again after a crash, it goes on with its run.
    """
    from ekya.cli.servers_from_options import read_server_of_site
    from ekya.fleet.run.calls import LocalHandle, public_methods
    from ekya.fleet.run.doctor import DOCTOR, HostDoctor
    from ekya.fleet.run.live.orders import SITE
    from ekya.fleet.run.live.site import Site
    from ekya.fleet.run.sites.server import SiteServer, fleet_token
    from ekya.fleet.servers_file import load_servers, split_address

    name = SiteName(config.site)

    def read(changes: Mapping[str, object]) -> "ServerConfig":
        return read_server_of_site(config.servers, changes, config.shares, name)

    read({})  # says now what is wrong
    address = load_servers(config.servers, reads=lambda server: False).addresses.get(name)
    listen = config.listen or address
    if listen is None:
        raise UserError(
            f"{config.servers}: servers.{name}.address: is missing; set it, or give --listen HOST:PORT"
        )
    try:
        host, port = split_address(listen)
    except ValueError as error:
        raise UserError(f"--listen {listen}: {error}") from None
    # It may listen at 0.0.0.0, which is no address for others.
    known_as = host if address is None else split_address(address)[0]
    ends = threading.Event()
    with closing(SiteServer(host, port, fleet_token(config.token_file), known_as)) as doors:
        signal.signal(signal.SIGTERM, lambda *_: ends.set())
        signal.signal(signal.SIGINT, lambda *_: ends.set())
        its = Site(name, read, config.runs, config.shares, doors)
        doors.offer_object(SITE, LocalHandle(its, threads=4), public_methods(Site))
        examines = LocalHandle(HostDoctor(name, read, config.runs), threads=4)
        doors.offer_object(DOCTOR, examines, public_methods(HostDoctor))
        output.write_json({"site": name, "address": doors.address, "machine": its.identify()[1]})
        output.print_text(f"{name} is reached at {doors.address}; Ctrl-C ends it.")
        while not ends.wait(1.0):
            if config.once and its.is_done(IDLE_S):
                break
        its.stop_run()
