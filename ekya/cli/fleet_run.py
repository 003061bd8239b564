"""``ekya fleet run``: runs several servers, each with Ekya, that lend each other spare capacity."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text

from ekya.cli import options as opt
from ekya.cli.command import Output, command, open_bars
from ekya.cli.fleet_stores import RestOptions, open_updates, read_stores_of_file
from ekya.cli.options import Clock, read_failing
from ekya.core.errors import UserError
from ekya.core.units import US_PER_S, us_to_seconds
from ekya.fleet.policy.places import SiteName
from ekya.results.report.formatting import NONE, format_percent, format_points, make_table
from ekya.system.ctrl_c import remember_ctrl_c
from ekya.system.files import write_text_atomic

if TYPE_CHECKING:
    from ekya.config.fleet_file import FleetConfig
    from ekya.control.loop import Observer
    from ekya.core.units import StreamId
    from ekya.fleet.run.live.launched_servers import LaunchedServers
    from ekya.fleet.run.servers import ServerDeath
    from ekya.fleet.run.servers_folder import RanServers, ServersFolder
    from ekya.fleet.run.stores.folder_store import FolderStore
    from ekya.fleet.servers_file import ServerConfig, Servers

DEFAULT_TIER = "net"
NO_TIER = "none"
"""Value of ``--tier`` that disables lending."""


@dataclass(frozen=True, kw_only=True)
class FleetRunConfig:
    """Options of ``ekya fleet run``."""

    servers: Annotated[
        Path | None, typer.Argument(metavar="SERVERS", help="Servers file; the shipped one if left out.")
    ] = None
    tier: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Policy that decides about loans: net (ours, if left out), andreas, or none.",
        ),
    ] = None
    fail: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE@SECONDS", help="A server that dies then; give it once for each."),
    ] = None
    scheduler: opt.Scheduler = None
    clock: opt.RunClock = Clock.WALL
    seed: opt.Seed = 0
    window: opt.Window = None
    windows: opt.Windows = None
    name: opt.RunName = None
    runs: opt.Runs = Path("runs")
    shares: opt.Shares = "auto"
    stores: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Stores of samples whose models are updated meanwhile (YAML)."),
    ] = None
    host: Annotated[
        str,
        typer.Option(
            help="Address where updates are ordered; clients elsewhere need the token in the folder."
        ),
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of it; 0: any free one.")] = 8471
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Take up a run whose ekya fleet run has died, and nothing else."),
    ] = None
    json_to: opt.Json = None


@command(
    FleetRunConfig,
    "ekya fleet run",
    "ekya fleet run town.yaml --windows 3",
    "ekya fleet run --resume runs/town",
    "ekya fleet run town.yaml --stores stores.yaml",
    "curl -X POST 'http://127.0.0.1:8471/launcher?store=cam-1'",
    "ekya fleet run --clock virtual --tier none --json -",
    "ekya fleet run my-servers.yaml --clock virtual --fail north@45 --name storm",
)
def run(config: FleetRunConfig, output: Output) -> None:
    """Run several servers, each with Ekya inside, that lend each other shares of their GPUs.

    Each is an ekya serve on this machine, which ends after its last window. They go on when this command
    dies, and --resume takes them up again, also those that have died. With --stores, models of stores are
    updated on the same servers, by themselves or when they are ordered over REST.
    """
    from ekya.fleet.run.servers_folder import summarise_servers

    tier = make_tier(config.tier or DEFAULT_TIER)
    with remember_ctrl_c():
        if config.resume is not None:
            ran, folder, tier, sites = _resumed(config, config.resume, output)
        else:
            ran, folder, sites = _ran(config, tier, output)
        summary = summarise_servers(folder.path.name, tier, sites, ran, folder.read_loans(sites))
        write_text_atomic(folder.summary, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
        output.write_json(summary)
        output.console.print(_table(summary))
        output.print_text(f"Everything about this run is in {folder.path}")


def _failures(words: Sequence[str], servers: "Servers") -> "tuple[ServerDeath, ...]":
    from ekya.fleet.run.servers import ServerDeath

    failures = read_failing(words)
    for name, _ in failures:
        if name not in servers.sites:
            known = ", ".join(servers.sites)
            raise UserError(f"--fail {name}: there is no server {name}; they are {known}")
    return tuple(ServerDeath(SiteName(name), at_us) for name, at_us in failures)


def make_tier(name: str) -> str | None:
    """Returns the tier of ``--tier``; None if lending is disabled.

    Raises:
        UserError: there is no such tier.
    """
    from ekya.fleet.policy.registry import TIERS

    if name not in (NO_TIER, *TIERS):
        known = ", ".join((*TIERS, NO_TIER))
        raise UserError(f"--tier {name}: no tier has this name; choose from {known}")
    return None if name == NO_TIER else name


def _ran(
    config: FleetRunConfig, tier: str | None, output: Output
) -> "tuple[RanServers, ServersFolder, tuple[SiteName, ...]]":
    from ekya.cli.servers_from_options import read_all_servers, read_servers_here
    from ekya.config.shipped import shipped_path
    from ekya.fleet.servers_file import DEFAULT_SERVERS

    path = config.servers or shipped_path(DEFAULT_SERVERS)
    options = {"scheduler": config.scheduler, "window_s": config.window, "windows": config.windows}
    changes = {key: value for key, value in options.items() if value is not None}
    if config.clock is Clock.VIRTUAL:
        servers = read_all_servers(path, changes)
        failures = _failures(config.fail or (), servers)
        ran, folder = _run_emulated(config, servers, tier, failures, output.console)
    else:
        servers = read_servers_here(path, changes, config.shares)
        failures = _failures(config.fail or (), servers)
        ran, folder = _run_live(config, servers, tier, failures, output)
    return ran, folder, servers.sites


def _run_emulated(
    config: FleetRunConfig,
    servers: "Servers",
    tier: str | None,
    failures: "Sequence[ServerDeath]",
    console: Console,
) -> "tuple[RanServers, ServersFolder]":
    from ekya.fleet.policy.registry import TIERS
    from ekya.fleet.run.emulated_servers import emulate_servers

    if config.stores is not None:
        raise UserError("--stores: they are not updated on virtual time; leave it out, or leave out --clock")
    folder = _folder(config, servers)
    with open_bars(console) as bars:
        follow = _followed(bars)

        def observe(server: "ServerConfig") -> "Observer":
            site, fleet = server.terms.site, server.fleet
            return lambda batch, _: follow(site, batch.now_us, _ends_us(fleet))

        decides = None if tier is None else TIERS[tier]
        return emulate_servers(folder, servers, decides, failures, config.seed, observe), folder


def _run_live(
    config: FleetRunConfig,
    servers: "Servers",
    tier: str | None,
    failures: "Sequence[ServerDeath]",
    output: Output,
) -> "tuple[RanServers, ServersFolder]":
    from ekya.fleet.run.live.launched_servers import LaunchedServers

    if config.stores is not None and tier is None:
        raise UserError("--stores: without a tier no update is given a server; leave out --tier none")
    stores = read_stores_of_file(config.stores)
    folder = _folder(config, servers)
    launched = LaunchedServers.launch(folder, servers, tier, config.seed, config.shares, config.stores)
    ends_us = {server.terms.site: _ends_us(server.fleet) for server in servers.servers}
    return _watch(config, launched, folder, stores, failures, ends_us, output), folder


def _resumed(
    config: FleetRunConfig, path: Path, output: Output
) -> "tuple[RanServers, ServersFolder, str | None, tuple[SiteName, ...]]":
    from ekya.fleet.run.live.launched_servers import LaunchedServers
    from ekya.fleet.run.servers_folder import LiveRun, ServersFolder

    folder = ServersFolder(path)
    live = LiveRun.load(folder.live)
    stores, launched = read_stores_of_file(live.stores), LaunchedServers(folder, live)
    launched.start_missing()
    ran = _watch(config, launched, folder, stores, (), {}, output)
    return ran, folder, live.tier, tuple(live.ports)


def _watch(
    config: FleetRunConfig,
    launched: "LaunchedServers",
    folder: "ServersFolder",
    stores: "Mapping[StreamId, FolderStore]",
    failures: "Sequence[ServerDeath]",
    ends_us: Mapping[SiteName, int | None],
    output: Output,
) -> "RanServers":
    """Watches servers until they have ended, with a bar for each, and updates stores meanwhile."""
    rest = RestOptions(config.host, config.port)
    with (
        closing(launched),
        open_updates(stores, folder, launched, rest, output) as updates,
        open_bars(output.console) as bars,
    ):
        follow = _followed(bars)

        def look(now_us: int, running: "Sequence[SiteName]") -> None:
            for site in running:
                follow(site, now_us, ends_us.get(site))
            if updates is not None:
                updates.look_after_stores(launched.now_us, dict.fromkeys(running, "running"))

        return launched.watch_runs(failures, look)


def _ends_us(fleet: "FleetConfig") -> int | None:
    return None if fleet.windows is None else round(fleet.windows * fleet.window_s * US_PER_S)


def _folder(config: FleetRunConfig, servers: "Servers") -> "ServersFolder":
    from ekya.fleet.run.servers_folder import ServersFolder
    from ekya.fleet.servers_file import dump_servers

    folder = ServersFolder.create(config.runs, config.name or servers.name)
    write_text_atomic(folder.servers, dump_servers(servers))
    return folder


def _followed(bars: Progress) -> Callable[[SiteName, int, int | None], None]:
    """Returns a callback that draws a bar for each server, from its run time and the time of its end."""
    tasks: dict[SiteName, TaskID] = {}

    def follow(site: SiteName, now_us: int, ends_us: int | None) -> None:
        if site not in tasks:
            tasks[site] = bars.add_task(str(site), total=None)
        ends_s = None if ends_us is None else round(us_to_seconds(ends_us))
        now_s = round(us_to_seconds(now_us))
        bars.update(tasks[site], total=ends_s, completed=now_s if ends_s is None else min(now_s, ends_s))

    return follow


def _table(summary: dict[str, Any]) -> Table:
    """Builds a table with a row per server and a row for all of them."""
    tier = "each by itself" if summary["tier"] is None else f"tier {summary['tier']}"
    headings = ("Server", "GPUs", "Streams", "Accuracy", "Gain", "Retrainings", "Lends", "Borrows")
    table = make_table(*headings, title=f"{summary['name']}, {summary['world']}, {tier}")
    for site, its in summary["servers"].items():
        gains = [stream["gain"] for stream in its["streams"].values() if stream["gain"] is not None]
        trained = its["retrainings"]
        table.add_row(
            Text(f"{site}{_fate(its)}"),
            NONE if its["gpus"] is None else f"{its['gpus']:g}",
            str(len(its["streams"])),
            format_percent(its["mean_accuracy"]),
            format_points(sum(gains) / len(gains) if gains else None),
            NONE if trained is None else f"{trained['finished']} of {trained['started']}",
            str(its["lends"]),
            str(its["borrows"]),
        )
    table.add_section()
    all_streams = sum(len(its["streams"]) for its in summary["servers"].values())
    accuracy, gain = format_percent(summary["mean_accuracy"]), format_points(summary["gain"])
    table.add_row("all", "", str(all_streams), accuracy, gain, "", "", "", style="bold")
    frames, loans = summary["frames"], summary["loans"]
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in loans["by_outcome"].items())
    after_s = loans["arrived_after_s"]
    if after_s["was"] is not None:
        outcomes += f" after {after_s['was']:.1f} s, {after_s['foreseen']:.1f} foreseen"
    table.caption = (
        f"{frames['arrived']} frames arrived, {frames['lost']} lost; {loans['made']} loans"
        + (f" ({outcomes})" if outcomes else "")
        + f", {summary['moved_mb']['total']:.1f} MB between servers"
    )
    return table


def _fate(its: Mapping[str, Any]) -> str:
    """Returns when the server died, in words; empty if it did not."""
    return "" if its["died_s"] is None else f", died at {its['died_s']:.0f} s"
