"""Forecast of the last point of a learning curve from its first ones, on measured curves.

    python experiments/profiler_curves.py --data ../shared/data

Reads the validation curves of Pollux' CIFAR-10 trainings (OSDI'21; 100 epochs at six batch sizes) from
``curves/pollux-cifar10/validation-*.csv``, fits the first points and forecasts the last: with the
micro-profiler's mixture, with the paper's plain Optimus curve, and with the power law 1 − b·k^−c.
"""

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from scipy.optimize import least_squares

from ekya.planning.profiling.learning_curve import fit_mixture, fit_optimus

Forecast = Callable[[Sequence[float], Sequence[float], float], float]


@dataclass(frozen=True, slots=True)
class Measured:
    """One training: progress in iterations and validation accuracy in [0, 1] after each epoch."""

    name: str
    progress: tuple[float, ...]
    accuracy: tuple[float, ...]


def read_curves(folder: Path) -> list[Measured]:
    """Reads the curves of a folder, sorted by batch size."""
    files = sorted(folder.glob("validation-*.csv"), key=lambda path: int(path.stem.split("-")[1]))
    if not files:
        raise typer.BadParameter(
            f"{folder} has no validation-*.csv; name the shared data's folder with --data"
        )
    return [_read(path) for path in files]


def _read(path: Path) -> Measured:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return Measured(
        path.stem, tuple(float(r["progress"]) for r in rows), tuple(float(r["metric"]) for r in rows)
    )


def power_law(xs: Sequence[float], accuracies: Sequence[float], x: float) -> float:
    """Returns the value at x of 1 − b·x^−c, fitted with the least squared error."""
    k, y = np.asarray(xs), np.asarray(accuracies)
    found = least_squares(lambda p: 1.0 - p[0] * k ** -p[1] - y, [0.5, 0.5])
    b, c = (float(value) for value in found.x)
    return 1.0 - b * float(x) ** -c


FORECASTS: dict[str, Forecast] = {
    "mixture": lambda xs, accuracies, x: fit_mixture(xs, accuracies).accuracy_at(x),
    "optimus": lambda xs, accuracies, x: fit_optimus(xs, accuracies).accuracy_at(x),
    "power law": power_law,
}


def errors(curve: Measured, seen: int, epoch: int) -> dict[str, float]:
    """Returns forecast less truth at an epoch (from 1), from the first ``seen`` points."""
    xs, ys = curve.progress[:seen], curve.accuracy[:seen]
    at, truth = curve.progress[epoch - 1], curve.accuracy[epoch - 1]
    return {name: forecast(xs, ys, at) - truth for name, forecast in FORECASTS.items()}


def main(
    data: Annotated[Path, typer.Option(envvar="EKYA_DATA", help="Folder of the shared data.")] = Path(
        "../shared/data"
    ),
    seen: Annotated[int, typer.Option(min=2, help="Points that are fitted.")] = 5,
    json_file: Annotated[
        str | None,
        typer.Option("--json", help="Also write the figures as JSON; - is stdout, and then only that."),
    ] = None,
) -> None:
    """Print forecast less truth for every curve, and the median absolute error of each way."""
    curves = read_curves(data / "curves" / "pollux-cifar10")
    rows = {curve.name: errors(curve, seen, len(curve.accuracy)) for curve in curves}
    medians = {name: median(abs(row[name]) for row in rows.values()) for name in FORECASTS}
    if json_file:
        text = json.dumps({"seen": seen, "errors": rows, "median_absolute_error": medians}, indent=2)
        if json_file == "-":
            typer.echo(text)
            return
        Path(json_file).write_text(text + "\n", encoding="utf-8")
    table = Table("curve", *FORECASTS, title=f"Forecast of the last epoch from the first {seen}, less truth")
    for name, row in rows.items():
        table.add_row(name, *(f"{value:+.4f}" for value in row.values()))
    table.add_section()
    table.add_row("median of absolute", *(f"{value:.4f}" for value in medians.values()))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
