"""``ekya fleet run``: runs several servers, each with Ekya, that lend each other spare capacity."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from ekya.cli import options as opt
from ekya.cli.command import command
from ekya.cli.fail_option import read_failing
from ekya.cli.options import Clock
from ekya.cli.output import Output, bars_of, ctrl_c_remembered
from ekya.core.errors import UserError
from ekya.core.units import FULL_GPU_MILLI, us_to_seconds
from ekya.fleet.policy.names import NodeName, SiteName
from ekya.results.report.words import NONE, percent, points
from ekya.system.files import write_text_atomic

if TYPE_CHECKING:
    from ekya.control.loop import Observer
    from ekya.fleet.run.servers import ServerDeath
    from ekya.fleet.run.servers_folder import ServersFolder
    from ekya.fleet.run.servers_summary import RanServers
    from ekya.fleet.servers_file import Servers

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
            help="Tiers that find loans between servers: net (ours, if left out), andreas, "
            "deep-edge, okita, okita-joint, or none.",
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
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A Ray cluster whose nodes are the servers; they are emulated on this machine if left out.",
        ),
    ] = None
    json_to: opt.Json = None


@command(
    FleetRunConfig,
    "ekya fleet run",
    "ekya fleet run my-servers.yaml --address 10.0.0.1:6379",
    "ekya fleet run --clock virtual --tier none --json -",
    "ekya fleet run my-servers.yaml --clock virtual --fail north@45 --name storm",
)
def run(config: FleetRunConfig, output: Output) -> None:
    """Run several servers, each with Ekya inside, that lend each other shares of their GPUs."""
    from ekya.cli.fleet_from_options import require_world
    from ekya.config.shipped import shipped_path
    from ekya.fleet.run.loan_file import read_loans
    from ekya.fleet.run.servers_summary import summarise_servers
    from ekya.fleet.servers_file import DEFAULT_SERVERS, load_servers

    options = {"scheduler": config.scheduler, "window_s": config.window, "windows": config.windows}
    changes = {key: value for key, value in options.items() if value is not None}
    servers = load_servers(config.servers or shipped_path(DEFAULT_SERVERS), changes)
    failures = _failures(config.fail or (), servers)
    for server in servers.servers:
        require_world(server.fleet, server.fleet.scheduler, config.clock)
        _require_by_itself(server.fleet.scheduler)
    servers = _fitted(servers, config)
    tier = tier_of(config.tier or DEFAULT_TIER)
    run_world = _run_live if config.clock is Clock.WALL else _run_emulated
    with ctrl_c_remembered():
        ran, folder = run_world(config, servers, tier, failures, output.console)
        summary = summarise_servers(folder.path.name, tier, servers.sites, ran, read_loans(folder.loans))
        write_text_atomic(folder.summary, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
        output.report(summary)
        output.console.print(_table(summary))
        output.say(f"Everything about this run is in {folder.path}")


def _failures(words: Sequence[str], servers: "Servers") -> "tuple[ServerDeath, ...]":
    from ekya.fleet.run.servers import ServerDeath

    failures = read_failing(words, "SITE", returns=False)
    for failing in failures:
        if failing.name not in servers.sites:
            known = ", ".join(servers.sites)
            raise UserError(f"--fail {failing.name}: there is no server {failing.name}; they are {known}")
    return tuple(ServerDeath(SiteName(failing.name), failing.from_us) for failing in failures)


def _fitted(servers: "Servers", config: FleetRunConfig) -> "Servers":
    """Fits the sizes of every fleet; fleets on this machine without ``gpus`` get equal parts of it."""
    from ekya.config.sizing import ANY_MACHINE
    from ekya.gpu.backends.registry import choose_backend
    from ekya.pipeline.costs import fitted_by_card
    from ekya.planning.profiling.sizes import Machine

    part = ANY_MACHINE
    if config.clock is Clock.WALL and config.address is None:
        there = choose_backend(config.shares).capability
        part = Machine(there.capacity_milli // len(servers.servers), on_cores=there.device != "cuda")
    fitted = []
    for server in servers.servers:
        under = server.fleet.under(server.fleet.scheduler)
        fleet, _ = fitted_by_card(under, ANY_MACHINE if server.fleet.is_set("gpus") else part)
        fitted.append(replace(server, fleet=fleet))
    return replace(servers, servers=tuple(fitted))


def tier_of(name: str) -> str | None:
    """Returns the tier of ``--tier``; None if lending is disabled.

    Raises:
        UserError: there is no such tier.
    """
    from ekya.fleet.policy.tiers import TIERS

    if name not in (NO_TIER, *TIERS):
        known = ", ".join((*TIERS, NO_TIER))
        raise UserError(f"--tier {name}: no tier has this name; choose from {known}")
    return None if name == NO_TIER else name


def _require_by_itself(scheduler: str) -> None:
    """Refuses a scheduler that sends retrainings to other servers itself, which is the tier's task."""
    from ekya.planning.schedulers.registry import make_scheduler

    needs = make_scheduler(scheduler).needs
    if needs.elsewhere or needs.kept_models:
        raise UserError(
            f"scheduler: {scheduler} brings weights that are not trained on its own GPUs, and among several "
            "servers that is what the tier is for; choose another scheduler, such as ekya"
        )


def _run_emulated(
    config: FleetRunConfig,
    servers: "Servers",
    tier: str | None,
    failures: "Sequence[ServerDeath]",
    console: Console,
) -> "tuple[RanServers, ServersFolder]":
    from ekya.fleet.policy.tiers import TIERS
    from ekya.fleet.run.emulated_servers import emulate_servers

    if config.address is not None:
        raise UserError("--address: nothing runs on Ray on virtual time; leave it out, or leave out --clock")
    folder = _folder(config, servers)
    with bars_of(console) as bars:
        follow = _followed(servers, bars)

        def observe(site: SiteName) -> "Observer":
            return lambda batch, _: follow(site, batch.now_us)

        broker = None if tier is None else TIERS[tier]
        return emulate_servers(folder, servers, broker, failures, config.seed, observe), folder


def _run_live(
    config: FleetRunConfig,
    servers: "Servers",
    tier: str | None,
    failures: "Sequence[ServerDeath]",
    console: Console,
) -> "tuple[RanServers, ServersFolder]":
    from ekya.cli.fleet_from_options import require_credentials
    from ekya.config.run_options import RunOptions
    from ekya.fleet.run.cluster import open_cluster
    from ekya.fleet.run.live.live_servers import STORE_BYTES, run_live_servers

    if config.address is None:
        _require_capacity(servers, config.shares)
    elif failures:
        raise UserError("--fail: only nodes that are emulated here are made to fail; leave out --address")
    for server in servers.servers:
        require_credentials(server.fleet)
    options = RunOptions(seed=config.seed, runs=config.runs, name=config.name, shares=config.shares)
    nodes = {NodeName(site): FULL_GPU_MILLI for site in servers.sites}
    with open_cluster(config.address, nodes, STORE_BYTES) as cluster:
        folder = _folder(config, servers)
        with bars_of(console) as bars:
            follow = _followed(servers, bars)
            return run_live_servers(folder, servers, tier, failures, options, cluster, follow), folder


def _folder(config: FleetRunConfig, servers: "Servers") -> "ServersFolder":
    from ekya.fleet.run.servers_folder import ServersFolder
    from ekya.fleet.servers_file import dump_servers

    folder = ServersFolder.create(config.runs, config.name or servers.name)
    write_text_atomic(folder.servers, dump_servers(servers))
    return folder


def _require_capacity(servers: "Servers", shares: str) -> None:
    """Refuses emulated servers that together need more capacity than this machine has."""
    from ekya.gpu.backends.registry import choose_backend

    there = choose_backend(shares).capability
    wanted = sum(server.fleet.capacity_milli for server in servers.servers)
    if wanted > there.capacity_milli:
        raise UserError(
            f"gpus: {wanted / FULL_GPU_MILLI:g}, of all servers together, is more than the "
            f"{there.capacity_milli / FULL_GPU_MILLI:g} that are here ({there.why}); give them less, or name "
            "a Ray cluster with --address"
        )
    # Cores are one pool. Of GPUs, every server takes the first ones, even if other servers use them.
    first_milli = sum(min(server.fleet.capacity_milli, FULL_GPU_MILLI) for server in servers.servers)
    if there.device == "cuda" and first_milli > FULL_GPU_MILLI:
        raise UserError(
            "gpus: every server would begin with this machine's first GPU, and they ask for "
            f"{first_milli / FULL_GPU_MILLI:g} of it; give them less, use --shares cpu, or name a Ray "
            "cluster with --address"
        )


def _followed(servers: "Servers", bars: Progress) -> Callable[[SiteName, int], None]:
    """Adds a progress bar per server and returns the callback that updates it with the run time."""
    fleets = {server.terms.site: server.fleet for server in servers.servers}
    tasks = {site: bars.add_task(str(site), total=fleet.windows) for site, fleet in fleets.items()}

    def follow(site: SiteName, now_us: int) -> None:
        windows = int(us_to_seconds(now_us) / fleets[site].window_s)
        bars.update(tasks[site], completed=min(windows, fleets[site].windows or windows))

    return follow


def _table(summary: dict[str, Any]) -> Table:
    """Builds a table with a row per server and a row for all of them."""
    tier = "each by itself" if summary["tier"] is None else f"tier {summary['tier']}"
    table = Table(title=Text(f"{summary['name']}, {summary['world']}, {tier}"), title_justify="left")
    table.add_column("Server")
    for title in ("GPUs", "Streams", "Accuracy", "Gain", "Retrainings", "Lends", "Borrows"):
        table.add_column(title, justify="right")
    for site, its in summary["servers"].items():
        gains = [stream["gain"] for stream in its["streams"].values() if stream["gain"] is not None]
        trained = its["retrainings"]
        table.add_row(
            Text(site if its["died_s"] is None else f"{site}, died at {its['died_s']:.0f} s"),
            NONE if its["gpus"] is None else f"{its['gpus']:g}",
            str(len(its["streams"])),
            percent(its["mean_accuracy"]),
            points(sum(gains) / len(gains) if gains else None),
            NONE if trained is None else f"{trained['finished']} of {trained['started']}",
            str(its["lends"]),
            str(its["borrows"]),
        )
    table.add_section()
    all_streams = sum(len(its["streams"]) for its in summary["servers"].values())
    accuracy, gain = percent(summary["mean_accuracy"]), points(summary["gain"])
    table.add_row("all", "", str(all_streams), accuracy, gain, "", "", "", style="bold")
    frames, loans = summary["frames"], summary["loans"]
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in loans["by_outcome"].items())
    after_s = loans["arrived_after_s"]
    if after_s["was"] is not None:
        outcomes += f" after {after_s['was']:.1f} s, {after_s['foreseen']:.1f} foreseen"
    table.caption = (
        f"{frames['arrived']} frames arrived, {frames['lost']} lost; {loans['made']} loans"
        + (f" ({outcomes})" if outcomes else "")
        + f", {summary['moved_mb']['total']:.1f} MB between servers, no frame among them"
    )
    table.caption_justify = "left"
    return table
