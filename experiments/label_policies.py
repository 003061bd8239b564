"""Comparison of label policies on the synthetic city, on virtual time.

    python experiments/label_policies.py
    python experiments/label_policies.py --labels 12,24,96 --seeds 0,1,2 --json policies.json

The choice of labelled objects matters with few labels a window; with many, nearly all candidates are
labelled. An object that any policy took a label from is excluded from the scores of all, so that all are
scored on the same objects: hard objects that one policy labelled are missing for the others too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from recipe import Json, run
from rich.table import Table

from ekya.cli.options import numbers
from ekya.cli.output import output
from ekya.config.fleet_file import DEFAULT_FLEET, FleetConfig
from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.planning.profiling.label_policy import LABEL_POLICIES
from ekya.results.finalize import labelled_in_any, score_run
from ekya.results.metrics.accuracy import mean_or_none
from ekya.results.storage.run_folder import RunFolder, plain_name
from ekya.simulation.emulated.run import emulate


def with_golden(fleet: FleetConfig, **changes: object) -> FleetConfig:
    """Returns the fleet with other keys under ``golden``."""
    return fleet.model_copy(update={"golden": fleet.golden.model_copy(update=changes)})


def compared(fleet: FleetConfig, labels: int, seed: int, root: Path) -> list[dict[str, Any]]:
    """Runs each policy with ``labels`` labels a window; scores on the objects that none labelled."""
    folders, summaries = {}, {}
    for policy in LABEL_POLICIES:
        name = plain_name(f"{policy}-{labels}-seed{seed}")
        folders[policy] = RunFolder.create(root, name)
        chosen = with_golden(fleet, policy=policy, labels_per_window=labels)
        summaries[policy] = emulate(folders[policy], chosen, fleet.scheduler, seed, lambda batch, step: None)
    left_out = {stream.id: labelled_in_any(folders.values(), stream.id) for stream in fleet.streams}
    rows = []
    for policy, folder in folders.items():
        scores = score_run(folder, fleet, left_out).values()
        rows.append(
            {
                "policy": policy,
                "labels_per_window": labels,
                "seed": seed,
                "accuracy": mean_or_none([score.accuracy for score in scores]),
                "balanced_accuracy": mean_or_none([score.balanced_accuracy for score in scores]),
                "labelling_gpu_s": summaries[policy]["labelling_gpu_s"],
                "retrainings": summaries[policy]["retrainings"]["finished"],
            }
        )
    return rows


def shown(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns a table with one line for each run."""
    table = Table(*(key.replace("_", " ") for key in rows[0]))
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    return table


def main(
    fleet: Annotated[Path | None, typer.Option(help="Fleet file; the shipped synthetic city.")] = None,
    labels: Annotated[str, typer.Option(metavar="N,...", help="Labels a stream and window.")] = "24,96",
    seeds: Annotated[str, typer.Option(metavar="N,...", help="One run of each policy for each.")] = "0",
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Folder in which runs are kept.")] = Path(
        "runs/label-policies"
    ),
    json_to: Json = None,
) -> None:
    """Run the city under every policy and print one table."""
    with output(json_to) as out:
        city = load_fleet(fleet or shipped_path(DEFAULT_FLEET))
        rows = [
            row
            for seed in numbers(seeds)
            for count in numbers(labels)
            for row in compared(city, count, seed, runs)
        ]
        out.console.print(shown(rows))
        out.report({"rows": rows})


if __name__ == "__main__":
    run(main)
