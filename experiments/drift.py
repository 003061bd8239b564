"""Accuracy lost to drift by a model that is trained once, and regained by retraining in every window.

    python experiments/drift.py

The counterpart of the paper's Figure 2b (§2.3) on the synthetic city's fleet. For each stream, three models
are tested on all objects of each window: the common base; the base fine-tuned on a sample of the first window
alone; and that model retrained each window on a sample of the window before. Objects in view when a window
begins that were labelled in the window before are excluded. Column 0 tests on the first window's scene with
other objects, as a reference without drift.
"""

import csv
import io
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from city_windows import CityFleet, one_thread, read_fleet, sample, windows_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from ekya.core.configs import RetrainConfig
from ekya.models.edge.checkpoints import load_model
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.predictor import Predictor, accuracy
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops, no_crops
from ekya.models.training.trainer import Retraining, RetrainingData
from ekya.streams.synthetic.source import CitySpec
from ekya.system.files import atomic_path, write_text_atomic

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("base", "first window only", "every window")
OTHER_OBJECTS = 1000
"""Added to a stream's seed for the reference without drift."""

log = logging.getLogger("drift")


@dataclass(frozen=True, slots=True)
class Row:
    """Accuracy in [0, 1] of each of ``MODELS`` on one window of one stream."""

    stream: str
    window: int
    accuracies: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of a retraining: γ, labels a window and the seed."""

    config: RetrainConfig
    labels: int
    seed: int


def retrain(
    start: EdgeModel, seen: LabelledCrops, memory: ExemplarMemory, recipe: Recipe
) -> tuple[EdgeModel, ExemplarMemory, LabelledCrops]:
    """Retrains on a sample of a window; returns the model, the new exemplar memory, and the sample."""
    labels = sample(seen, recipe.labels, recipe.seed)
    retraining = Retraining(
        start,
        recipe.config,
        RetrainingData(labels, no_crops(labels.side), start.classes, memory=memory, seed=recipe.seed),
    )
    retraining.prepare()
    while not retraining.done:
        retraining.run_epoch()
    model = retraining.model()
    return model, memory.update(model, labels), labels


def follow(
    stream: str, spec: CitySpec, fleet: CityFleet, base: EdgeModel, recipe: Recipe, every: int
) -> list[Row]:
    """Measures all windows of one stream."""
    windows = windows_of(spec, fleet.classes, fleet.window_s, fleet.windows, every)
    other = spec.model_copy(update={"seed": spec.seed + OTHER_OBJECTS})
    reference = windows_of(other, fleet.classes, fleet.window_s, 1, every)[0]
    first, memory, labels = retrain(base, windows[0], ExemplarMemory(), recipe)
    rows = [Row(stream, 0, _accuracies((base, first, first), reference))]
    latest = first
    for index, window in enumerate(windows[1:], start=1):
        asked = window.take(np.flatnonzero(~np.isin(window.tracks, labels.tracks)))
        rows.append(Row(stream, index, _accuracies((base, first, latest), asked)))
        log.info("%s, window %d: %s", stream, index, _percent(rows[-1].accuracies))
        latest, memory, labels = retrain(latest, window, memory, recipe)
    return rows


def _accuracies(
    models: tuple[EdgeModel, EdgeModel, EdgeModel], asked: LabelledCrops
) -> tuple[float, float, float]:
    base, first, latest = (accuracy(Predictor(model), asked) for model in models)
    return base, first, latest


def _percent(accuracies: tuple[float, ...]) -> str:
    return ", ".join(f"{name} {value:.1%}" for name, value in zip(MODELS, accuracies, strict=True))


def drift_points(rows: list[Row]) -> dict[str, tuple[float, float]]:
    """Returns by stream, in points: accuracy lost by the first window's model, and regained by retraining.

    Lost is the reference accuracy of that model less its mean over the windows from 2 on (before, no model
    can have learnt more than the first window); regained is the lead of the retrained model in these windows.
    """
    points = {}
    for stream in dict.fromkeys(row.stream for row in rows):
        own = [row for row in rows if row.stream == stream]
        later = np.mean([row.accuracies for row in own if row.window >= 2], axis=0)
        points[stream] = (100 * float(own[0].accuracies[1] - later[1]), 100 * float(later[2] - later[1]))
    return points


def show(console: Console, rows: list[Row]) -> None:
    """Prints the rows as a table."""
    windows = sorted({row.window for row in rows})
    table = Table("stream", "model", *(f"w{window}" for window in windows), title="Accuracy, %")
    for stream in dict.fromkeys(row.stream for row in rows):
        for place, name in enumerate(MODELS):
            own = [row.accuracies[place] for row in rows if row.stream == stream]
            table.add_row(stream if place == 0 else "", name, *(f"{100 * value:.1f}" for value in own))
    console.print(table)
    summary = Table("stream", "lost by drift", "given back", title="Points, mean of windows from 2 on")
    for stream, (lost, back) in drift_points(rows).items():
        summary.add_row(stream, f"{lost:.1f}", f"{back:.1f}")
    console.print(summary)


def as_csv(rows: list[Row]) -> str:
    """Returns CSV with one line for each stream and window."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["stream", "window", *MODELS])
    for row in rows:
        writer.writerow([row.stream, row.window, *(f"{value:.4f}" for value in row.accuracies)])
    return text.getvalue()


def draw(rows: list[Row], path: Path) -> None:
    """Draws one panel for each stream."""
    streams = list(dict.fromkeys(row.stream for row in rows))
    figure = Figure(figsize=(3.2 * len(streams), 3))
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(streams), sharey=True, squeeze=False)
    for panel, stream in zip(panels[0], streams, strict=True):
        own = [row for row in rows if row.stream == stream]
        for place, (name, style) in enumerate(zip(MODELS, ("k:", "C1--o", "C0-o"), strict=True)):
            windows = [row.window for row in own]
            panel.plot(windows, [100 * row.accuracies[place] for row in own], style, label=name)
        panel.set(title=stream, xlabel="window", ylim=(0, 100), xticks=[row.window for row in own])
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("accuracy, %")
    panels[0][0].legend(title="trained on", loc="lower left", fontsize=8)
    figure.tight_layout()
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def main(
    fleet_file: Annotated[Path, typer.Option(help="The fleet.")] = ROOT
    / "datasets/synthetic_city/fleet.yaml",
    base: Annotated[Path, typer.Option(help="The common base.")] = ROOT
    / "golden_models/synthetic_city_resnet18_base.safetensors",
    out: Annotated[Path, typer.Option(help="Folder of drift.csv and drift.png.")] = ROOT
    / "experiments/results",
    epochs: Annotated[int, typer.Option(help="Of each retraining.")] = 8,
    blocks: Annotated[int, typer.Option(help="Trainable blocks of each retraining.")] = 5,
    labels: Annotated[int, typer.Option(help="Labelled crops a window.")] = 96,
    every: Annotated[int, typer.Option(help="Ask about every k-th frame.")] = 3,
    seed: Annotated[int, typer.Option(help="Of samples and training.")] = 0,
) -> None:
    """Measure drift on every stream of a fleet of synthetic cameras."""
    console = Console()
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[RichHandler(console=console)])
    one_thread()
    fleet, model = read_fleet(fleet_file), load_model(base)
    recipe = Recipe(RetrainConfig(epochs, 16, 0, blocks, 1.0), labels, seed)
    rows = [
        row for stream, spec in fleet.streams for row in follow(stream, spec, fleet, model, recipe, every)
    ]
    out.mkdir(parents=True, exist_ok=True)
    write_text_atomic(out / "drift.csv", as_csv(rows))
    draw(rows, out / "drift.png")
    show(console, rows)


if __name__ == "__main__":
    typer.run(main)
