"""``ekya fleet doctor``: examines a fleet's hosts and the links between them before it is used."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from rich.table import Table
from rich.text import Text

from ekya.cli import options as opt
from ekya.cli.command import command
from ekya.cli.output import Output, bars_of, require_writable
from ekya.core.errors import UserError
from ekya.fleet.policy.names import NodeName, SiteName
from ekya.results.report.words import NONE
from ekya.system.files import write_text_atomic

if TYPE_CHECKING:
    from ekya.fleet.run.host_facts import FleetFacts
    from ekya.fleet.servers_file import Servers


@dataclass(frozen=True, kw_only=True)
class FleetDoctorConfig:
    """Options of ``ekya fleet doctor``."""

    address: Annotated[str, typer.Option(metavar="HOST:PORT|auto", help="Ray cluster of the hosts.")]
    servers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Servers file that is to be used there.")
    ] = None
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the servers file with the measured links, beside it."),
    ] = None
    timeout: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="Time for the nodes to answer.")
    ] = 60.0
    runs: opt.Runs = Path("runs")
    json_to: opt.Json = None


@command(
    FleetDoctorConfig,
    "ekya fleet doctor --address 10.0.0.1:6379",
    "ekya fleet doctor --address 10.0.0.1:6379 --servers my-servers.yaml --write measured.yaml",
    "ekya fleet doctor --address auto --json - | jq .problems",
)
def doctor(config: FleetDoctorConfig, output: Output) -> None:
    """Examine the nodes of a Ray cluster and all links between them, before a fleet runs there.

    Each direction of a link is loaded for two seconds at most. The exit code is 1 where there is a problem.
    """
    from ekya.config.fleet_sections import HttpConfig
    from ekya.fleet.run.cluster import joined_cluster
    from ekya.fleet.run.doctor import Asked, examine_fleet
    from ekya.fleet.servers_file import load_servers
    from ekya.streams.ingest.credentials import variables_in

    if config.write is not None:
        if config.servers is None or config.write.absolute().parent != config.servers.absolute().parent:
            raise UserError(
                f"--write {config.write}: name a file beside that of --servers, whose paths it has"
            )
        require_writable("--write", config.write)
    servers = None if config.servers is None else load_servers(config.servers)
    of_others = Asked(config.runs.absolute(), HttpConfig().port)
    asked = {
        NodeName(server.terms.site): replace(
            of_others,
            port=server.fleet.http.port,
            files=tuple(_paths_in(server.fleet.model_dump())),
            variables=variables_in(server.fleet.named_secrets),
        )
        for server in (servers.servers if servers else ())
    }
    with joined_cluster(config.address), bars_of(output.console) as bars:
        tasks = {what: bars.add_task(what, total=None) for what in ("nodes", "links")}

        def watch(what: str, done: int, of: int) -> None:
            bars.update(tasks[what], completed=done, total=of)

        facts = examine_fleet(asked, of_others, config.address, config.timeout, watch)
    problems = facts.problems({} if servers is None else _told(servers))
    output.report(_as_json(facts, problems))
    output.console.print(_table(facts))
    if servers and config.servers and config.write:
        _write(config.servers, servers, facts, config.write)
        output.say(f"The servers file with the measured links is {config.write}")
    output.say("\n".join(f"- {problem}" for problem in problems) or "No problem was found.")
    if problems:
        raise typer.Exit(1)


def _told(servers: "Servers") -> dict[tuple[NodeName, NodeName], float]:
    """Returns the rate of every link in the servers file, in megabytes a second."""
    rates, usual = servers.links.mb_s, servers.links.usual_mb_s
    ways = permutations(servers.sites, 2)
    return {(NodeName(way[0]), NodeName(way[1])): rates.get(way, usual) for way in ways}


def _paths_in(value: object) -> Iterator[Path]:
    """Yields the paths of a fleet, given as nested values."""
    match value:
        case Path():
            yield value
        case dict():
            yield from _paths_in(list(value.values()))
        case list() | tuple():
            for one in value:
                yield from _paths_in(one)


def _as_json(facts: "FleetFacts", problems: Sequence[str]) -> Mapping[str, object]:
    return {
        "fine": not problems,
        "problems": problems,
        "nodes": {
            name: asdict(its) | dict(zip(("ahead_us", "error_us"), facts.clocks[name], strict=True))
            for name, its in facts.hosts.items()
        },
        "links": [
            {"from": origin, "to": target, **asdict(link)} for (origin, target), link in facts.links.items()
        ],
    }


def _table(facts: "FleetFacts") -> Table:
    """Builds a table with a row per node."""
    titles = ("Node", "Python, ekya, ray, torch", "GPUs", "Memory", "Disk", "Clock", "Slowest link from it")
    table = Table(*titles, title="Nodes", title_justify="left")
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
    from ekya.config.files import read_mapping
    from ekya.fleet.policy.loans import Links
    from ekya.fleet.servers_file import links_section

    measured = {
        (SiteName(origin), SiteName(target)): _rounded(link.mb_s)
        for (origin, target), link in facts.links.items()
        if {origin, target} <= set(servers.sites)
    }
    links = Links({**servers.links.mb_s, **measured}, servers.links.usual_mb_s)
    raw = {**read_mapping(path), "links": links_section(links)}
    write_text_atomic(to, yaml.safe_dump(raw, sort_keys=False, allow_unicode=True))


def _rounded(mb_s: float) -> float:
    return float(f"{mb_s:.3g}")
