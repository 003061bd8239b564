"""Fleet of servers that really train and infer, on virtual time, with and without a tier that lends capacity.

    python experiments/fleet_emulated.py
    python experiments/fleet_emulated.py --tier none,net --seeds 0,1 --mb-s 125 --json -
    python experiments/fleet_emulated.py --fail

Twelve cameras of the synthetic city, the shipped four three times over with other seeds, on four servers with
one GPU each: six on the first, two on each of the others. Every run renders, labels, trains and infers, and
takes a few minutes of processor time. With ``--fail`` the last server dies half-way.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from recipe import Json, run

from ekya.cli.fleet_run import tier_of
from ekya.cli.options import numbers
from ekya.cli.output import output
from ekya.config.shipped import shipped_path
from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core.units import US_PER_S
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.tiers import TIERS
from ekya.fleet.run.emulated_servers import emulate_servers
from ekya.fleet.run.loan_file import read_loans
from ekya.fleet.run.servers import ServerDeath
from ekya.fleet.run.servers_folder import ServersFolder
from ekya.fleet.run.servers_summary import summarise_servers
from ekya.fleet.servers_file import Servers, load_servers

STREAMS = (6, 2, 2, 2)
GPUS = 1.0


def servers(folder: Path, mb_s: float, blocks: Sequence[int]) -> Servers:
    """Returns the four servers, from files written to a folder."""
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text(encoding="utf-8"))
    shipped, cameras = raw["streams"], []
    for place in range(sum(STREAMS)):
        camera = shipped[place % len(shipped)]
        source = {**camera["source"], "seed": camera["source"]["seed"] + 1000 * (place // len(shipped))}
        cameras.append({**camera, "id": f"cam-{place + 1:02}", "source": source})
    raw |= {"streams": cameras, "gpus": GPUS}
    raw["retraining"] |= {"trainable_blocks": list(blocks)}
    (folder / "fleet.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    first, listed = 0, []
    for place, count in enumerate(STREAMS):
        ids = [camera["id"] for camera in cameras[first : first + count]]
        listed.append({"site": f"server-{place}", "streams": ids, "crops_may_leave": True})
        first += count
    path = folder / "servers.yaml"
    path.write_text(yaml.safe_dump({"fleet": "fleet.yaml", "links": {"mb_s": mb_s}, "servers": listed}))
    return load_servers(path)


def quietly(_batch: Batch, _turn: StepResult) -> None:
    """Ignores progress reports."""


def played(
    folder: Path, which: Servers, tier: str | None, seed: int, failures: Sequence[ServerDeath] = ()
) -> dict[str, Any]:
    """Executes one run and returns its summary."""
    run = ServersFolder.create(folder, "run")
    broker = None if tier is None else TIERS[tier]
    ran = emulate_servers(run, which, broker, failures, seed, lambda server: quietly)
    return summarise_servers("run", tier, which.sites, ran, read_loans(run.loans))


def row(tier: str, seed: int, summary: dict[str, Any]) -> dict[str, Any]:
    """Returns the reported values of a run."""
    overloaded = summary["servers"]["server-0"]
    return {
        "tier": tier,
        "seed": seed,
        "mean_accuracy": summary["mean_accuracy"],
        "overloaded": overloaded["mean_accuracy"],
        "retrainings": sum(its["retrainings"]["finished"] for its in summary["servers"].values()),
        "loans": summary["loans"],
        "moved_mb": round(summary["moved_mb"]["total"], 1),
        "lost": summary["frames"]["lost"],
    }


def in_words(told: dict[str, Any]) -> str:
    """Formats a run as one line of text."""
    return (
        f"seed {told['seed']}, {told['tier']}: {told['mean_accuracy']:.2%}, the overloaded server "
        f"{told['overloaded']:.2%}; {told['retrainings']} retrainings, {told['loans']['made']} loans "
        f"{told['loans']['by_outcome']}, {told['moved_mb']:.0f} MB; {told['lost']} frames lost"
    )


def main(
    tier: Annotated[str, typer.Option(help="Tiers that find loans; none: no loans.")] = "none,net",
    seeds: Annotated[str, typer.Option(help="Of everything that is drawn but the streets.")] = "0",
    mb_s: Annotated[float, typer.Option(help="Of every link; 12.5 is 100 Mbit/s.")] = 12.5,
    blocks: Annotated[str, typer.Option(help="Blocks that γ may train.")] = "0,2",
    fail: Annotated[bool, typer.Option("--fail", help="The last server dies half-way.")] = False,
    json_to: Json = None,
) -> None:
    """Run four servers that really train, on virtual time, with the tier above them and without."""
    tiers = {name: tier_of(name) for name in tier.split(",")}
    chosen, trained = numbers(seeds), numbers(blocks, "--blocks")
    rows = []
    with output(json_to) as out, tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        which = servers(folder, mb_s, trained)
        fleet = which.servers[0].fleet
        half_us = round((fleet.windows or 0) * fleet.window_s / 2 * US_PER_S)
        failures = [ServerDeath(SiteName(which.sites[-1]), half_us)] if fail else []
        for seed in chosen:
            for name, finds in tiers.items():
                told = row(name, seed, played(folder, which, finds, seed, failures))
                rows.append(told)
                out.console.print(in_words(told), highlight=False, soft_wrap=True)
        out.report({"runs": rows})


if __name__ == "__main__":
    run(
        main,
        "python experiments/fleet_emulated.py",
        "python experiments/fleet_emulated.py --tier none,net --seeds 0,1 --mb-s 125 --json -",
        "python experiments/fleet_emulated.py --fail",
    )
