"""What several servers came to: theirs together, each one's, and what was lent and moved between them."""

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ekya.fleet.policy.names import SiteName
from ekya.fleet.run.desk import Made
from ekya.runfolder import RunFolder


def summarise_servers(
    name: str,
    tier: str | None,
    runs: Mapping[SiteName, RunFolder],
    loans: Sequence[Made],
    died: Mapping[SiteName, float],
) -> dict[str, Any]:
    """The summary of a run of several servers.

    Args:
        name: of the run.
        tier: who found loans; None: nobody did.
        runs: finished, by site.
        loans: as they were made.
        died: when servers did, in seconds of the run.
    """
    summaries = {
        site: json.loads(run.summary.read_text(encoding="utf-8")) for site, run in sorted(runs.items())
    }
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
        },
        "moved_mb": _moved_mb(loans),
        "servers": {
            site: {
                **{key: summary[key] for key in _OF_A_SERVER},
                "died_s": died.get(site),
                "lends": sum(site in made.loan.hosts for made in loans),
                "borrows": sum(made.loan.offer.site == site for made in loans),
                "streams": {
                    stream: {key: its[key] for key in ("mean_accuracy", "gain")}
                    for stream, its in summary["streams"].items()
                },
            }
            for site, summary in summaries.items()
        },
    }


_OF_A_SERVER = ("scheduler", "gpus", "mean_accuracy", "balanced_accuracy", "retrainings")


def _moved_mb(loans: Sequence[Made]) -> dict[str, Any]:
    """What crossed links: crops, models, snapshots and what a split training exchanges; never frames."""
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
