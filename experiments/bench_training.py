"""Time that retrainings save: by the feature cache of frozen blocks, and by trimmed kernels.

    python experiments/bench_training.py
    python experiments/bench_training.py --blocks 0 --json -
    python experiments/bench_training.py --full

Windows of the default fleet's cameras, with the labels of the fleet file, split as in a run, exemplars of the
window before, and the base model. Each retraining runs three times, from the same start and with the same
seed. *Kept*: every crop passes the frozen blocks once and its activations are kept, as in a run. *Anew*:
crops pass in every epoch. *Whole*: as kept, with kernels trained also where they lie beside the maps. All
alternate epoch by epoch and times are thread time, so that their ratios hold on a busy machine. The first
epochs of a long retraining equal those of a short one, so only the longest is run.

One window of each camera and two kinds of γ, about a minute; ``--full`` takes three of each, and two blocks.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Annotated

# Must be set before numpy is imported: times are of one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import typer
from city_windows import one_thread, sample, windows_of
from recipe import Full, Json, Seed, publish_rows, run
from rich.progress import Progress

from ekya.cli.command import open_output
from ekya.config.fleet_file import DEFAULT_FLEET, FleetConfig
from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.predictor import accuracy
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops, split_by_track_and_time
from ekya.models.training.trainer import Retraining, RetrainingData, TrainingMethod
from ekya.pipeline.base_model import base_model
from ekya.pipeline.discover_classes import fleet_classes
from ekya.streams.synthetic import CitySpec

BLOCKS, ALL_BLOCKS = (0, 1), (0, 1, 2)
WINDOWS, ALL_WINDOWS = (1,), (1, 2, 3)
"""Windows whose labels train: the window before gives exemplars, the window after is tested on."""

EVERY = 3
"""Objects of every third frame are used."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One window of a camera: training data, and the objects tested on afterwards."""

    training: LabelledCrops
    validation: LabelledCrops
    memory: ExemplarMemory
    following: LabelledCrops


@dataclass(frozen=True, slots=True)
class Run:
    """One retraining.

    Attributes:
        prepare_s: thread time before the first epoch.
        epochs_s: thread time of each epoch.
        curve: validation accuracy before and after each epoch.
        after: accuracy of the last weights on the objects of the window that follows.
    """

    prepare_s: float
    epochs_s: tuple[float, ...]
    curve: tuple[float, ...]
    after: float


@dataclass(frozen=True, slots=True)
class Row:
    """Retrainings with one number of blocks and epochs, a mean over the windows.

    Attributes:
        blocks, epochs: of γ.
        kept_s, anew_s: of the whole retraining, each way.
        faster, epoch_faster: speed-up of *kept* over *anew*, of the whole retraining and of an epoch.
        trimmed_faster: speed-up of *kept* over *whole*, of an epoch.
        kept_accuracy, anew_accuracy: validation accuracy after the last epoch.
        kept_after, anew_after: accuracy in the window that follows, after the most epochs.
        largest_difference: of validation accuracies after the same epoch of the same retraining.
    """

    blocks: int
    epochs: int
    kept_s: float
    anew_s: float
    faster: float
    epoch_faster: float
    trimmed_faster: float
    kept_accuracy: float
    anew_accuracy: float
    kept_after: float
    anew_after: float
    largest_difference: float


Ways = tuple[Run, Run, Run]
"""Kept, anew, and whole."""

METHODS = (
    TrainingMethod(),
    TrainingMethod(keep_activations=False),
    TrainingMethod(trim_kernels=False),
)


def cases(fleet: FleetConfig, base: EdgeModel, windows: Sequence[int], seed: int) -> Iterator[Case]:
    """Yields the windows of all cameras."""
    classes = fleet_classes(fleet)
    for place, stream in enumerate(fleet.streams):
        if not isinstance(stream.source, CitySpec):
            raise UserError(f"{stream.id}: only cameras of the synthetic city know what is true")
        seen = windows_of(stream.source, classes, fleet.window_s, max(windows) + 2, EVERY)
        for window in windows:
            before, labels = (
                sample(one, fleet.golden.labels_per_window, seed + place)
                for one in seen[window - 1 : window + 1]
            )
            training, validation = split_by_track_and_time(labels)
            memory = ExemplarMemory().update_exemplars(split_by_track_and_time(before)[0])
            yield Case(training, validation, memory, seen[window + 1])


def every_way(case: Case, base: EdgeModel, config: RetrainConfig, seed: int) -> Ways:
    """Runs the same retraining in all ways, epoch by epoch in turn."""
    ways = [
        Retraining(
            base,
            config,
            RetrainingData(case.training, case.validation, base.classes, memory=case.memory, seed=seed),
            method=method,
        )
        for method in METHODS
    ]
    times: list[list[float]] = [[] for _ in ways]
    curves: list[list[float]] = [[] for _ in ways]
    for step in range(config.epochs + 1):
        for way, seconds, curve in zip(ways, times, curves, strict=True):
            took_s, reached = timed(way.prepare_training if step == 0 else partial(epoch_of, way))
            seconds.append(took_s)
            curve.append(reached)
    kept, anew, whole = (
        Run(seconds[0], tuple(seconds[1:]), tuple(curve), accuracy(way.model(), case.following))
        for way, seconds, curve in zip(ways, times, curves, strict=True)
    )
    return kept, anew, whole


def epoch_of(retraining: Retraining) -> float:
    """Runs one epoch and returns the validation accuracy after it."""
    return retraining.run_epoch().validation_accuracy


def timed(work: Callable[[], float]) -> tuple[float, float]:
    """Returns the thread time of the work in seconds, and its result."""
    began_s = time.thread_time()
    given = work()
    return time.thread_time() - began_s, given


def row_of(blocks: int, epochs: int, windows: Sequence[Ways]) -> Row:
    """Returns means over the windows, of the first ``epochs`` epochs."""
    kept, anew, whole = zip(*windows, strict=True)
    training_s = [fmean(run.prepare_s + sum(run.epochs_s[:epochs]) for run in way) for way in (kept, anew)]
    epoch_s = [fmean(fmean(run.epochs_s[:epochs]) for run in way) for way in (kept, anew, whole)]
    return Row(
        blocks,
        epochs,
        *training_s,
        faster=training_s[1] / training_s[0],
        epoch_faster=epoch_s[1] / epoch_s[0],
        trimmed_faster=epoch_s[2] / epoch_s[0],
        kept_accuracy=fmean(run.curve[epochs] for run in kept),
        anew_accuracy=fmean(run.curve[epochs] for run in anew),
        kept_after=fmean(run.after for run in kept),
        anew_after=fmean(run.after for run in anew),
        largest_difference=max(
            abs(ours - theirs)
            for one, *others in windows
            for other in others
            for ours, theirs in zip(one.curve, other.curve, strict=True)
        ),
    )


def main(
    blocks: Annotated[
        list[int] | None,
        typer.Option(
            min=0, max=5, help="That train; may be repeated; 0 and 1 if not named, with --full 2 as well."
        ),
    ] = None,
    full: Full = False,
    seed: Seed = 0,
    json_to: Json = None,
) -> None:
    """Time retrainings with the feature cache and trimmed kernels, and without."""
    one_thread()
    fleet = load_fleet(shipped_path(DEFAULT_FLEET))
    base = base_model(fleet, seed)
    windows = ALL_WINDOWS if full else WINDOWS
    most = max(fleet.retraining.epochs)
    trained = sorted(set(blocks or (ALL_BLOCKS if full else BLOCKS)))
    windows_of_blocks: dict[int, list[Ways]] = {count: [] for count in trained}
    with open_output(json_to) as out:
        total = len(fleet.streams) * len(windows) * len(trained)
        with Progress(console=out.console, transient=True, disable=not out.console.is_terminal) as bars:
            task = bars.add_task("training", total=total)
            for case in cases(fleet, base, windows, seed):
                for count in trained:
                    config = RetrainConfig(most, fleet.retraining.batch_sizes[0], 0, count, 1.0)
                    windows_of_blocks[count].append(every_way(case, base, config, seed))
                    bars.advance(task)
        rows = [
            row_of(count, epochs, windows_of_blocks[count])
            for count in trained
            for epochs in sorted(fleet.retraining.epochs)
        ]
        counted = len(fleet.streams) * len(windows)
        title = f"Activations kept, or made anew; kernels trimmed, or whole; {counted} windows"
        publish_rows(out, title, rows, windows=counted, seed=seed)


if __name__ == "__main__":
    run(
        main,
        "python experiments/bench_training.py",
        "python experiments/bench_training.py --blocks 0 --json -",
        "python experiments/bench_training.py --full",
    )
