"""Live servers, with and without a tier that lends capacity.

    python experiments/fleet_live.py
    python experiments/fleet_live.py --servers datasets/synthetic_city/servers_overloaded.yaml
    python experiments/fleet_live.py --seeds 0,1,2 --windows 8 --json -

The two shipped servers, on the wall clock and on one machine, or the three of servers_overloaded.yaml, where
retrainings are so long that one server is really overloaded. For each seed there is one run with every tier,
which takes the time of its windows and half a minute more. Run nothing else on the machine meanwhile.

Lending was changed while looking at seeds 0 to 4. The figures in docs/fleet/lending.md are of seeds 10 to 14,
which also ran once before the last change of what hosts lend. Seeds 20 to 24 are for the next figure.
"""

import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from estimate import Estimate
from recipe import Json, run

from ekya import cli
from ekya.cli.command import open_output
from ekya.cli.fleet_run import NO_TIER, make_tier
from ekya.cli.options import parse_integers
from ekya.core.units import us_to_seconds
from ekya.fleet.run.loan_file import LoanRecord
from ekya.fleet.run.servers_folder import ServersFolder
from ekya.system.files import user_errors


def played(servers: Sequence[str], folder: Path, tier: str, seed: int) -> dict[str, Any]:
    """Executes one run and returns its reported values.

    Args:
        servers: file and options of ``ekya fleet run``.
        folder: of runs.
        tier, seed: of this run.
    """
    told = folder / "told.json"
    words = ["fleet", "run", *servers, "--runs", str(folder), "--tier", tier, "--seed", str(seed)]
    code = cli.main([*words, "--name", f"{tier}-{seed}", "--json", str(told)])
    if code != 0:
        raise SystemExit(code)
    summary = json.loads(told.read_text(encoding="utf-8"))
    loans = ServersFolder(folder / f"{tier}-{seed}").read_loans(tuple(summary["servers"]))
    return {
        "tier": tier,
        "seed": seed,
        "mean_accuracy": summary["mean_accuracy"],
        "servers": {site: its["mean_accuracy"] for site, its in summary["servers"].items()},
        "retrainings": sum(its["retrainings"]["finished"] for its in summary["servers"].values()),
        "loans": [_loan(made) for made in loans],
        "skipped": summary["frames"]["skipped"] / summary["frames"]["arrived"],
        "lost": summary["frames"]["lost"],
    }


def _loan(made: LoanRecord) -> dict[str, Any]:
    foreseen_us, took_us = made.arrives_us - made.agreed_us, made.over_us - made.agreed_us
    return {
        "outcome": made.outcome,
        "foreseen_s": round(us_to_seconds(foreseen_us), 1),
        "took_s": round(us_to_seconds(took_us), 1),
    }


def in_words(told: dict[str, Any]) -> str:
    """Formats a run as one line of text."""
    loans = ", ".join(
        f"{one['took_s']} s instead of {one['foreseen_s']} ({one['outcome']})" for one in told["loans"]
    )
    servers = ", ".join(f"{site} {accuracy:.2%}" for site, accuracy in told["servers"].items())
    return (
        f"seed {told['seed']}, {told['tier']}: {told['mean_accuracy']:.2%}, {servers}; "
        f"{told['retrainings']} retrainings, {told['skipped']:.1%} of frames skipped, {told['lost']} lost"
        f"{'; loans took ' + loans if loans else ''}"
    )


def gains(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the gain of each tier over none, in points: the mean with its 95% interval, and by seed."""
    alone = {row["seed"]: row for row in rows if row["tier"] == NO_TIER}
    gained: dict[str, dict[str, Any]] = {}
    for tier in sorted({row["tier"] for row in rows} - {NO_TIER}):
        pairs = [(row, alone[row["seed"]]) for row in rows if row["tier"] == tier and row["seed"] in alone]
        if pairs:
            gained[tier] = {
                "all": _points([(row["mean_accuracy"], other["mean_accuracy"]) for row, other in pairs]),
                **{
                    site: _points([(row["servers"][site], other["servers"][site]) for row, other in pairs])
                    for site in pairs[0][0]["servers"]
                },
            }
    return gained


def _points(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    points = [round(100 * (one - other), 2) for one, other in pairs]
    gain = Estimate.over_seeds(points)
    interval = None if gain.low is None or gain.high is None else [round(gain.low, 2), round(gain.high, 2)]
    return {"mean": round(gain.mean, 2), "interval": interval, "by_seed": points}


def main(
    tier: Annotated[str, typer.Option(help="Tiers that find loans; none: no loans.")] = "none,net",
    seeds: Annotated[str, typer.Option(help="Of everything that is drawn but the streets.")] = "0",
    servers: Annotated[str | None, typer.Option(metavar="FILE", help="The shipped one if left out.")] = None,
    windows: Annotated[int | None, typer.Option(min=1, help="As the fleet file says if left out.")] = None,
    shares: Annotated[str, typer.Option(help="As of ekya fleet run.")] = "auto",
    clock: Annotated[str, typer.Option(help="As of ekya fleet run; virtual: emulated.")] = "wall",
    runs: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the run folders there.")] = None,
    json_to: Json = None,
) -> None:
    """Run servers live, with the tier above them and without."""
    tiers, chosen = tier.split(","), parse_integers(seeds)
    for name in tiers:
        make_tier(name)
    words = [*([servers] if servers else []), "--shares", shares, "--clock", clock]
    words += ["--windows", str(windows)] if windows else []
    if runs:
        with user_errors(runs):
            runs.mkdir(parents=True, exist_ok=True)
    rows = []
    with open_output(json_to) as out:
        for seed in chosen:
            for name in tiers:
                with ExitStack() as stack:
                    folder = runs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
                    told = played(words, folder, name, seed)
                rows.append(told)
                out.console.print(in_words(told), highlight=False, soft_wrap=True)
        gained = gains(rows)
        for name, its in gained.items():
            out.console.print(f"{name} gains, in points: {its}")
        out.write_json({"runs": rows, "gains": gained})


if __name__ == "__main__":
    run(
        main,
        "python experiments/fleet_live.py",
        "python experiments/fleet_live.py --servers datasets/synthetic_city/servers_overloaded.yaml",
        "python experiments/fleet_live.py --seeds 0,1,2 --windows 8 --json -",
    )
