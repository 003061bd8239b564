"""``ekya golden train`` and ``ekya edge train``: classifiers, from the labels of a fleet's streams."""

import logging
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from ekya.cli import options as opt
from ekya.cli.command import Output, command, open_bars, require_writable
from ekya.cli.options import split_names
from ekya.core.errors import UserError
from ekya.core.units import StreamId

if TYPE_CHECKING:
    from ekya.models.supervised.recipe import Recipe
    from ekya.models.supervised.training import TrainingState

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _TrainConfig:
    """Options of both commands."""

    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Weights to write, .safetensors; a card goes beside.")
    ]
    fleet: opt.FleetFile = None
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|NAME",
            help="Weights of the same architecture to begin with: a file, or a name of ekya models.",
        ),
    ] = None
    holdout: Annotated[
        str,
        typer.Option(
            metavar="STREAM,...",
            help="Streams that measure and never train; default: all but pretraining: of the fleet file, or "
            "a tenth.",
        ),
    ] = ""
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the data at most; default: by its amount.")
    ] = None
    json_to: opt.Json = None


@dataclass(frozen=True, kw_only=True)
class GoldenTrainConfig(_TrainConfig):
    """Options of ``ekya golden train``."""

    model: Annotated[
        str, typer.Option(metavar="NAME", help="resnext29, resnext101_32x8d or resnext101_64x4d.")
    ] = "resnext29"


@dataclass(frozen=True, kw_only=True)
class EdgeTrainConfig(_TrainConfig):
    """Options of ``ekya edge train``."""

    model: Annotated[
        str, typer.Option(metavar="NAME", help="An edge model that classifies, such as mobilenet_v3_small.")
    ] = "resnet18"


@command(
    GoldenTrainConfig,
    "ekya golden train my-fleet.yaml --out golden.safetensors",
    "ekya golden train cityscapes.yaml --holdout frankfurt,munster --out golden.safetensors",
    "ekya golden train cityscapes.yaml --model resnext101_32x8d --weights imagenet.pth --out big.safetensors",
)
def train(config: GoldenTrainConfig, output: Output) -> None:
    """Train a golden model that names objects, on the labels that a fleet's streams bring.

    Labels are those of rendered cameras and data sets, or of a label file under golden: in the fleet file.
    The card beside the weights says how accurate they are on streams that did not train. After Ctrl-C or a
    crash the same command goes on.
    """
    _train("golden", config, config.model, output)


@command(
    EdgeTrainConfig,
    "ekya edge train my-fleet.yaml --out base.safetensors",
    "ekya edge train my-fleet.yaml --model mobilenet_v3_small --holdout gate --out base.safetensors",
    "ekya edge train cityscapes.yaml --weights resnet18 --out base.safetensors",
)
def train_(config: EdgeTrainConfig, output: Output) -> None:
    """Train the common base of a fleet's edge models, on the labels that its streams bring.

    Crops have the side edge.resolution. Labels, card and resuming are as of ekya golden train.
    """
    _train("edge", config, config.model, output)


def _train(kind: str, config: _TrainConfig, model: str, output: Output) -> None:
    from ekya.cli.fleet_from_options import read_fleet
    from ekya.pipeline.costs import fitted_by_card
    from ekya.pipeline.train_models import TrainingOrder, train_model

    to = config.out
    if to.suffix != ".safetensors":
        raise UserError(f"--out {to}: weights are written as .safetensors; name such a file")
    require_writable("--out", to, is_read=True)
    if to.exists():
        raise UserError(f"--out {to}: the file is there already; name another, or remove it")
    fleet = read_fleet(config)
    if fleet.windows is not None and not fleet.is_set("window_s"):
        fleet, _ = fitted_by_card(fleet)
    holdout = tuple(map(StreamId, split_names(config.holdout)))
    given = {
        "model": model,
        "weights": config.weights,
        "holdout": config.holdout,
        "epochs": config.epochs,
        "out": to,
    }
    words = [str(config.fleet)] * (config.fleet is not None)
    words += [word for name, value in given.items() if value for word in (f"--{name}", str(value))]
    order = TrainingOrder(
        kind=kind,
        model=model,
        weights=None if config.weights is None else _find_weights(config.weights),
        holdout=holdout,
        out=to,
        epochs=config.epochs,
        command=shlex.join(["ekya", kind, "train", *words]),
    )
    try:
        with open_bars(output.console) as bars:
            facts = train_model(fleet, order, _Shown(bars, output.console.is_terminal))
    except KeyboardInterrupt:
        output.print_text(
            f"Stopped; what is done is in {order.partial}, and the same command goes on from there"
        )
        raise
    output.write_json({"file": str(to), "card": str(to.with_suffix(".md")), **facts.as_json()})
    low, high = facts.interval
    output.print_text(
        f"{model}: {facts.accuracy:.1%} right ({low:.1%} to {high:.1%}), balanced over the classes "
        f"{facts.balanced_accuracy:.1%}, on {facts.held_out_crops} crops of {facts.held_out_objects} "
        f"objects: {facts.measured_on}{'' if holdout else ', held out since --holdout names none'}"
    )
    output.print_text(f"Weights and card: {to}, {to.with_suffix('.md').name}")
    beside = f"; or beside one: --student {to}" if kind == "edge" else ""
    output.print_text(f"In a fleet file: {facts.fleet_section(str(to))}{beside}")


def _find_weights(named: Path) -> Path:
    """Returns the file of weights to begin with; one of the catalogue is fetched where it is not here.

    Raises:
        UserError: it cannot be fetched.
    """
    from ekya.models.catalogue import Role, fetch_model, find_model

    model = find_model(str(named))
    if model is None or model.role not in (Role.START, Role.CLASSIFIER) or named.is_file():
        return named
    return fetch_model(model)


@dataclass(slots=True, eq=False)
class _Shown:
    """Shows bars on a terminal, otherwise a line for each stream and each epoch with the time left."""

    bars: Progress
    drawn: bool
    recipe: "Recipe | None" = None
    began_s: float = 0.0
    first: int = 0

    def show_stream(self, stream: StreamId, frames: int | None) -> None:
        if self.drawn:
            self.bars.add_task(f"{stream}: frames", total=frames)
        else:
            _LOG.info("%s: %s frames are read", stream, "its" if frames is None else frames)

    def show_cut_frames(self, frames: int) -> None:
        if self.drawn:
            self.bars.advance(self.bars.tasks[-1].id, frames)

    def show_start(self, state: "TrainingState", recipe: "Recipe") -> None:
        self.recipe, self.began_s = recipe, time.monotonic()
        self.first = state.epoch * recipe.steps + state.step
        if self.first:
            _LOG.info("goes on in epoch %d of %d", state.epoch + 1, recipe.epochs)
        self.bars.add_task("training: steps", total=recipe.epochs * recipe.steps, completed=self.first)

    def show_step(self, state: "TrainingState") -> None:
        self.bars.advance(self.bars.tasks[-1].id)

    def show_epoch(self, state: "TrainingState") -> None:
        assert self.recipe is not None, "a training begins before its epochs"
        done = state.epoch * self.recipe.steps
        left = (self.recipe.epochs - state.epoch) * self.recipe.steps
        left_s = (time.monotonic() - self.began_s) / (done - self.first) * left
        _LOG.info(
            "epoch %d of %d: loss %.3f, balanced accuracy %.1f%%, %.0f s left at most",
            state.epoch, self.recipe.epochs, state.losses[-1], 100 * state.accuracies[-1], left_s,
        )  # fmt: skip
