"""Servers that lend each other shares: what each tier makes of it, beside servers by themselves.

    python experiments/fleet_servers.py
    python experiments/fleet_servers.py --fleet narrow --tier andreas,deep-edge --seeds 0,1
    python experiments/fleet_servers.py --scheduler thief --json -
    python experiments/fleet_servers.py --tier andreas --fail

Two fleets, whose traces are drawn from the seed and played with nothing trained. In ``four`` one server of
four has six cameras and the others two, on one GPU each. In ``narrow`` one of eight has four cameras and
the others two, on six tenths of a GPU each, and only heads are trained: what a server could lend takes
longer than a window for most of them. With ``--fail`` a server dies in the middle of the first training
that it does for another.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ekya.cli.options import numbers
from ekya.errors import UserError
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.tiers import TIERS
from ekya.fleet.run.lending import ARRIVED
from ekya.fleet.run.server import ServerTerms
from ekya.fleet.run.servers import Failure
from ekya.fleet.run.trace_servers import PlayedServers, TraceServer, play_servers
from ekya.scheduling.registry import make_scheduler
from ekya.sim.generate import DEFAULT_PARAMETERS, GeneratorParameters, generate_trace
from ekya.sim.simulate import Conditions

WINDOWS = 8
MB_S = 12.5
"""Of every link: 100 Mbit/s."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Servers that are alike but for their cameras.

    Attributes:
        streams: of each server.
        gpus: of each server.
        parameters: of the traces.
    """

    streams: tuple[int, ...]
    gpus: float
    parameters: GeneratorParameters = DEFAULT_PARAMETERS

    def servers(self, seed: int) -> list[TraceServer]:
        """Those of a seed."""
        conditions = Conditions(gpus=self.gpus, preparation_share_milli=300)
        return [
            TraceServer(
                ServerTerms(SiteName(f"server-{place}"), crops_may_leave=True),
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
    fleet: str, seed: int, scheduler: str, tier: str | None, failures: Sequence[Failure] = ()
) -> PlayedServers:
    """One way of playing a seed."""
    broker = None if tier is None else TIERS[tier]
    links = Links(usual_mb_s=MB_S)
    servers = FLEETS[fleet].servers(seed)
    return play_servers(servers, make_scheduler(scheduler), broker, links, failures, seed=seed)


def facts(alone: PlayedServers, lent: PlayedServers) -> dict[str, Any]:
    """What a tier did."""
    return {
        "alone": round(alone.mean_accuracy, 6),
        "lending": round(lent.mean_accuracy, 6),
        "overloaded_alone": round(_of_first(alone), 6),
        "overloaded_lending": round(_of_first(lent), 6),
        "loans": len(lent.loans),
        "split": sum(len(made.loan.parts) > 1 for made in lent.loans),
        "arrived": sum(made.outcome == ARRIVED for made in lent.loans),
        "moved_mb": round(sum(lent.moved_mb.values()), 1),
    }


def failed(fleet: str, seed: int, scheduler: str, tier: str, lent: PlayedServers) -> dict[str, Any]:
    """What becomes of loans when the host of the first dies while it trains."""
    first = lent.loans[0].loan
    dies = Failure(first.server, (first.begins_us + first.ends_us) // 2)
    died = play(fleet, seed, scheduler, tier, [dies])
    others = [
        value
        for site, streams in died.accuracy.items()
        if site != first.server
        for windows in streams.values()
        for value in windows
    ]
    outcomes = [made.outcome for made in died.loans]
    return {
        "died": first.server,
        "loans_after": {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
        "others_after": round(fmean(others), 6),
    }


def _of_first(played: PlayedServers) -> float:
    streams = played.accuracy[SiteName("server-0")]
    return fmean(value for windows in streams.values() for value in windows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fleet", choices=FLEETS, default="four", help="Which servers.")
    parser.add_argument("--tier", default=",".join(TIERS), help=f"Who decides: of {', '.join(TIERS)}.")
    parser.add_argument("--seeds", default="0,1,2", help="Of the traces.")
    parser.add_argument("--scheduler", default="ekya", help="Who decides on each server.")
    parser.add_argument("--fail", action="store_true", help="Also let a server die.")
    parser.add_argument("--json", metavar="FILE", help="Also write the figures there; - is standard output.")
    options = parser.parse_args(arguments)
    tiers = options.tier.split(",")
    if unknown := sorted({*tiers} - {*TIERS}):
        parser.error(f"there is no tier {unknown[0]}; there are {', '.join(TIERS)}")
    try:
        seeds = numbers(options.seeds)
        make_scheduler(options.scheduler)
    except UserError as error:
        parser.error(str(error))
    if options.json not in (None, "-") and not Path(options.json).parent.is_dir():
        parser.error(f"--json {options.json}: there is no such folder; make it, or name another file")
    rows = []
    for seed in seeds:
        alone = play(options.fleet, seed, options.scheduler, None)
        for tier in tiers:
            lent = play(options.fleet, seed, options.scheduler, tier)
            row = {"seed": seed, "tier": tier, **facts(alone, lent)}
            sys.stderr.write(
                f"seed {seed}, {tier}: {row['alone']:.2%} alone, {row['lending']:.2%} lending; the "
                f"overloaded server {row['overloaded_alone']:.2%} and {row['overloaded_lending']:.2%}; "
                f"{row['loans']} loans, {row['split']} of them split, {row['moved_mb']:.0f} MB\n"
            )
            if options.fail and lent.loans:
                row |= failed(options.fleet, seed, options.scheduler, tier, lent)
                sys.stderr.write(
                    f"  {row['died']} dies: loans then {row['loans_after']}, streams of the others at "
                    f"{row['others_after']:.2%}\n"
                )
            rows.append(row)
    gained = {
        tier: fmean(row["lending"] - row["alone"] for row in rows if row["tier"] == tier) for tier in tiers
    }
    for tier, points in gained.items():
        sys.stderr.write(f"{tier}: on average {100 * points:+.2f} points for all streams of the fleet\n")
    told = {
        "fleet": options.fleet,
        "rows": rows,
        "gained": {tier: round(points, 6) for tier, points in gained.items()},
    }
    text = json.dumps(told, indent=2) + "\n"
    if options.json == "-":
        sys.stdout.write(text)
    elif options.json:
        Path(options.json).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
