"""What it saves to keep what frozen blocks make of each crop: the same retrainings with and without.

    python experiments/bench_training.py
    python experiments/bench_training.py --blocks 0 --json -
    python experiments/bench_training.py --full

Windows of the default fleet's cameras: as many labels as it takes, parted as in a run, exemplars of the
window before, and its base model. Each retraining runs twice, from the same start and with the same seed:
once each crop passes the frozen blocks and what comes out is kept (``Retraining``'s own way), and once it
passes them anew in every epoch. The two take turns, epoch by epoch, and times are of the thread, so that
their ratio holds on a busy machine. The first epochs of a long retraining are those of a short one, so one
of the most epochs shows all.

One window of each camera and two kinds of γ, about a minute; ``--full`` takes three of each, and two blocks.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Annotated

# Before numpy is imported: what one core can do is measured.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import typer
from city_windows import one_thread, sample, windows_of
from recipe import Full, Json, Seed, run
from rich.progress import Progress
from rich.table import Table

from ekya.commands.output import output
from ekya.config import DEFAULT_FLEET, FleetConfig, load_fleet
from ekya.core.configs import RetrainConfig
from ekya.errors import UserError
from ekya.learning.edge import EdgeModel
from ekya.learning.labelled import LabelledCrops, split_by_track_and_time
from ekya.learning.memory import ExemplarMemory
from ekya.learning.predictor import accuracy
from ekya.learning.trainer import Retraining
from ekya.setup import base_model, fleet_classes
from ekya.shipped import shipped_path
from ekya.streams.city import CitySpec

BLOCKS, ALL_BLOCKS = (0, 1), (0, 1, 2)
WINDOWS, ALL_WINDOWS = (1,), (1, 2, 3)
"""Whose labels train: the one before gives exemplars, the one after is asked about."""

EVERY = 3
"""Objects of every third frame are looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A window of a camera: what is learnt from it, and what is asked afterwards."""

    training: LabelledCrops
    validation: LabelledCrops
    memory: ExemplarMemory
    following: LabelledCrops


@dataclass(frozen=True, slots=True)
class Run:
    """One retraining.

    Attributes:
        prepare_s: of the thread, before the first epoch.
        epochs_s: of the thread, each epoch.
        curve: validation accuracy before and after each epoch.
        after: accuracy of the last weights on the objects of the window that follows.
    """

    prepare_s: float
    epochs_s: tuple[float, ...]
    curve: tuple[float, ...]
    after: float


@dataclass(frozen=True, slots=True)
class Row:
    """Retrainings of so many blocks and epochs, a mean over the windows.

    Attributes:
        blocks, epochs: of γ.
        kept_s, anew_s: of the whole retraining, with activations kept and with crops passed anew.
        faster, epoch_faster: how many times faster the one is than the other, whole and by the epoch.
        kept_accuracy, anew_accuracy: validation accuracy after the last epoch.
        kept_after, anew_after: accuracy in the window that follows, after the most epochs.
        largest_difference: of two validation accuracies after the same epoch of the same retraining.
    """

    blocks: int
    epochs: int
    kept_s: float
    anew_s: float
    faster: float
    epoch_faster: float
    kept_accuracy: float
    anew_accuracy: float
    kept_after: float
    anew_after: float
    largest_difference: float


def cases(fleet: FleetConfig, base: EdgeModel, windows: Sequence[int], seed: int) -> Iterator[Case]:
    """The windows of all cameras."""
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
            memory = ExemplarMemory().update(base, split_by_track_and_time(before)[0])
            yield Case(training, validation, memory, seen[window + 1])


def both_ways(case: Case, base: EdgeModel, config: RetrainConfig, seed: int) -> tuple[Run, Run]:
    """The same retraining with activations kept, and with crops passed anew; they take turns."""
    ways = [
        Retraining(
            base,
            config,
            case.training,
            case.validation,
            memory=case.memory,
            classes=base.classes,
            seed=seed,
            keep_activations=kept,
        )
        for kept in (True, False)
    ]
    times: list[list[float]] = [[], []]
    curves: list[list[float]] = [[], []]
    for step in range(config.epochs + 1):
        for way, seconds, curve in zip(ways, times, curves, strict=True):
            took_s, reached = timed(
                way.prepare if step == 0 else lambda way=way: way.run_epoch().validation_accuracy
            )
            seconds.append(took_s)
            curve.append(reached)
    kept, anew = (
        Run(seconds[0], tuple(seconds[1:]), tuple(curve), accuracy(way.model(), case.following))
        for way, seconds, curve in zip(ways, times, curves, strict=True)
    )
    return kept, anew


def timed(work: Callable[[], float]) -> tuple[float, float]:
    """Seconds of the thread, and what the work gave."""
    began_s = time.thread_time()
    given = work()
    return time.thread_time() - began_s, given


def row_of(blocks: int, epochs: int, pairs: Sequence[tuple[Run, Run]]) -> Row:
    """The mean over the windows, of the first so many epochs."""
    kept_s, anew_s = (
        fmean(pair[way].prepare_s + sum(pair[way].epochs_s[:epochs]) for pair in pairs) for way in (0, 1)
    )
    kept_epoch_s, anew_epoch_s = (
        fmean(fmean(pair[way].epochs_s[:epochs]) for pair in pairs) for way in (0, 1)
    )
    return Row(
        blocks=blocks,
        epochs=epochs,
        kept_s=kept_s,
        anew_s=anew_s,
        faster=anew_s / kept_s,
        epoch_faster=anew_epoch_s / kept_epoch_s,
        kept_accuracy=fmean(kept.curve[epochs] for kept, _ in pairs),
        anew_accuracy=fmean(anew.curve[epochs] for _, anew in pairs),
        kept_after=fmean(kept.after for kept, _ in pairs),
        anew_after=fmean(anew.after for _, anew in pairs),
        largest_difference=max(
            abs(one - other)
            for kept, anew in pairs
            for one, other in zip(kept.curve, anew.curve, strict=True)
        ),
    )


def shown(rows: Sequence[Row], windows: int) -> Table:
    """The rows for people."""
    table = Table(title=f"Retraining with what frozen blocks give kept, and passed anew: {windows} windows")
    for name in ("blocks", "epochs", "kept", "anew", "faster", "an epoch", "accuracy", "next window"):
        table.add_column(name, justify="right", no_wrap=True)
    for place, row in enumerate(rows):
        if place and rows[place - 1].blocks != row.blocks:
            table.add_section()
        table.add_row(
            str(row.blocks),
            str(row.epochs),
            f"{row.kept_s:.2f} s",
            f"{row.anew_s:.2f} s",
            f"{row.faster:.1f}x",
            f"{row.epoch_faster:.1f}x",
            f"{row.kept_accuracy:.1%} {row.anew_accuracy:.1%}",
            f"{row.kept_after:.1%} {row.anew_after:.1%}",
        )
    return table


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
    """Time retrainings with activations at the freeze boundary kept, and without."""
    one_thread()
    fleet = load_fleet(shipped_path(DEFAULT_FLEET))
    base = base_model(fleet, seed)
    windows = ALL_WINDOWS if full else WINDOWS
    most = max(fleet.retraining.epochs)
    trained = sorted(set(blocks or (ALL_BLOCKS if full else BLOCKS)))
    pairs: dict[int, list[tuple[Run, Run]]] = {count: [] for count in trained}
    with output(json_to) as out:
        total = len(fleet.streams) * len(windows) * len(trained)
        with Progress(console=out.console, transient=True, disable=not out.console.is_terminal) as bars:
            task = bars.add_task("training", total=total)
            for case in cases(fleet, base, windows, seed):
                for count in trained:
                    config = RetrainConfig(most, fleet.retraining.batch_sizes[0], 0, count, 1.0)
                    pairs[count].append(both_ways(case, base, config, seed))
                    bars.advance(task)
        rows = [
            row_of(count, epochs, pairs[count])
            for count in trained
            for epochs in sorted(fleet.retraining.epochs)
        ]
        counted = len(fleet.streams) * len(windows)
        out.report({"windows": counted, "seed": seed, "rows": [asdict(row) for row in rows]})
        out.console.print(shown(rows, counted))


if __name__ == "__main__":
    run(
        main,
        "python experiments/bench_training.py",
        "python experiments/bench_training.py --blocks 0 --json -",
        "python experiments/bench_training.py --full",
    )
