"""Cost of each edge model, and its accuracy after the same short training on the synthetic city.

    python experiments/edge_models.py
    python experiments/edge_models.py --model mobilenet_v3_small --model resnet18 --json -
    python experiments/edge_models.py --halved
    python experiments/edge_models.py --full

Every model begins with fresh weights and sees the same crops of 32 pixels in the same order: the two cameras
of ``datasets/synthetic_city/holdout.yaml``, which no run uses, with their true labels, as the shipped base
was trained. Accuracy is on the objects that came last. Times are processor time, on one thread, the models
in turn. ``--halved`` also measures the small models as torchvision has them, with a first convolution that
halves the picture. About five minutes of one core; ``--full`` trains on ten days for eight epochs and takes
twenty.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated

# Must be set before numpy is imported: times are of one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import typer
from balanced import balanced_accuracy
from city_windows import SIDE, CityFleet, one_thread, read_fleet
from recipe import Json, run
from rich.progress import Progress
from rich.table import Table
from torch import nn
from train_edge_base import FROM_SCRATCH, ROOT, held_out_crops, varied

from ekya.cli.output import output
from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.models.edge.architecture_table import CUTS
from ekya.models.edge.architectures import EDGE_MODELS
from ekya.models.edge.model import EdgeModel, build_edge_model, to_input
from ekya.models.edge.predictor import FORWARD_BATCH, Predictor, accuracy
from ekya.models.training.labelled import LabelledCrops, split_by_track_and_time
from ekya.models.training.operations import operations_counter
from ekya.models.training.trainer import Retraining, RetrainingData, TrainingMethod

STREAMS_MODELS = tuple(name for name in EDGE_MODELS if name != "resnet101")
"""Models that are cheap enough for a stream."""

OBJECTS = 6
"""Objects of a frame: the batch of one inference."""

ROUNDS = 15


@dataclass(frozen=True, slots=True)
class Row:
    """One model.

    Attributes:
        model: architecture, and ``, halved`` where its first convolution halves the picture.
        blocks: number of trainable blocks.
        parameters: of blocks and head.
        operations: multiplications and additions for a crop.
        frame_ms, batch_ms: time of a crop among the objects of a frame, and in a full batch.
        training_s: duration of the training.
        accuracy, balanced: after training, plain and balanced over the classes.
    """

    model: str
    blocks: int
    parameters: int
    operations: int
    frame_ms: float
    batch_ms: float
    training_s: float
    accuracy: float
    balanced: float


def fresh_models(names: list[str], fleet: CityFleet, seed: int, halved: bool) -> Mapping[str, EdgeModel]:
    """Returns models with fresh weights by row name."""
    models = {name: build_edge_model(fleet.classes, 0, seed, name) for name in names}
    for name in names if halved else ():
        if CUTS[name].full_size is not None:
            model = build_edge_model(fleet.classes, 0, seed, name)
            first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
            first.stride = (2, 2)
            models[f"{name}, halved"] = model
    return models


def times_ms(models: Mapping[str, EdgeModel], crops: int) -> Mapping[str, float]:
    """Returns the median thread time a crop in batches of ``crops``; the models alternate."""
    predictors = {name: Predictor(model) for name, model in models.items()}
    images = np.random.default_rng(0).integers(0, 256, (crops, SIDE, SIDE, 3)).astype(np.uint8)
    took: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(ROUNDS + 2):
        for name, predictor in predictors.items():
            began = time.thread_time()
            predictor.predict(images, SIDE)
            took[name].append(time.thread_time() - began)
    return {name: 1000 * median(each[2:]) / crops for name, each in took.items()}


def operations_of(model: EdgeModel) -> int:
    """Counts the operations for one crop."""
    with operations_counter() as counter:
        model(to_input(np.zeros((1, SIDE, SIDE, 3), np.uint8), "cpu"))
    return int(counter.get_total_flops())


def train(
    model: EdgeModel, training: LabelledCrops, validation: LabelledCrops, epochs: int, seed: int
) -> EdgeModel:
    """Trains all blocks from fresh weights and returns the model."""
    retraining = Retraining(
        model,
        RetrainConfig(epochs, 32, head_width=0, trainable_blocks=len(model.blocks), data_fraction=1.0),
        RetrainingData(training, validation, model.classes, seed=seed),
        method=TrainingMethod(recipe=FROM_SCRATCH, distillation_weight=0.0),
    )
    retraining.prepare()
    while not retraining.done:
        retraining.run_epoch()
    return retraining.model()


def main(
    model: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(EDGE_MODELS)}; may be repeated.")
    ] = None,
    halved: Annotated[bool, typer.Option("--halved", help="Also with torchvision's strides.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Ten days and eight epochs.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and order.")] = 0,
    json_to: Json = None,
) -> None:
    """Measure the edge models side by side."""
    names = list(model or STREAMS_MODELS)
    for name in names:
        if name not in CUTS:
            raise UserError(f"--model {name}: there is none; choose from {', '.join(CUTS)}")
    one_thread()
    days, epochs = (10, 8) if full else (4, 6)
    with output(json_to) as out:
        fleet = read_fleet(ROOT / "datasets/synthetic_city/holdout.yaml")
        training, validation = split_by_track_and_time(held_out_crops(fleet, days, 30), 0.15)
        training = varied(training, seed)
        models = fresh_models(names, fleet, seed, halved)
        frame_ms, batch_ms = times_ms(models, OBJECTS), times_ms(models, FORWARD_BATCH)
        rows = []
        with Progress(console=out.console, transient=True) as bars:
            for name in bars.track(models, description="training"):
                began = time.thread_time()
                trained = train(models[name], training, validation, epochs, seed)
                rows.append(
                    Row(
                        model=name,
                        blocks=len(trained.blocks),
                        parameters=sum(weight.numel() for weight in trained.parameters()),
                        operations=operations_of(trained),
                        frame_ms=frame_ms[name],
                        batch_ms=batch_ms[name],
                        training_s=time.thread_time() - began,
                        accuracy=accuracy(trained, validation),
                        balanced=balanced_accuracy(trained, validation),
                    )
                )
        out.report(
            {
                "training_crops": len(training),
                "validation_crops": len(validation),
                "epochs": epochs,
                "seed": seed,
                "models": [asdict(row) for row in rows],
            }
        )
        title = f"{len(training)} crops, {epochs} epochs; validated on {len(validation)}"
        table = Table(
            "model", "blocks", "parameters", "operations a crop", "ms a crop", "in a batch", "training s",
            "accuracy", "balanced", title=title,
        )  # fmt: skip
        for row in rows:
            table.add_row(
                row.model,
                str(row.blocks),
                f"{row.parameters / 1e6:.2f} M",
                f"{row.operations / 1e6:.1f} M",
                f"{row.frame_ms:.2f}",
                f"{row.batch_ms:.2f}",
                f"{row.training_s:.0f}",
                f"{row.accuracy:.1%}",
                f"{row.balanced:.1%}",
            )
        out.console.print(table)


if __name__ == "__main__":
    run(
        main,
        "python experiments/edge_models.py",
        "python experiments/edge_models.py --model mobilenet_v3_small --model resnet18 --json -",
        "python experiments/edge_models.py --halved",
    )
