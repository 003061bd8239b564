"""Ablation of exemplar memory and distillation when new classes appear (paper §2.2, [82]).

    python experiments/ablation_icarl.py

A camera sees some classes in its first window. In the second window two new classes come and hardly any
objects of the old ones. The model is retrained on each window's labels, the second time in four ways: with
neither, with the exemplar memory, with distillation, with both. It is then tested on unseen objects of both
scenes. Results are means over seeds, which also draw the scenes.
"""

import csv
import io
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from city_windows import one_thread, sample, windows_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from ekya.core.configs import RetrainConfig
from ekya.models.edge.checkpoints import load_model
from ekya.models.edge.model import EdgeModel, adapt
from ekya.models.edge.predictor import Predictor
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops, no_crops
from ekya.models.training.trainee import DISTILLATION_WEIGHT
from ekya.models.training.trainer import Retraining, RetrainingData, TrainingMethod
from ekya.streams.synthetic.scene import KINDS, Kind, Scene
from ekya.streams.synthetic.source import CitySpec
from ekya.system.files import atomic_path, write_text_atomic

ROOT = Path(__file__).resolve().parents[1]
OLD: tuple[Kind, ...] = ("person", "car", "truck", "bus")
NEW: tuple[Kind, ...] = ("bicycle", "motorcycle")
STRAY: Kind = "car"
"""The one old class of which a few objects remain in the second window."""

WINDOW_S = 24.0
UNSEEN = 5000
"""Added to a seed to draw the objects that are only tested on."""

WAYS = (
    ("neither", False, 0.0),
    ("memory", True, 0.0),
    ("distillation", False, DISTILLATION_WEIGHT),
    ("both", True, DISTILLATION_WEIGHT),
)
"""Name, whether the memory is used, and the weight of distillation."""

log = logging.getLogger("ablation_icarl")


@dataclass(frozen=True, slots=True)
class Row:
    """Accuracy in [0, 1] on old and new classes, for one way and one seed."""

    way: str
    seed: int
    old: float
    new: float


def scene(kinds: tuple[Kind, ...], strays: float) -> Scene:
    """Returns a daytime scene in which these kinds come equally often."""
    mix: dict[Kind, float] = dict.fromkeys(kinds, 1.0)
    if strays:
        mix[STRAY] = strays
    return Scene(mix=mix, density=8.0)


def crops_of(what: Scene, seed: int, every: int) -> LabelledCrops:
    """Returns the labelled crops of one window of a scene."""
    spec = CitySpec(seed=seed, scenes=(what,), duration_s=WINDOW_S)
    return windows_of(spec, KINDS, WINDOW_S, 1, every)[0]


def as_model_classes(labelled: LabelledCrops, classes: tuple[str, ...]) -> LabelledCrops:
    """Maps labels that index ``KINDS`` to labels that index a model's classes."""
    place = np.array([classes.index(kind) if kind in classes else -1 for kind in KINDS], np.int64)
    return LabelledCrops(labelled.crops, place[labelled.classes], labelled.tracks, labelled.t_us)


def retrain(
    start: EdgeModel,
    labels: LabelledCrops,
    memory: ExemplarMemory | None,
    classes: tuple[str, ...],
    config: RetrainConfig,
    distillation: float,
    seed: int,
) -> EdgeModel:
    """Runs one retraining to its end and returns the model."""
    retraining = Retraining(
        start,
        config,
        RetrainingData(labels, no_crops(labels.side), classes, memory=memory, seed=seed),
        method=TrainingMethod(distillation_weight=distillation),
    )
    retraining.prepare()
    while not retraining.done:
        retraining.run_epoch()
    return retraining.model()


def one_seed(base: EdgeModel, config: RetrainConfig, labels: int, seed: int) -> list[Row]:
    """Runs all four ways on the same two windows."""
    everything = OLD + NEW
    before = as_model_classes(crops_of(scene(OLD, 0.0), 100 + seed, 2), everything)
    after = as_model_classes(crops_of(scene(NEW, 0.2), 200 + seed, 2), everything)
    # Track numbers of the second window continue those of the first.
    after = LabelledCrops(after.crops, after.classes, after.tracks + before.tracks.max() + 1, after.t_us)
    asked_old = as_model_classes(crops_of(scene(OLD, 0.0), UNSEEN + seed, 3), everything)
    asked_new = as_model_classes(crops_of(scene(NEW, 0.0), 2 * UNSEEN + seed, 3), everything)
    first_labels, next_labels = sample(before, labels, seed), sample(after, labels, seed)
    # The base was trained on all six classes; a fresh head of four classes was not.
    untaught = adapt(adapt(base, OLD, 8, seed), OLD, 0, seed)
    first = retrain(untaught, first_labels, None, OLD, config, 0.0, seed)
    memory = ExemplarMemory().update(first, first_labels)
    rows = []
    for way, remembers, distillation in WAYS:
        model = retrain(
            first, next_labels, memory if remembers else None, everything, config, distillation, seed
        )
        rows.append(Row(way, seed, _accuracy(model, asked_old), _accuracy(model, asked_new)))
        log.info("seed %d, %s: old %.1f%%, new %.1f%%", seed, way, 100 * rows[-1].old, 100 * rows[-1].new)
    return rows


def _accuracy(model: EdgeModel, asked: LabelledCrops) -> float:
    predicted, _ = Predictor(model).predict(asked.crops, asked.side)
    return float(np.mean(predicted == asked.classes))


def as_csv(rows: list[Row]) -> str:
    """Returns CSV with one line for each way and seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["way", "seed", "old_classes", "new_classes"])
    for row in rows:
        writer.writerow([row.way, row.seed, f"{row.old:.4f}", f"{row.new:.4f}"])
    return text.getvalue()


def means(rows: list[Row], way: str) -> tuple[float, float]:
    """Returns mean percent on old and on new classes, over the seeds."""
    own = [row for row in rows if row.way == way]
    return 100 * float(np.mean([row.old for row in own])), 100 * float(np.mean([row.new for row in own]))


def draw(rows: list[Row], path: Path) -> None:
    """Draws two bars for each way, with a dot for each seed."""
    figure = Figure(figsize=(6, 3.2))
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    for place, (way, _, _) in enumerate(WAYS):
        own = [row for row in rows if row.way == way]
        for shift, colour, values in (
            (-0.2, "C0", [row.old for row in own]),
            (0.2, "C1", [row.new for row in own]),
        ):
            panel.bar(place + shift, 100 * np.mean(values), 0.36, color=colour, alpha=0.7)
            panel.plot([place + shift] * len(values), [100 * value for value in values], "k.", ms=4)
    panel.set_xticks(range(len(WAYS)), [way for way, _, _ in WAYS])
    panel.set(ylabel="accuracy, %", ylim=(0, 100), title="Old classes (blue) and new ones (orange)")
    figure.tight_layout()
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def main(
    base: Annotated[Path, typer.Option(help="The common base.")] = ROOT
    / "golden_models/synthetic_city_resnet18_base.safetensors",
    out: Annotated[Path, typer.Option(help="Folder of ablation_icarl.csv and .png.")] = ROOT
    / "experiments/results",
    seeds: Annotated[int, typer.Option(help="How many repetitions.")] = 3,
    epochs: Annotated[int, typer.Option(help="Of each retraining.")] = 8,
    blocks: Annotated[int, typer.Option(help="Trainable blocks of each retraining.")] = 5,
    labels: Annotated[int, typer.Option(help="Labelled crops a window.")] = 96,
) -> None:
    """Compare four ways of learning new classes."""
    console = Console()
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[RichHandler(console=console)])
    one_thread()
    model = load_model(base)
    config = RetrainConfig(epochs, 16, 0, blocks, 1.0)
    rows = [row for seed in range(seeds) for row in one_seed(model, config, labels, seed)]
    out.mkdir(parents=True, exist_ok=True)
    write_text_atomic(out / "ablation_icarl.csv", as_csv(rows))
    draw(rows, out / "ablation_icarl.png")
    table = Table("way", "old classes, %", "new classes, %", title=f"Means over {seeds} seeds")
    for way, _, _ in WAYS:
        old, new = means(rows, way)
        table.add_row(way, f"{old:.1f}", f"{new:.1f}")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
