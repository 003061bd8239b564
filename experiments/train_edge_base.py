"""Trains the common base of the edge models on two cameras that no run uses.

    python experiments/train_edge_base.py

Takes about five minutes of one core. Writes the weights, in 16 bits, and their card beside them. Labels are
the true ones of the synthetic city.
"""

import logging
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

import numpy as np
import typer
from city_windows import CityFleet, one_thread, read_fleet, windows_of
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from ekya.core.configs import RetrainConfig
from ekya.core.units import seconds_to_us
from ekya.models.edge.architecture_table import DEFAULT_ARCHITECTURE
from ekya.models.edge.architectures import EDGE_MODELS
from ekya.models.edge.checkpoints import load_model, save_model
from ekya.models.edge.model import EdgeModel, build_edge_model
from ekya.models.edge.predictor import Predictor, accuracy
from ekya.models.golden.checksum import sha256_of
from ekya.models.training.labelled import LabelledCrops, concatenate, split_by_track_and_time
from ekya.models.training.optimizer import SgdRecipe
from ekya.models.training.trainer import Retraining, RetrainingData, TrainingMethod
from ekya.system.files import write_text_atomic

ROOT = Path(__file__).resolve().parents[1]
FROM_SCRATCH = SgdRecipe(learning_rate=0.03, head_learning_rate=0.03, decay_epochs=4.0, batch_statistics=True)
"""Fresh weights need larger steps than a retraining, and their own batch statistics."""

DAY = 10_000
"""Added to a stream's seed for each further day."""

log = logging.getLogger("train_edge_base")


def balanced_accuracy(model: EdgeModel, labelled: LabelledCrops) -> float:
    """Returns the mean over the classes that occur of the accuracy within each."""
    classes = np.unique(labelled.classes)
    return fmean(
        accuracy(model, labelled.select_rows(np.flatnonzero(labelled.classes == each))) for each in classes
    )


def held_out_crops(fleet: CityFleet, days: int, every: int) -> LabelledCrops:
    """Returns all windows of all streams on several days, which have other objects in the same scenes.

    Track numbers of different streams and days are kept apart, and days follow each other in time.
    """
    parts = []
    for day in range(days):
        for number, (_, spec) in enumerate(fleet.streams):
            today = spec.model_copy(update={"seed": spec.seed + DAY * day})
            seen = concatenate(windows_of(today, fleet.classes, fleet.window_s, fleet.windows, every))
            tracks = (seen.tracks * days + day) * len(fleet.streams) + number
            t_us = seen.t_us + seconds_to_us(day * fleet.window_s * fleet.windows)
            parts.append(LabelledCrops(seen.crops, seen.classes, tracks, t_us))
    together = concatenate(parts)
    log.info("%d crops of %d objects", len(together), len(np.unique(together.tracks)))
    return together


def varied(labelled: LabelledCrops, seed: int) -> LabelledCrops:
    """Returns the same crops, half of them mirrored, with light, contrast and each colour varied a little."""
    rng = np.random.default_rng((seed, len(labelled)))
    pixels = labelled.crops.astype(np.float32) / 255.0
    mirrored = rng.random(len(labelled)) < 0.5
    pixels[mirrored] = pixels[mirrored, :, ::-1]
    gain = rng.uniform(0.6, 1.2, (len(labelled), 1, 1, 1)) * rng.uniform(0.9, 1.1, (len(labelled), 1, 1, 3))
    pixels = pixels * gain + rng.uniform(-0.06, 0.06, (len(labelled), 1, 1, 1))
    crops = np.round(255.0 * np.clip(pixels, 0.0, 1.0)).astype(np.uint8)
    return LabelledCrops(crops, labelled.classes, labelled.tracks, labelled.t_us)


def train(
    fleet: CityFleet,
    training: LabelledCrops,
    validation: LabelledCrops,
    epochs: int,
    seed: int,
    architecture: str = DEFAULT_ARCHITECTURE,
    rate: float = FROM_SCRATCH.learning_rate,
) -> EdgeModel:
    """Trains a model from fresh weights."""
    fresh = build_edge_model(fleet.classes, 0, seed, architecture)
    retraining = Retraining(
        fresh,
        RetrainConfig(
            epochs, batch_size=32, head_width=0, trainable_blocks=len(fresh.blocks), data_fraction=1.0
        ),
        RetrainingData(training, validation, fleet.classes, seed=seed),
        method=TrainingMethod(
            recipe=replace(FROM_SCRATCH, learning_rate=rate, head_learning_rate=rate), distillation_weight=0.0
        ),
    )
    retraining.prepare_training()
    while not retraining.done:
        result = retraining.run_epoch()
        log.info(
            "epoch %d of %d: loss %.3f, validation %.1f%%",
            result.epoch,
            epochs,
            result.training_loss,
            100 * result.validation_accuracy,
        )
    return retraining.model()


def accuracy_by_class(
    model: EdgeModel, classes: tuple[str, ...], labelled: LabelledCrops
) -> list[tuple[str, int, float]]:
    """Returns name, number of crops and accuracy of each class that occurs."""
    predicted, _ = Predictor(model).predict(labelled.crops, labelled.side)
    rows = []
    for index, name in enumerate(classes):
        own = labelled.classes == index
        if own.any():
            rows.append((name, int(own.sum()), float(np.mean(predicted[own] == index))))
    return rows


def card(
    fleet: CityFleet,
    model: EdgeModel,
    training: LabelledCrops,
    validation: LabelledCrops,
    days: int,
    every: int,
    epochs: int,
    rate: float,
    seed: int,
    checksum: str,
) -> str:
    """Returns the model card of the weights."""
    rows = "\n".join(
        f"| {name} | {count} | {share:.1%} |"
        for name, count, share in accuracy_by_class(model, fleet.classes, validation)
    )
    return f"""# The common base of the synthetic city's edge models

A {model.architecture} (torchvision's, with its stem and a linear head) for crops of {training.side} pixels.
Every stream's edge model begins with these weights and is retrained from there.

- Made from fresh weights, on one thread, by
  `python experiments/train_edge_base.py --architecture {model.architecture} --epochs {epochs}
  --days {days} --every {every} --rate {rate:g} --seed {seed}`.
- Data: the two cameras of `datasets/synthetic_city/holdout.yaml`, which no run watches, on {days} days
  (seeds {DAY} apart), with their true labels: {len(training)} crops of
  {len(np.unique(training.tracks))} objects, half of them mirrored, light and colours varied a little.
  It knows ordinary days from the side, some fronts and little else; what drifts away from that is for
  retraining.
- SGD with momentum, batch 32, {epochs} epochs, learning rate {rate:g} falling as
  1 / (1 + epoch / {FROM_SCRATCH.decay_epochs:g}).
- Stored as safetensors with 16-bit kernels, loaded as 32 bits. The classes stand in the file's metadata:
  {", ".join(fleet.classes)}.
- sha256: `{checksum}`

Accuracy on the {len(validation)} crops of the {len(np.unique(validation.tracks))} objects of those cameras
that came last and were not trained on (the end of the last days): {accuracy(model, validation):.1%}, and
{balanced_accuracy(model, validation):.1%} balanced over the classes.

| class | crops | accuracy |
|---|---:|---:|
{rows}
"""


def main(
    fleet_file: Annotated[Path, typer.Option(help="The held-out cameras.")] = ROOT
    / "datasets/synthetic_city/holdout.yaml",
    out: Annotated[Path, typer.Option(help="Where the weights go; the card goes beside them.")] = ROOT
    / "golden_models/synthetic_city_resnet18_base.safetensors",
    architecture: Annotated[str, typer.Option(help=f"Of {', '.join(EDGE_MODELS)}.")] = DEFAULT_ARCHITECTURE,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 8,
    days: Annotated[int, typer.Option(help="Other days of the same cameras.")] = 10,
    every: Annotated[int, typer.Option(help="Take every k-th frame.")] = 30,
    rate: Annotated[
        float, typer.Option(help="Learning rate of the first epoch.")
    ] = FROM_SCRATCH.learning_rate,
    seed: Annotated[int, typer.Option(help="Of weights and order.")] = 0,
) -> None:
    """Train the base of the edge models and write it with its card."""
    console = Console()
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[RichHandler(console=console)])
    one_thread()
    began = time.monotonic()
    fleet = read_fleet(fleet_file)
    training, validation = split_by_track_and_time(held_out_crops(fleet, days, every), 0.1)
    training = varied(training, seed)
    model = train(fleet, training, validation, epochs, seed, architecture, rate)
    save_model(model, out, {"recipe": "experiments/train_edge_base.py", "seed": str(seed)}, half=True)
    stored = load_model(out)
    said = card(fleet, stored, training, validation, days, every, epochs, rate, seed, sha256_of(out))
    write_text_atomic(out.with_suffix(".md"), said)
    table = Table("class", "crops", "accuracy", title=f"{out.name}, {time.monotonic() - began:.0f} s")
    for name, count, share in accuracy_by_class(stored, fleet.classes, validation):
        table.add_row(name, str(count), f"{share:.1%}")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
