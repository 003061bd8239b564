"""Folder of a run of several servers: a run folder for each, the loans between them, notes and summary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ekya.core.errors import UserError
from ekya.core.units import us_to_seconds
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.lending import ARRIVED
from ekya.fleet.run.loan_file import LoanRecord, read_loans
from ekya.results.storage.run_folder import RunFolder, make_folder
from ekya.system.files import write_text_atomic


@dataclass(frozen=True, slots=True)
class ServersFolder:
    """Paths in the folder. Holds no open files."""

    path: Path

    @staticmethod
    def create(root: Path, name: str) -> "ServersFolder":
        """Makes the folder.

        Raises:
            UserError: as in ``make_folder``.
        """
        return ServersFolder(make_folder(root, name))

    @property
    def servers(self) -> Path:
        """The servers file as resolved."""
        return self.path / "servers.yaml"

    @property
    def loans(self) -> Path:
        """Loans when they are made and when they are over, one JSON object a line."""
        return self.path / "loans.jsonl"

    @property
    def updates(self) -> Path:
        """Updates of stores when they are wanted, when they begin and when they end; as the loans."""
        return self.path / "updates.jsonl"

    @property
    def live(self) -> Path:
        """What a driver that is started again must know of a live run."""
        return self.path / "live.json"

    @property
    def summary(self) -> Path:
        """Results of the run."""
        return self.path / "summary.json"

    def read_loans(self, sites: Sequence[SiteName]) -> tuple[LoanRecord, ...]:
        """Reads all loans: of virtual time and of stores in one file, those of services in their folders.

        Raises:
            UserError: a line is damaged.
        """
        files = (self.loans, *(self.path / site / self.loans.name for site in sites))
        return tuple(loan for file in files for loan in read_loans(file))

    def new_run(self, site: SiteName) -> RunFolder:
        """Makes the run folder of one server."""
        return RunFolder.create_numbered(self.path, site)


@dataclass(frozen=True, slots=True)
class LiveRun:
    """What a driver that is started again must know of a run.

    Attributes:
        tier: name of the policy that finds loans; None: every server works alone.
        seed: of all random draws.
        shares: name of a share backend, or ``auto``.
        mb_s: usual rate of the links, in megabytes a second.
        ports: of the servers.
        began_unix_s: when it was launched.
        stores: file of its stores; None: there is none.
    """

    tier: str | None
    seed: int
    shares: str
    mb_s: float
    ports: dict[SiteName, int]
    began_unix_s: float
    stores: Path | None = None

    def save(self, path: Path) -> None:
        """Writes it to a file."""
        write_text_atomic(path, _LIVE.dump_json(self, indent=2).decode() + "\n")

    @staticmethod
    def load(path: Path) -> "LiveRun":
        """Reads it from a file.

        Raises:
            UserError: there is none, or it is damaged.
        """
        try:
            return _LIVE.validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise UserError(
                f"{path}: cannot be read ({type(error).__name__}); name the folder of a run of ekya fleet run"
            ) from error


@dataclass(slots=True, eq=False)
class RanServers:
    """Results of a run of several servers in any world.

    Attributes:
        summaries: of the servers whose runs could be measured, by site.
        died_s: time of death of each server that died, by site.
    """

    summaries: dict[SiteName, dict[str, Any]] = field(default_factory=dict)
    died_s: dict[SiteName, float] = field(default_factory=dict)


def summarise_servers(
    name: str,
    tier: str | None,
    sites: Sequence[SiteName],
    ran: RanServers,
    loans: Sequence[LoanRecord],
) -> dict[str, Any]:
    """Returns the summary of a run of several servers.

    Args:
        name: of the run.
        tier: policy that found loans; None: there were none.
        sites: of all servers. A server that died and whose run could not be measured has no accuracy.
        ran: results of the run.
        loans: that were made.
    """
    summaries = {site: ran.summaries[site] for site in sites if site in ran.summaries}
    streams = [stream for summary in summaries.values() for stream in summary["streams"].values()]
    outcomes = sorted({made.outcome for made in loans})
    return {
        "name": name,
        "world": next((summary["world"] for summary in summaries.values()), None),
        "tier": tier,
        "mean_accuracy": _mean([stream["mean_accuracy"] for stream in streams]),
        "gain": _mean([stream["gain"] for stream in streams]),
        "frames": {
            key: sum(summary["frames"][key] for summary in summaries.values())
            for key in ("arrived", "analysed", "skipped", "lost")
        },
        "loans": {
            "made": len(loans),
            "by_outcome": {outcome: sum(made.outcome == outcome for made in loans) for outcome in outcomes},
            "arrived_after_s": _arrived_after_s([made for made in loans if made.outcome == ARRIVED]),
            "gain": _gain([made for made in loans if made.came is not None]),
        },
        "moved_mb": _moved_mb(loans),
        "servers": {site: _server(site, summaries.get(site), ran, loans) for site in sites},
    }


def _arrived_after_s(loans: Sequence[LoanRecord]) -> dict[str, float | None]:
    """Returns the mean time from agreement to the arrival of weights, foreseen and measured."""
    return {
        "foreseen": _mean([us_to_seconds(made.arrives_us - made.agreed_us) for made in loans]),
        "was": _mean([us_to_seconds(made.over_us - made.agreed_us) for made in loans]),
    }


def _gain(loans: Sequence[LoanRecord]) -> dict[str, float]:
    """Returns what borrowers estimated and what came, in accuracy times seconds, where it is known."""
    return {
        "promised": round(sum(made.promises for made in loans), 6),
        "came": round(sum(made.came or 0.0 for made in loans), 6),
    }


def _server(
    site: SiteName, summary: Mapping[str, Any] | None, ran: RanServers, loans: Sequence[LoanRecord]
) -> dict[str, Any]:
    streams = {} if summary is None else summary["streams"]
    return {
        **{key: None if summary is None else summary[key] for key in _OF_A_SERVER},
        "died_s": ran.died_s.get(site),
        "lends": sum(site == made.host for made in loans),
        "borrows": sum(made.site == site for made in loans),
        "streams": {
            stream: {key: its[key] for key in ("mean_accuracy", "gain")} for stream, its in streams.items()
        },
    }


_OF_A_SERVER = ("scheduler", "gpus", "mean_accuracy", "balanced_accuracy", "retrainings")


def _moved_mb(loans: Sequence[LoanRecord]) -> dict[str, Any]:
    """Returns the traffic over links: crops, models and snapshots."""
    ways: dict[tuple[SiteName, SiteName], float] = {}
    for made in loans:
        for way, mb in made.moved_mb.items():
            ways[way] = ways.get(way, 0.0) + mb
    return {
        "total": round(sum(ways.values()), 6),
        "ways": [
            {"from": origin, "to": target, "mb": round(mb, 6)}
            for (origin, target), mb in sorted(ways.items())
        ],
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 6) if known else None


_LIVE = TypeAdapter(LiveRun)
