"""F1 of a live run of detectors beside that of the same fleet on virtual time.

    ekya run --video street.mp4 --student FastestDet.onnx --golden deimv2.onnx --windows 3 --name live
    python experiments/detect_fidelity.py runs/live
    python experiments/detect_fidelity.py runs/live --card this-machine.json --json -

The fleet of the live run, with the sizes that were chosen for the machine, runs again on virtual time with
the same scheduler and seed. Both are scored on the same frames: one that either run took labels from counts
for none. Nothing else should run on the machine during the live run. A run on virtual time is charged by a
cost card, the shipped one if none is given; `ekya calibrate` makes that of a machine.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

# Must be set before numpy is imported: runs on virtual time use one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import typer
from recipe import Json, run
from rich.table import Table

from ekya.cli.output import output
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import load_fleet
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.pipeline.costs import load_card
from ekya.results.finalize import Scores, labelled_in_any, score_run
from ekya.results.metrics.run_history import summarize
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.simulation.emulated.run import emulate
from ekya.system.files import write_bytes_atomic

TARGET = 0.04
"""Difference of the mean F1 that is aimed at, at most."""


@dataclass(frozen=True, slots=True)
class Row:
    """One stream in one window.

    Attributes:
        live, emulated: F1 of the two runs on the same frames.
        live_retrained, emulated_retrained: whether a retraining was started.
    """

    stream: StreamId
    window: int
    live: float
    emulated: float
    live_retrained: bool
    emulated_retrained: bool


def emulated_again(
    live: RunFolder, fleet: FleetConfig, seed: int, card: Path | None, root: Path
) -> RunFolder:
    """Runs the fleet of a live run on virtual time and returns the run's folder."""
    folder = RunFolder.create(root, "emulated")
    for stream in fleet.streams:
        # The golden detector finds the same in both.
        if not stream.source.gives_truth:
            write_bytes_atomic(folder.reference(stream.id), live.reference(stream.id).read_bytes())
    scheduler, _, _ = read_journal(live.journal)
    emulate(folder, fleet, scheduler, seed, lambda batch, step: None, load_card(card))
    return folder


def rows_of(live: RunFolder, emulated: RunFolder, fleet: FleetConfig) -> Iterator[Row]:
    """Yields every stream and window with objects in both runs."""
    both = live, emulated
    labelled = {stream.id: labelled_in_any(both, stream.id) for stream in fleet.streams}
    of_live, of_emulated = (_by_window(score_run(folder, fleet, labelled)) for folder in both)
    began_live, began_emulated = (_retrained(folder) for folder in both)
    for at, f1 in of_live.items():
        if at in of_emulated:
            yield Row(*at, f1, of_emulated[at], at in began_live, at in began_emulated)


def _by_window(scores: Scores) -> dict[tuple[StreamId, int], float]:
    return {
        (stream, window.index): window.accuracy
        for stream, score in scores.items()
        for window in score.windows
        if window.accuracy is not None
    }


def _retrained(folder: RunFolder) -> set[tuple[StreamId, int]]:
    _, _, steps = read_journal(folder.journal)
    return {(run.stream, run.window) for run in summarize(steps).retrainings}


def told(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the figures of a comparison."""
    live, emulated = fmean(row.live for row in rows), fmean(row.emulated for row in rows)
    return {
        "live": live,
        "emulated": emulated,
        "difference": emulated - live,
        "mean_difference_by_window": fmean(abs(row.emulated - row.live) for row in rows),
        "other_retrainings": sum(row.live_retrained != row.emulated_retrained for row in rows),
        "target": TARGET,
        "met": abs(emulated - live) <= TARGET,
    }


def table_of(rows: Sequence[Row]) -> Table:
    """Returns a table with a line for each stream and window; a star marks a retraining."""
    table = Table("stream", "window", title="F1 on the same frames; * a retraining was started")
    for name in ("live", "emulated", "difference"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.stream,
            str(row.window),
            f"{row.live:.1%}{'*' if row.live_retrained else ' '}",
            f"{row.emulated:.1%}{'*' if row.emulated_retrained else ' '}",
            f"{100 * (row.emulated - row.live):+.1f}",
        )
    return table


def _summary(folder: RunFolder) -> Mapping[str, Any]:
    if not folder.summary.is_file():
        raise UserError(f"{folder.summary}: is not there, so the run has not ended; name one that has.")
    summary: Mapping[str, Any] = json.loads(folder.summary.read_text())
    if summary["world"] != "live":
        raise UserError(f"{folder.path}: is no live run; name one that was not made with --clock virtual.")
    return summary


def main(
    live: Annotated[Path, typer.Argument(help="Folder of a live run on recorded video.")],
    card: Annotated[Path | None, typer.Option(help="Cost card; the shipped one.")] = None,
    json_to: Json = None,
) -> None:
    """Compare a live run with the same fleet on virtual time."""
    with output(json_to) as out, tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder.open(live)
        seed = _summary(folder)["seed"]
        fleet = load_fleet(folder.fleet)
        emulated = emulated_again(folder, fleet, seed, card, Path(temporary))
        rows = list(rows_of(folder, emulated, fleet))
        if not rows:
            raise UserError(f"{live}: no window has an object in both runs; name a longer run.")
        figures = told(rows)
        out.report({**figures, "rows": [asdict(row) for row in rows]})
        out.console.print(table_of(rows))
        out.say(
            f"Mean F1 {figures['live']:.1%} live, {figures['emulated']:.1%} emulated: "
            f"{100 * figures['difference']:+.1f} points; at most {100 * TARGET:g} is the target: "
            f"{'met' if figures['met'] else 'missed'}. By stream and window "
            f"{100 * figures['mean_difference_by_window']:.1f} points in the mean."
        )


if __name__ == "__main__":
    run(main, "python experiments/detect_fidelity.py runs/live")
