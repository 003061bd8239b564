"""``ekya fleet run``: runs several servers, each with Ekya, that lend each other spare capacity."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from ekya.cli.output import Output, bars_of
from ekya.cli.run import noticing_ctrl_c, require_credentials, require_world
from ekya.config.fleet_file import RunOptions
from ekya.config.shipped import shipped_path
from ekya.config.sizing import ANY_MACHINE
from ekya.control.loop import Observer
from ekya.core.errors import UserError
from ekya.core.units import FULL_GPU_MILLI, US_PER_S, us_to_seconds
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.tiers import TIERS
from ekya.fleet.run.loan_file import read_loans
from ekya.fleet.run.servers import Failure
from ekya.fleet.run.servers_folder import ServersFolder
from ekya.fleet.run.servers_summary import RanServers, summarise_servers
from ekya.fleet.servers_file import DEFAULT_SERVERS, Servers, dump_servers, load_servers
from ekya.gpu.backends.registry import choose_backend
from ekya.planning.profiling.sizes import Machine
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.report.words import NONE, percent, points
from ekya.system.files import write_text_atomic

DEFAULT_TIER = "net"
NO_TIER = "none"
"""Value of ``--tier`` that disables lending."""


@dataclass(frozen=True, slots=True)
class ServersArguments:
    """Arguments of the command line about the servers.

    Attributes:
        file: a servers file; None takes the shipped one.
        scheduler, window_s, windows: override every fleet's file.
        tier: policy that finds loans; None takes the default.
        fail: values of ``--fail``.
        address: address of a Ray cluster; None emulates one on this machine.
    """

    file: Path | None
    scheduler: str | None
    window_s: float | None
    windows: int | None
    tier: str | None
    fail: Sequence[str]
    address: str | None = None

    def read(self) -> Servers:
        """Reads the servers file.

        Raises:
            UserError: the file is invalid, or the scheduler cannot be used there.
        """
        said = {"scheduler": self.scheduler, "window_s": self.window_s, "windows": self.windows}
        changes = {key: value for key, value in said.items() if value is not None}
        return load_servers(self.file or shipped_path(DEFAULT_SERVERS), changes)


def read_failures(words: Sequence[str], servers: Servers) -> tuple[Failure, ...]:
    """Parses ``--fail``: a server, and the time in seconds at which it dies.

    Raises:
        UserError: a value has another form, or the server does not exist.
    """
    failures = []
    for word in words:
        site, at, time_s = word.rpartition("@")
        if not at or not time_s.replace(".", "", 1).isdecimal():
            raise UserError(f"--fail {word}: write SITE@SECONDS")
        if site not in servers.sites:
            raise UserError(f"--fail {word}: there is no server {site}; they are {', '.join(servers.sites)}")
        failures.append(Failure(SiteName(site), round(float(time_s) * US_PER_S)))
    return tuple(failures)


def run_servers(
    arguments: ServersArguments, options: RunOptions, clock: Literal["wall", "virtual"], output: Output
) -> None:
    """Runs the servers, then reports.

    Raises:
        UserError: see the called functions.
        KeyboardInterrupt: after Ctrl-C. What happened until then is written and reported.
    """
    servers = arguments.read()
    failures = read_failures(arguments.fail, servers)
    for server in servers.servers:
        require_world(server.fleet.scheduler, server.fleet, clock)
        _require_by_itself(server.fleet.scheduler)
    servers = _complete(servers, options, clock, arguments.address)
    tier = tier_of(arguments.tier or DEFAULT_TIER)
    with noticing_ctrl_c() as came:
        ran, folder = _RUNNERS[clock](servers, tier, failures, options, arguments.address, output.console)
        summary = summarise_servers(folder.path.name, tier, servers.sites, ran, read_loans(folder.loans))
        write_text_atomic(folder.summary, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
        output.report(summary)
        output.console.print(_table(summary))
        where = f"Everything about this run is in {folder.path}"
        output.console.print(where, highlight=False, soft_wrap=True)
    if came():
        raise KeyboardInterrupt


def _complete(
    servers: Servers, options: RunOptions, clock: Literal["wall", "virtual"], address: str | None
) -> Servers:
    """Fits the sizes of every fleet; fleets on this machine without ``gpus`` get equal parts of it."""
    from ekya.pipeline.costs import fitted_by_card

    part = ANY_MACHINE
    if clock == "wall" and address is None:
        there = choose_backend(options.shares).capability
        part = Machine(there.capacity_milli // len(servers.servers), on_cores=there.device != "cuda")
    return replace(
        servers,
        servers=tuple(
            replace(
                server,
                fleet=fitted_by_card(server.fleet, ANY_MACHINE if server.fleet.says("gpus") else part)[0],
            )
            for server in servers.servers
        ),
    )


def tier_of(name: str) -> str | None:
    """Returns the tier of ``--tier``; None if lending is disabled.

    Raises:
        UserError: there is no such tier.
    """
    if name not in (NO_TIER, *TIERS):
        known = ", ".join((*TIERS, NO_TIER))
        raise UserError(f"--tier {name}: no tier has this name; choose from {known}")
    return None if name == NO_TIER else name


def _require_by_itself(scheduler: str) -> None:
    """Refuses a scheduler that sends retrainings to other servers itself, which is the tier's task."""
    needs = make_scheduler(scheduler).needs
    if needs.elsewhere or needs.kept_models:
        raise UserError(
            f"scheduler: {scheduler} brings weights that are not trained on its own GPUs, and among several "
            "servers that is what the tier is for; choose another scheduler, such as ekya"
        )


def _emulated(
    servers: Servers,
    tier: str | None,
    failures: Sequence[Failure],
    options: RunOptions,
    address: str | None,
    console: Console,
) -> tuple[RanServers, ServersFolder]:
    from ekya.fleet.run.emulated_servers import emulate_servers

    if address is not None:
        raise UserError("--address: nothing runs on Ray on virtual time; leave it out, or leave out --clock")
    folder = _folder(servers, options)
    with bars_of(console) as bars:
        watch = _watched(servers, bars)

        def observe(site: SiteName) -> Observer:
            return lambda batch, turn: watch(site, batch.now_us)

        broker = None if tier is None else TIERS[tier]
        return emulate_servers(folder, servers, broker, failures, options.seed, observe), folder


def _live(
    servers: Servers,
    tier: str | None,
    failures: Sequence[Failure],
    options: RunOptions,
    address: str | None,
    console: Console,
) -> tuple[RanServers, ServersFolder]:
    from ekya.fleet.run.live.live_servers import nodes_at, nodes_here, run_live_servers

    if address is None:
        _require_capacity(servers, options.shares)
    elif failures:
        raise UserError("--fail: only nodes that are emulated here are made to fail; leave out --address")
    for server in servers.servers:
        require_credentials(server.fleet)
    with nodes_here(servers) if address is None else nodes_at(address, servers) as nodes:
        folder = _folder(servers, options)
        with bars_of(console) as bars:
            watch = _watched(servers, bars)
            return run_live_servers(folder, servers, tier, failures, options, nodes, watch), folder


# Each world imports its own engine, so that virtual time needs no Ray.
_RUNNERS = {"wall": _live, "virtual": _emulated}


def _folder(servers: Servers, options: RunOptions) -> ServersFolder:
    folder = ServersFolder.create(options.runs, options.name or servers.name)
    write_text_atomic(folder.servers, dump_servers(servers))
    return folder


def _require_capacity(servers: Servers, shares: str) -> None:
    """Refuses emulated servers that together need more capacity than this machine has."""
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


def _watched(servers: Servers, bars: Progress) -> Callable[[SiteName, int], None]:
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
