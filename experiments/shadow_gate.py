"""Margin of the shadow gate: how much worse new weights may measure on labels than the old ones.

    python experiments/shadow_gate.py
    python experiments/shadow_gate.py --full --json -

The default fleet's cameras, on other streets with each seed. In every window a model is retrained on labels
of the window before, from the model that served, and then served. Two decisions are evaluated, each with its
measurement and its outcome:

- *to serve*: the new and the old weights on the validation part of those labels, and on all objects of the
  window that follows;
- *to roll back*: both on one picture of each labelled object of that window, all unseen by both, and on all
  objects of the window after it.

A margin m takes the new weights unless they measure worse by more than m. Its value is the mean accuracy of
the weights that then serve. Compared are always and never taking the new ones, and always the better ones,
which are not available to a real decision. One seed and the head alone, about two minutes; ``--full`` takes
four, and two blocks too.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Annotated

# Must be set before numpy is imported: results must not depend on the number of cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import typer
from city_windows import one_thread, sample, windows_of
from recipe import Full, Json, run
from rich.progress import Progress
from rich.table import Table

from ekya.cli.output import output
from ekya.config.fleet_file import DEFAULT_FLEET, FleetConfig
from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.predictor import accuracy
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.label_weights import few_of_each
from ekya.models.training.labelled import LabelledCrops, class_mix_weights, split_by_track_and_time
from ekya.models.training.trainer import Retraining, RetrainingData
from ekya.pipeline.base_model import base_model
from ekya.pipeline.discover_classes import fleet_classes
from ekya.streams.synthetic import CitySpec

MARGINS = (-0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
OTHER_STREETS = 1000
"""Added to a city's seed for each seed of the recipe."""

EVERY = 6
"""Objects of every sixth frame are tested on."""

TO_SERVE, TO_ROLL_BACK = "serve", "roll back"


@dataclass(frozen=True, slots=True)
class Choice:
    """New weights or old ones.

    Attributes:
        decision, stream, seed, window, blocks: of the case.
        measured: accuracy of the new ones less that of the old ones on the labels.
        new, old: accuracy of each afterwards.
    """

    decision: str
    stream: str
    seed: int
    window: int
    blocks: int
    measured: float
    new: float
    old: float


@dataclass(frozen=True, slots=True)
class Row:
    """Value of a margin: mean accuracy of the serving weights, and how often these are the old ones."""

    decision: str
    margin: str
    accuracy: float
    old_part: float


def choices(fleet: FleetConfig, seed: int, blocks: int) -> Iterator[Choice]:
    """Yields both decisions in every window of every camera."""
    classes = fleet_classes(fleet)
    base = base_model(fleet, 0)
    for place, stream in enumerate(fleet.streams):
        if not isinstance(stream.source, CitySpec):
            raise UserError(f"{stream.id}: only cameras of the synthetic city know what is true")
        spec = stream.source.model_copy(update={"seed": stream.source.seed + OTHER_STREETS * seed})
        windows = windows_of(spec, classes, fleet.window_s, fleet.windows or 5, EVERY)
        labels = [sample(one, fleet.golden.labels_per_window, seed + place) for one in windows]
        old, memory = base, ExemplarMemory()
        for window in range(len(windows) - 1):
            training, validation = split_by_track_and_time(labels[window])
            if not len(training) or not len(validation):
                continue
            config = RetrainConfig(max(fleet.retraining.epochs), 16, 0, blocks, 1.0)
            new = retrained(old, config, training, validation, memory, seed + window)
            told = (stream.id, seed, window, blocks)
            weights = class_mix_weights(training.classes, validation.classes)
            measured = accuracy(new, validation, weights) - accuracy(old, validation, weights)
            later = without_tracks(windows[window + 1], labels[window])
            yield Choice(TO_SERVE, *told, measured, accuracy(new, later), accuracy(old, later))
            if window + 2 < len(windows):
                newest = without_tracks(labels[window + 1], labels[window])
                newest = newest.take(few_of_each(newest.classes, newest.tracks, 1))
                after = without_tracks(windows[window + 2], labels[window + 1])
                measured = accuracy(new, newest) - accuracy(old, newest)
                yield Choice(TO_ROLL_BACK, *told, measured, accuracy(new, after), accuracy(old, after))
            old, memory = new, memory.update(new, training)


def retrained(
    start: EdgeModel,
    config: RetrainConfig,
    training: LabelledCrops,
    validation: LabelledCrops,
    memory: ExemplarMemory,
    seed: int,
) -> EdgeModel:
    """Returns the weights of the last of the best epochs, as a run would serve them."""
    retraining = Retraining(
        start, config, RetrainingData(training, validation, start.classes, memory=memory, seed=seed)
    )
    retraining.prepare()
    best, model = -1.0, start
    while not retraining.done:
        reached = retraining.run_epoch().validation_accuracy
        if reached >= best:
            best, model = reached, retraining.model()
    return model


def without_tracks(crops: LabelledCrops, labelled: LabelledCrops) -> LabelledCrops:
    """Returns the crops of objects that were not labelled."""
    return crops.take(np.flatnonzero(~np.isin(crops.tracks, labelled.tracks)))


def rows_of(decision: str, every: Sequence[Choice]) -> Iterator[Row]:
    """Yields the value of each margin."""
    own = [choice for choice in every if choice.decision == decision]

    def row(margin: str, takes_new: Sequence[bool]) -> Row:
        served = [one.new if new else one.old for one, new in zip(own, takes_new, strict=True)]
        return Row(decision, margin, fmean(served), 1.0 - fmean(takes_new))

    yield row("always old", [False] * len(own))
    for margin in MARGINS:
        yield row(f"{margin:g}", [one.measured >= -margin for one in own])
    yield row("always new", [True] * len(own))
    yield row("the better", [one.new >= one.old for one in own])


def main(
    full: Full = False,
    seeds: Annotated[int, typer.Option(min=0, help="How many; 0 for one, and four with --full.")] = 0,
    json_to: Json = None,
) -> None:
    """Find the margin of the shadow gate that serves best."""
    one_thread()
    fleet = load_fleet(shipped_path(DEFAULT_FLEET))
    count = seeds or (4 if full else 1)
    kinds = (0, 2) if full else (0,)
    with output(json_to) as out:
        every: list[Choice] = []
        with Progress(console=out.console, transient=True, disable=not out.console.is_terminal) as bars:
            for seed in bars.track(range(1, count + 1), description="training"):
                for blocks in kinds:
                    every.extend(choices(fleet, seed, blocks))
        rows = [row for decision in (TO_SERVE, TO_ROLL_BACK) for row in rows_of(decision, every)]
        out.report({"rows": [asdict(row) for row in rows], "choices": [asdict(one) for one in every]})
        for decision in (TO_SERVE, TO_ROLL_BACK):
            own = [one for one in every if one.decision == decision]
            noise = float(np.std([one.measured - (one.new - one.old) for one in own]))
            title = f"To {decision}: {len(own)} windows, measured differences off by {noise:.3f}"
            table = Table("margin", "accuracy", "old ones serve", title=title)
            for row in rows:
                if row.decision == decision:
                    table.add_row(row.margin, f"{row.accuracy:.2%}", f"{row.old_part:.0%}")
            out.console.print(table)


if __name__ == "__main__":
    run(main, "python experiments/shadow_gate.py", "python experiments/shadow_gate.py --full --json -")
