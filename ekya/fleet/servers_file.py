"""The servers file: several fleets, each on a separate server, and the links between the servers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BeforeValidator, Field, field_validator

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import parse_fleet
from ekya.config.fleet_sections import SamplesMayLeave, no_is_text
from ekya.config.shipped import shipped_root
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.fleet.described import DescribedPart, read_described
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.places import STORES, SiteName
from ekya.fleet.run.server import ServerTerms
from ekya.models.edge.architecture_table import Task
from ekya.results.storage.run_folder import check_stream_name, plain_name
from ekya.system.yaml_file import read_mapping

DEFAULT_SERVERS = "datasets/synthetic_city/servers.yaml"
"""The shipped servers file, used by default."""


class WaySpec(DescribedPart):
    """A link whose rate differs from the default.

    Attributes:
        origin, target: sites; ``from`` and ``to`` in the file. The rate holds in this direction only.
        mb_s: megabytes a second.
    """

    origin: str = Field(alias="from")
    target: str = Field(alias="to")
    mb_s: float = Field(gt=0)


class LinksSpec(DescribedPart):
    """Links between servers.

    Attributes:
        mb_s: default rate of a link, in megabytes a second.
        ways: links with another rate.
    """

    mb_s: float = Field(default=12.5, gt=0)
    ways: tuple[WaySpec, ...] = ()


class ServerSpec(DescribedPart):
    """One server.

    Attributes:
        site: name of the server and of its run's folder.
        fleet: its fleet file; None: the top-level ``fleet`` of the servers file.
        streams: ids from the fleet file; None: all of them.
        changes: top-level keys of the fleet file to override on this server, such as ``gpus``.
        samples_may_leave: what of its streams may be sent to other servers to train on: ``no``, labelled
            ``crops`` of objects, or also labelled ``frames``, scaled to the side of the edge model, which
            detectors learn from.
        takes_guests: jobs of other servers' streams may run on it.
    """

    site: str
    fleet: Path | None = None
    streams: tuple[str, ...] | None = None
    changes: Mapping[str, object] = Field(default_factory=dict)
    samples_may_leave: Annotated[SamplesMayLeave, BeforeValidator(no_is_text)] = "no"
    takes_guests: bool = True

    @field_validator("site")
    @classmethod
    def _names_a_folder(cls, site: str) -> str:
        try:
            check_stream_name(StreamId(site))
        except UserError as error:
            raise ValueError("use letters, digits, '-', '_' and '.' only, and no '.' or '-' first") from error
        return site


class ServersSpec(DescribedPart):
    """Schema of the servers file.

    Attributes:
        name: of the group of servers and of the folder of its runs.
        fleet: default fleet file of a server.
        links: between the servers.
        servers: at least one.
    """

    name: Annotated[str, Field(min_length=1)] = "servers"
    fleet: Path | None = None
    links: LinksSpec = LinksSpec()
    servers: tuple[ServerSpec, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A server with its parsed fleet file."""

    terms: ServerTerms
    fleet: FleetConfig


@dataclass(frozen=True, slots=True)
class Servers:
    """The parsed servers file.

    Attributes:
        name: of the run.
        links: between the servers.
        servers: sorted by site.
    """

    name: str
    links: Links
    servers: tuple[ServerConfig, ...]

    @property
    def sites(self) -> tuple[SiteName, ...]:
        """Names of all servers."""
        return tuple(server.terms.site for server in self.servers)


def load_servers(path: Path, changes: Mapping[str, object] | None = None) -> Servers:
    """Reads a servers file and its fleet files; paths are relative to the folder of the servers file.

    Args:
        path: the servers file.
        changes: top-level keys to override in every fleet file, for example from the command line.

    Raises:
        UserError: one sentence with file, key and remedy.
    """
    spec = read_described(path, ServersSpec)
    sites = [server.site for server in spec.servers]
    for problem in _problems(spec, sites):
        raise UserError(f"{path}: {problem}")
    servers = [_server(spec, server, path, changes or {}) for server in spec.servers]
    return Servers(
        plain_name(spec.name),
        Links(
            {(SiteName(way.origin), SiteName(way.target)): way.mb_s for way in spec.links.ways},
            spec.links.mb_s,
        ),
        tuple(sorted(servers, key=lambda server: server.terms.site)),
    )


def _terms(server: ServerSpec) -> ServerTerms:
    site = SiteName(server.site)
    return ServerTerms(site, server.samples_may_leave, server.takes_guests)


def _problems(spec: ServersSpec, sites: Sequence[str]) -> Sequence[str]:
    twice = sorted({site for site in sites if sites.count(site) > 1})
    found = [f"servers: two are called {site}; give each its own site" for site in twice]
    if STORES in sites:
        found.append(f"servers: {STORES} is where stored models are updated from; name the server otherwise")
    for number, way in enumerate(spec.links.ways):
        for site in (way.origin, way.target):
            if site not in sites:
                known = ", ".join(sites)
                found.append(f"links.ways.{number}: there is no server {site}; they are {known}")
    return found


def _server(spec: ServersSpec, server: ServerSpec, path: Path, changes: Mapping[str, object]) -> ServerConfig:
    key = f"{path}: servers.{server.site}"
    named = server.fleet or spec.fleet
    if named is None:
        raise UserError(f"{key}.fleet: is missing; name a fleet file there, or one for all at the top")
    file = _found(named, path, f"{key}.fleet")
    raw = {**read_mapping(file), "name": server.site, **server.changes, **changes}
    if server.streams is not None:
        raw["streams"] = _chosen(raw.get("streams"), server.streams, f"{key}.streams")
    fleet = parse_fleet(raw, f"{key} with {file}", (file.parent, path.parent, shipped_root()))
    if fleet.edge.task is Task.DETECT and server.samples_may_leave == "crops":
        raise UserError(
            f"{key}.samples_may_leave: its models detect, and learn from frames; write frames, or no"
        )
    return ServerConfig(_terms(server), fleet)


def _found(named: Path, path: Path, key: str) -> Path:
    for folder in (path.parent, shipped_root()):
        if (folder / named).is_file():
            return folder / named
    raise UserError(
        f"{key}: {named} does not exist; correct the path, which begins at {path.parent.resolve()}"
    )


def _chosen(streams: object, ids: Sequence[str], key: str) -> list[object]:
    """Returns the raw entries of the streams with these ids."""
    known = {
        str(stream["id"]): stream
        for stream in (streams if isinstance(streams, list) else [])
        if isinstance(stream, Mapping) and "id" in stream
    }
    missing = next((stream for stream in ids if stream not in known), None)
    if missing is not None:
        raise UserError(f"{key}: its fleet file has no stream {missing}; it has {', '.join(known) or 'none'}")
    return [known[stream] for stream in ids]


def dump_servers(servers: Servers) -> str:
    """Returns terms and links as YAML for people; each server's fleet file is in its own run folder."""
    content = {
        "name": servers.name,
        "links": {
            "mb_s": servers.links.usual_mb_s,
            "ways": [
                {"from": str(origin), "to": str(target), "mb_s": mb_s}
                for (origin, target), mb_s in servers.links.mb_s.items()
            ],
        },
        "servers": [
            {
                "site": str(terms.site),
                "fleet": f"{terms.site}/fleet.yaml",
                "samples_may_leave": terms.samples_may_leave,
                "takes_guests": terms.takes_guests,
            }
            for terms in (server.terms for server in servers.servers)
        ],
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
