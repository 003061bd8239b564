"""Servers that lend each other capacity over traces: each tier beside servers without any.

    python experiments/fleet_servers.py
    python experiments/fleet_servers.py --fleet narrow --tier net,andreas --seeds 0,1
    python experiments/fleet_servers.py --scheduler thief --json -
    python experiments/fleet_servers.py --tier andreas --fail

Two fleets, whose traces are drawn from the seed; nothing is trained. In ``four`` one server of four has six
cameras and the others two, on one GPU each. In ``narrow`` one of eight has four cameras and the others two,
on six tenths of a GPU each, and only heads are trained: on the spare capacity of one server most retrainings
take longer than a window. With ``--fail`` a server dies in the middle of its first remote retraining.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any

import typer
from recipe import Json, run
from trace_servers import PlayedServers, TraceServer, play_servers

from ekya.cli.command import open_output
from ekya.cli.fleet_run import NO_TIER, make_tier
from ekya.cli.options import parse_integers
from ekya.core.errors import UserError
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.registry import TIERS
from ekya.fleet.run.lending import ARRIVED
from ekya.fleet.run.server import ServerTerms
from ekya.fleet.run.servers import ServerDeath
from ekya.planning.schedulers.registry import make_scheduler
from ekya.simulation.trace.generate import generate_trace
from ekya.simulation.trace.generator_parameters import DEFAULT_PARAMETERS, GeneratorParameters
from ekya.simulation.trace.simulate import Conditions

WINDOWS = 8
MB_S = 12.5
"""Rate of every link in MB/s: 100 Mbit/s."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Servers that differ only in their cameras.

    Attributes:
        streams: of each server.
        gpus: of each server.
        parameters: of the traces.
    """

    streams: tuple[int, ...]
    gpus: float
    parameters: GeneratorParameters = DEFAULT_PARAMETERS

    def servers(self, seed: int) -> list[TraceServer]:
        """Returns the servers of a seed."""
        conditions = Conditions(gpus=self.gpus, preparation_share_milli=300)
        return [
            TraceServer(
                ServerTerms(SiteName(f"server-{place}"), samples_may_leave="crops"),
                generate_trace(100 * seed + place, streams, WINDOWS, self.parameters),
                conditions,
            )
            for place, streams in enumerate(self.streams)
        ]


FLEETS: Mapping[str, Fleet] = {
    "four": Fleet((6, 2, 2, 2), 1.0),
    "narrow": Fleet(
        (4, 2, 2, 2, 2, 2, 2, 2), 0.6, GeneratorParameters(families=DEFAULT_PARAMETERS.families[:1])
    ),
}


def play(
    fleet: str, seed: int, scheduler: str, tier: str | None, failures: Sequence[ServerDeath] = ()
) -> PlayedServers:
    """Plays a seed with one tier or none."""
    decides = None if tier is None else TIERS[tier]
    links = Links(usual_mb_s=MB_S)
    servers = FLEETS[fleet].servers(seed)
    return play_servers(servers, make_scheduler(scheduler), decides, links, failures, seed=seed)


def facts(alone: PlayedServers, lent: PlayedServers) -> dict[str, Any]:
    """Returns the effect of a tier."""
    return {
        "alone": round(alone.mean_accuracy, 6),
        "lending": round(lent.mean_accuracy, 6),
        "overloaded_alone": round(_of_first(alone), 6),
        "overloaded_lending": round(_of_first(lent), 6),
        "loans": len(lent.loans),
        "arrived": sum(made.outcome == ARRIVED for made in lent.loans),
        "moved_mb": round(sum(lent.moved_mb.values()), 1),
    }


def failed(fleet: str, seed: int, scheduler: str, tier: str, lent: PlayedServers) -> dict[str, Any]:
    """Returns the outcomes of loans when the host of the first one dies while it trains."""
    first = lent.loans[0].loan
    dies = ServerDeath(first.host, (first.begins_us + first.ends_us) // 2)
    died = play(fleet, seed, scheduler, tier, [dies])
    others = [
        value
        for site, streams in died.accuracy.items()
        if site != first.host
        for windows in streams.values()
        for value in windows
    ]
    outcomes = [made.outcome for made in died.loans]
    return {
        "died": first.host,
        "loans_after": {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
        "others_after": round(fmean(others), 6),
    }


def _of_first(played: PlayedServers) -> float:
    streams = played.accuracy[SiteName("server-0")]
    return fmean(value for windows in streams.values() for value in windows)


def in_words(row: Mapping[str, Any]) -> str:
    """Formats a row as one or two lines of text."""
    told = (
        f"seed {row['seed']}, {row['tier']}: {row['alone']:.2%} alone, {row['lending']:.2%} lending; the "
        f"overloaded server {row['overloaded_alone']:.2%} and {row['overloaded_lending']:.2%}; "
        f"{row['loans']} loans, {row['moved_mb']:.0f} MB"
    )
    if "died" not in row:
        return told
    after = f"loans then {row['loans_after']}, streams of the others at {row['others_after']:.2%}"
    return f"{told}\n  {row['died']} dies: {after}"


def main(
    fleet: Annotated[str, typer.Option(help=f"Which servers: of {', '.join(FLEETS)}.")] = "four",
    tier: Annotated[str, typer.Option(help="Who finds loans.")] = ",".join(TIERS),
    seeds: Annotated[str, typer.Option(help="Of the traces.")] = "0,1,2",
    scheduler: Annotated[str, typer.Option(help="Who decides on each server.")] = "ekya",
    fail: Annotated[bool, typer.Option("--fail", help="Also let a server die.")] = False,
    json_to: Json = None,
) -> None:
    """Play servers over traces, with each tier above them and without any."""
    if fleet not in FLEETS:
        raise UserError(f"--fleet {fleet}: there is no such fleet; there are {', '.join(FLEETS)}")
    tiers, chosen = tier.split(","), parse_integers(seeds)
    for name in tiers:
        if name == NO_TIER:
            raise UserError(f"--tier {name}: servers by themselves are played in any case; leave it out")
        make_tier(name)
    make_scheduler(scheduler)
    rows = []
    with open_output(json_to) as out:
        for seed in chosen:
            alone = play(fleet, seed, scheduler, None)
            for name in tiers:
                lent = play(fleet, seed, scheduler, name)
                row = {"seed": seed, "tier": name, **facts(alone, lent)}
                if fail and lent.loans:
                    row |= failed(fleet, seed, scheduler, name, lent)
                rows.append(row)
                out.console.print(in_words(row), highlight=False, soft_wrap=True)
        gained = {
            name: fmean(row["lending"] - row["alone"] for row in rows if row["tier"] == name)
            for name in tiers
        }
        for name, points in gained.items():
            out.console.print(f"{name}: on average {100 * points:+.2f} points for all streams of the fleet")
        rounded = {name: round(points, 6) for name, points in gained.items()}
        out.write_json({"fleet": fleet, "rows": rows, "gained": rounded})


if __name__ == "__main__":
    run(
        main,
        "python experiments/fleet_servers.py",
        "python experiments/fleet_servers.py --fleet narrow --tier net,andreas --seeds 0,1",
        "python experiments/fleet_servers.py --scheduler thief --json -",
        "python experiments/fleet_servers.py --tier andreas --fail",
    )
