"""``ekya fleet doctor``: examines a fleet's hosts and the links between them before it is used."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from rich.table import Table
from rich.text import Text

from ekya.cli import options as opt
from ekya.cli.command import Output, command, open_bars, require_writable
from ekya.core.errors import UserError
from ekya.fleet.policy.places import SiteName
from ekya.results.report.formatting import NONE
from ekya.system.files import write_text_atomic

if TYPE_CHECKING:
    from ekya.fleet.run.host_facts import FleetFacts
    from ekya.fleet.servers_file import Servers


@dataclass(frozen=True, kw_only=True)
class FleetDoctorConfig:
    """Options of ``ekya fleet doctor``."""

    servers: Annotated[Path, typer.Argument(metavar="SERVERS", help="Servers file.")]
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the servers file with the measured links, beside it."),
    ] = None
    token_file: opt.FleetToken = None
    timeout: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="Time for the sites to answer.")
    ] = 60.0
    json_to: opt.Json = None


@command(
    FleetDoctorConfig,
    "ekya fleet doctor town.yaml",
    "ekya fleet doctor town.yaml --write measured.yaml",
    "ekya fleet doctor town.yaml --json - | jq .problems",
)
def doctor(config: FleetDoctorConfig, output: Output) -> None:
    """Examine the sites of a fleet and all links between them, before the fleet runs.

    The sites are the servers with an address, where ekya fleet site must run; others are not examined. Each
    direction of a link is loaded for two seconds at most. The exit code is 1 where there is a problem.
    """
    from ekya.fleet.run.doctor import DOCTOR, examine_fleet
    from ekya.fleet.run.sites.client import SiteHandle
    from ekya.fleet.run.sites.server import fleet_token
    from ekya.fleet.servers_file import load_servers

    if config.write is not None:
        if config.write.absolute().parent != config.servers.absolute().parent:
            raise UserError(
                f"--write {config.write}: name a file beside {config.servers}, whose paths it has"
            )
        require_writable("--write", config.write)
    servers = load_servers(config.servers, reads=lambda _: False)
    if not servers.addresses:
        raise UserError(
            f"{config.servers}: servers: none has an address, so all run on one machine; examine that with "
            "`ekya doctor`, or give them addresses"
        )
    token = fleet_token(config.token_file)
    handles = {site: SiteHandle(address, DOCTOR, token) for site, address in servers.addresses.items()}
    with open_bars(output.console) as bars:
        tasks = {what: bars.add_task(what, total=None) for what in ("sites", "links")}

        def watch(what: str, done: int, of: int) -> None:
            bars.update(tasks[what], completed=done, total=of)

        facts = examine_fleet(handles, config.timeout, watch)
    problems = facts.problems(_told(servers))
    output.write_json(_as_json(facts, problems))
    output.console.print(_table(facts))
    if config.write is not None:
        _write(config.servers, servers, facts, config.write)
        output.print_text(f"The servers file with the measured links is {config.write}")
    output.print_text("\n".join(f"- {problem}" for problem in problems) or "No problem was found.")
    if problems:
        raise typer.Exit(1)


def _told(servers: "Servers") -> dict[tuple[SiteName, SiteName], float]:
    """Returns the rate of every link in the servers file, in megabytes a second."""
    rates, usual = servers.links.mb_s, servers.links.usual_mb_s
    return {way: rates.get(way, usual) for way in permutations(servers.sites, 2)}


def _as_json(facts: "FleetFacts", problems: Sequence[str]) -> Mapping[str, object]:
    return {
        "fine": not problems,
        "problems": problems,
        "sites": {
            name: asdict(its) | dict(zip(("ahead_us", "error_us"), facts.clocks[name], strict=True))
            for name, its in facts.hosts.items()
        },
        "links": [
            {"from": origin, "to": target, **asdict(link)} for (origin, target), link in facts.links.items()
        ],
    }


def _table(facts: "FleetFacts") -> Table:
    """Builds a table with a row per site."""
    titles = ("Site", "Python, ekya, ray, torch", "GPUs", "Memory", "Disk", "Clock", "Slowest link from it")
    table = Table(*titles, title="Sites", title_justify="left")
    for name, its in facts.hosts.items():
        found = {what: finding["found"] for what, finding in its.machine["findings"].items()}
        ahead_us, error_us = facts.clocks[name]
        links = [(link.mb_s, link.round_trip_us, to) for (of, to), link in facts.links.items() if of == name]
        slowest = (f"{_rounded(mb_s):g} MB/s, {us / 1e3:.1f} ms, to {to}" for mb_s, us, to in sorted(links))
        cells = (
            name,
            ", ".join(version or NONE for version in its.versions.values()),
            "; ".join(text for what, text in found.items() if what.startswith("GPU")),
            found["Memory"].partition(" free")[0],
            found["Disk"].partition(" free")[0],
            f"{ahead_us / 1e3:+.1f} ± {error_us / 1e3:.1f} ms",
            next(slowest, NONE),
        )
        table.add_row(*map(Text, cells))
    return table


def _write(path: Path, servers: "Servers", facts: "FleetFacts", to: Path) -> None:
    """Writes the servers file with the rates that were measured between its servers."""
    from ekya.fleet.policy.loans import Links
    from ekya.fleet.servers_file import links_section
    from ekya.system.yaml_file import read_mapping

    measured = {way: _rounded(link.mb_s) for way, link in facts.links.items()}
    links = Links({**servers.links.mb_s, **measured}, servers.links.usual_mb_s)
    raw = {**read_mapping(path), "links": links_section(links)}
    write_text_atomic(to, yaml.safe_dump(raw, sort_keys=False, allow_unicode=True))


def _rounded(mb_s: float) -> float:
    return float(f"{mb_s:.3g}")
