"""``ekya fleet run``: several servers, each with Ekya inside, that lend each other shares of their GPUs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from ekya.commands.output import Output, bars_of
from ekya.commands.run import noticing_ctrl_c, require_world
from ekya.config import RunOptions
from ekya.control.loop import Observer
from ekya.control.protocols import Batch
from ekya.control.step import Turn
from ekya.core.units import US_PER_S, us_to_seconds
from ekya.errors import UserError
from ekya.files import write_text_atomic
from ekya.fleet.policy.andreas.greedy import Andreas
from ekya.fleet.policy.brokering import by_policy
from ekya.fleet.policy.names import SiteName
from ekya.fleet.run.servers import Failure
from ekya.fleet.run.servers_folder import ServersFolder
from ekya.fleet.run.servers_summary import summarise_servers
from ekya.fleet.servers_file import DEFAULT_SERVERS, Servers, dump_servers, load_servers
from ekya.report.words import percent, points
from ekya.runfolder import RunFolder
from ekya.scheduling.registry import make_scheduler
from ekya.shipped import shipped_path

TIERS = {"andreas": by_policy(Andreas())}

NO_TIER = "none"
"""As the value of ``--tier``: every server is by itself."""


@dataclass(frozen=True, slots=True)
class ServersArguments:
    """What the command line says about the servers.

    Attributes:
        file: a servers file; None takes the shipped one.
        scheduler, window_s, windows: in every fleet, instead of what its file says.
        tier: who finds loans.
        fail: words of ``--fail``.
    """

    file: Path | None
    scheduler: str | None
    window_s: float | None
    windows: int | None
    tier: str
    fail: Sequence[str]

    def read(self) -> Servers:
        """The servers.

        Raises:
            UserError: a bad file, or a scheduler that cannot decide there.
        """
        said = {"scheduler": self.scheduler, "window_s": self.window_s, "windows": self.windows}
        changes = {key: value for key, value in said.items() if value is not None}
        return load_servers(self.file or shipped_path(DEFAULT_SERVERS), changes)


def read_failures(words: Sequence[str], servers: Servers) -> tuple[Failure, ...]:
    """Of ``--fail``: a server, and when it dies in seconds.

    Raises:
        UserError: one is not written so, or there is no such server.
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
    """Runs, then reports.

    Raises:
        UserError: see the parts.
        KeyboardInterrupt: Ctrl-C came. What happened until then is written and reported.
    """
    servers = arguments.read()
    failures = read_failures(arguments.fail, servers)
    if arguments.tier not in (NO_TIER, *TIERS):
        known = ", ".join((*TIERS, NO_TIER))
        raise UserError(f"--tier {arguments.tier}: nobody of that name finds loans; choose from {known}")
    if clock == "wall":
        raise UserError("--clock wall: several servers run on virtual time only; add --clock virtual")
    for server in servers.servers:
        require_world(server.fleet.scheduler, server.fleet, clock)
        _require_by_itself(server.fleet.scheduler)
    with noticing_ctrl_c() as came:
        folder = ServersFolder.create(options.runs, options.name or servers.name)
        write_text_atomic(folder.servers, dump_servers(servers))
        summary = _emulated(folder, servers, arguments.tier, failures, options, output.console)
        write_text_atomic(folder.summary, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
        output.report(summary)
        output.console.print(_table(summary))
        where = f"Everything about this run is in {folder.path}"
        output.console.print(where, highlight=False, soft_wrap=True)
    if came():
        raise KeyboardInterrupt


def _require_by_itself(scheduler: str) -> None:
    """Refuses a scheduler that sends retrainings away itself: that is the tier's to decide."""
    needs = make_scheduler(scheduler).needs
    if needs.elsewhere or needs.kept_models:
        raise UserError(
            f"scheduler: {scheduler} brings weights that are not trained on its own GPUs, and among several "
            "servers that is what the tier is for; choose another scheduler, such as ekya"
        )


def _emulated(
    folder: ServersFolder,
    servers: Servers,
    tier: str,
    failures: Sequence[Failure],
    options: RunOptions,
    console: Console,
) -> dict[str, Any]:
    from ekya.fleet.run.emulated_servers import emulate_servers

    broker = None if tier == NO_TIER else TIERS[tier]
    with bars_of(console) as bars:
        observe = _watched(servers, bars)
        try:
            desk = emulate_servers(folder, servers, broker, failures, options.seed, observe)
        except KeyboardInterrupt:
            desk = None
    runs = {site: RunFolder.open(folder.path / site) for site in servers.sites}
    died = {failure.site: us_to_seconds(failure.at_us) for failure in failures}
    loans = () if desk is None else desk.loans
    return summarise_servers(folder.path.name, None if desk is None else tier, runs, loans, died)


def _watched(servers: Servers, bars: Progress) -> Callable[[SiteName], Observer]:
    """A bar a server, as far as its windows have come."""

    def observe(site: SiteName) -> Observer:
        fleet = next(server.fleet for server in servers.servers if server.terms.site == site)
        task = bars.add_task(str(site), total=fleet.windows)

        def follow(batch: Batch, turn: Turn) -> None:
            bars.update(task, completed=int(us_to_seconds(batch.now_us) / fleet.window_s))

        return follow

    return observe


def _table(summary: dict[str, Any]) -> Table:
    """A row a server, and one for all of them."""
    tier = "each by itself" if summary["tier"] is None else f"tier {summary['tier']}"
    table = Table(title=Text(f"{summary['name']}, {summary['world']}, {tier}"), title_justify="left")
    table.add_column("Server")
    for title in ("GPUs", "Streams", "Accuracy", "Gain", "Retrainings", "Lends", "Borrows"):
        table.add_column(title, justify="right")
    for site, its in summary["servers"].items():
        gains = [stream["gain"] for stream in its["streams"].values() if stream["gain"] is not None]
        table.add_row(
            Text(site if its["died_s"] is None else f"{site}, died at {its['died_s']:g} s"),
            f"{its['gpus']:g}",
            str(len(its["streams"])),
            percent(its["mean_accuracy"]),
            points(sum(gains) / len(gains) if gains else None),
            f"{its['retrainings']['finished']} of {its['retrainings']['started']}",
            str(its["lends"]),
            str(its["borrows"]),
        )
    table.add_section()
    all_streams = sum(len(its["streams"]) for its in summary["servers"].values())
    accuracy, gain = percent(summary["mean_accuracy"]), points(summary["gain"])
    table.add_row("all", "", str(all_streams), accuracy, gain, "", "", "", style="bold")
    frames, loans = summary["frames"], summary["loans"]
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in loans["by_outcome"].items())
    table.caption = (
        f"{frames['arrived']} frames arrived, {frames['lost']} lost; {loans['made']} loans"
        + (f" ({outcomes})" if outcomes else "")
        + f", {summary['moved_mb']['total']:.1f} MB between servers, no frame among them"
    )
    table.caption_justify = "left"
    return table
