"""The servers file: several fleets, each on a separate server, and the links between the servers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ekya.config.errors import describe
from ekya.config.files import read_mapping
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import parse_fleet
from ekya.config.shipped import shipped_root
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.names import SiteName
from ekya.fleet.run.server import ServerTerms
from ekya.models.edge.cuts import Task
from ekya.results.storage.run_folder import check_stream_name, plain_name

DEFAULT_SERVERS = "datasets/synthetic_city/servers.yaml"
"""The shipped servers file, used by default."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class WaySpec(_Part):
    """A link whose rate differs from the default.

    Attributes:
        origin, target: sites; ``from`` and ``to`` in the file. The rate holds in this direction only.
        mb_s: megabytes a second.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    origin: str = Field(alias="from")
    target: str = Field(alias="to")
    mb_s: float = Field(gt=0)


class LinksSpec(_Part):
    """Links between servers.

    Attributes:
        mb_s: default rate of a link, in megabytes a second.
        ways: links with another rate.
    """

    mb_s: float = Field(default=12.5, gt=0)
    ways: tuple[WaySpec, ...] = ()


class ServerSpec(_Part):
    """One server.

    Attributes:
        site: name of the server and of its run's folder.
        fleet: its fleet file; None: the top-level ``fleet`` of the servers file.
        streams: ids from the fleet file; None: all of them.
        changes: top-level keys of the fleet file to override on this server, such as ``gpus``.
        crops_may_leave: labelled crops of its streams may be sent to other servers. Frames never are.
        takes_guests: retrainings of other servers' streams may run on it.
    """

    site: str
    fleet: Path | None = None
    streams: tuple[str, ...] | None = None
    changes: Mapping[str, object] = Field(default_factory=dict)
    crops_may_leave: bool = False
    takes_guests: bool = True

    @field_validator("site")
    @classmethod
    def _names_a_folder(cls, site: str) -> str:
        try:
            check_stream_name(StreamId(site))
        except UserError as error:
            raise ValueError("use letters, digits, '-', '_' and '.' only, and no '.' or '-' first") from error
        return site


class ServersSpec(_Part):
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
        """Names of the servers."""
        return tuple(server.terms.site for server in self.servers)


def load_servers(path: Path, changes: Mapping[str, object] | None = None) -> Servers:
    """Reads a servers file and its fleet files; paths are relative to the folder of the servers file.

    Args:
        path: the servers file.
        changes: top-level keys to override in every fleet file, for example from the command line.

    Raises:
        UserError: one sentence with file, key and remedy.
    """
    raw = read_mapping(path)
    try:
        spec = ServersSpec.model_validate(raw)
    except ValidationError as error:
        raise UserError(f"{path}: {describe(error, raw, ServersSpec)}") from None
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


def _problems(spec: ServersSpec, sites: Sequence[str]) -> Sequence[str]:
    twice = sorted({site for site in sites if sites.count(site) > 1})
    found = [f"servers: two are called {site}; give each its own site" for site in twice]
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
    if fleet.edge.task is Task.DETECT:
        raise UserError(
            f"{key} with {file}: edge.task: several servers train classifiers only; write `edge: {{task: "
            "classify}}`, or give this fleet file to ekya run"
        )
    terms = ServerTerms(SiteName(server.site), server.crops_may_leave, server.takes_guests)
    # Loans are agreed on while a plan is made, and joint retrainings are planned twice.
    alone = fleet.model_copy(update={"drift": fleet.drift.model_copy(update={"joint": False})})
    return ServerConfig(terms, alone)


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
                "site": str(server.terms.site),
                "fleet": f"{server.terms.site}/fleet.yaml",
                "crops_may_leave": server.terms.crops_may_leave,
                "takes_guests": server.terms.takes_guests,
            }
            for server in servers.servers
        ],
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
