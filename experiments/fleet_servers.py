"""A fleet of servers, one of them with too many cameras: what lending each other shares is worth.

    python experiments/fleet_servers.py
    python experiments/fleet_servers.py --seeds 0,1 --scheduler thief --json -
    python experiments/fleet_servers.py --fail

Four servers with one GPU each watch twelve streams: six on the first, two on each of the others, drawn from
the seed. They are played over the same traces, nothing trained, with and without the tier above, which places
retrainings where they cost least (ANDREAS's rules over shares). With ``--fail`` a server dies in the middle
of the first training that it does for another.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ekya.fleet.policy.andreas.greedy import Andreas
from ekya.fleet.policy.brokering import Broker, by_policy
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.names import SiteName
from ekya.fleet.run.lending import ARRIVED
from ekya.fleet.run.server import ServerTerms
from ekya.fleet.run.servers import Failure
from ekya.fleet.run.trace_servers import PlayedServers, TraceServer, play_servers
from ekya.scheduling.registry import make_scheduler
from ekya.sim.generate import generate_trace
from ekya.sim.simulate import Conditions

STREAMS = (6, 2, 2, 2)
WINDOWS = 8
MB_S = 12.5
"""Of every link: 100 Mbit/s."""


def servers(seed: int) -> list[TraceServer]:
    """The four of a seed."""
    conditions = Conditions(gpus=1.0, preparation_share_milli=300)
    return [
        TraceServer(
            ServerTerms(SiteName(f"server-{place}")),
            generate_trace(100 * seed + place, streams, WINDOWS),
            conditions,
        )
        for place, streams in enumerate(STREAMS)
    ]


def play(seed: int, scheduler: str, broker: Broker | None, failures: Sequence[Failure] = ()) -> PlayedServers:
    """One way of playing a seed."""
    return play_servers(
        servers(seed), make_scheduler(scheduler), broker, Links(usual_mb_s=MB_S), failures, seed=seed
    )


def facts(seed: int, scheduler: str, fail: bool) -> dict[str, Any]:
    """With and without the tier, and what it did."""
    alone, lent = play(seed, scheduler, None), play(seed, scheduler, by_policy(Andreas()))
    told: dict[str, Any] = {
        "seed": seed,
        "alone": round(alone.mean_accuracy, 6),
        "lending": round(lent.mean_accuracy, 6),
        "overloaded_alone": round(_of(alone, 0), 6),
        "overloaded_lending": round(_of(lent, 0), 6),
        "loans": len(lent.loans),
        "arrived": sum(made.outcome == ARRIVED for made in lent.loans),
        "moved_mb": round(sum(lent.moved_mb.values()), 1),
    }
    if fail and lent.loans:
        first = lent.loans[0].loan
        dies = Failure(first.server, (first.begins_us + first.ends_us) // 2)
        died = play(seed, scheduler, by_policy(Andreas()), [dies])
        told["died"] = first.server
        told["loans_after"] = {
            outcome: sum(made.outcome == outcome for made in died.loans)
            for outcome in sorted({made.outcome for made in died.loans})
        }
        told["others_after"] = round(
            fmean(
                value
                for site, streams in died.accuracy.items()
                if site != first.server
                for windows in streams.values()
                for value in windows
            ),
            6,
        )
    return told


def _of(played: PlayedServers, place: int) -> float:
    streams = played.accuracy[SiteName(f"server-{place}")]
    return fmean(value for windows in streams.values() for value in windows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0,1,2", help="Of the traces.")
    parser.add_argument("--scheduler", default="ekya", help="Who decides on each server.")
    parser.add_argument("--fail", action="store_true", help="Also let a server die.")
    parser.add_argument("--json", metavar="FILE", help="Also write the figures there; - is standard output.")
    options = parser.parse_args(arguments)
    rows = []
    for seed in (int(word) for word in options.seeds.split(",")):
        row = facts(seed, options.scheduler, options.fail)
        sys.stderr.write(
            f"seed {seed}: {row['alone']:.2%} alone, {row['lending']:.2%} lending; the overloaded server "
            f"{row['overloaded_alone']:.2%} and {row['overloaded_lending']:.2%}; {row['loans']} loans, "
            f"{row['moved_mb']:.0f} MB\n"
        )
        if "died" in row:
            sys.stderr.write(f"  {row['died']} dies: loans then {row['loans_after']}\n")
        rows.append(row)
    gained = fmean(row["lending"] - row["alone"] for row in rows)
    sys.stderr.write(f"on average {100 * gained:+.2f} points for all streams of the fleet\n")
    told = json.dumps({"seeds": rows, "gained": round(gained, 6)}, indent=2) + "\n"
    if options.json == "-":
        sys.stdout.write(told)
    elif options.json:
        Path(options.json).write_text(told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
