"""F1 of detectors adapted to one camera, on that camera and on the others.

    python experiments/detect_cross.py --student FastestDet.onnx --golden deimv2.onnx street.mp4 gate.mp4

Each video is one camera. The student is retrained once on labelled frames of its first third, with the most
thorough γ of a run's default Γ and the number of labels of a window. The base and every adapted student are
tested on the last half of each video; the golden detector's objects count as the truth. An adapted student
that does worse than the base on other cameras is why each camera has a student of its own.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

# Must be set before numpy is imported: trainings on a CPU use one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import typer
from city_windows import one_thread
from detect_clips import default_gamma, first_and_last, labelled_clip, retrained
from detect_options import Every, Golden, Labelled, Side, Student
from detect_scores import f1_of
from recipe import Json, run
from rich.table import Table

from ekya.cli.options import distinct, numbers
from ekya.cli.output import output
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.detection.weights import open_detector_weights
from ekya.models.edge.model import EdgeModel
from ekya.models.training.frames import LabelledFrames
from ekya.streams.synthetic.scene import KINDS

BASE = "not adapted"

log = logging.getLogger("detect_cross")


@dataclass(frozen=True, slots=True)
class Cell:
    """F1 of a student on a camera.

    Attributes:
        adapted_on: the camera that it was retrained on, or ``BASE``.
        tested_on: the camera.
        f1: in [0, 1], the mean over the seeds.
    """

    adapted_on: str
    tested_on: str
    f1: float


@dataclass(frozen=True, slots=True)
class Means:
    """Means over the cells of a matrix.

    Attributes:
        base: of the student that is not adapted.
        own: of adapted students on their own camera.
        others: of adapted students on the other cameras; None for one camera.
    """

    base: float
    own: float
    others: float | None


def cells_of(
    base: EdgeModel, clips: Mapping[str, LabelledFrames], labelled: int, seeds: Sequence[int]
) -> list[Cell]:
    """Returns the matrix, row by row, the base first."""
    gamma = default_gamma()
    parts = {name: first_and_last(frames, labelled) for name, frames in clips.items()}
    tests = {name: test for name, (_, test) in parts.items()}
    cells = [Cell(BASE, name, f1_of(base, test)) for name, test in tests.items()]
    for adapted_on, (training, _) in parts.items():
        models = [retrained(base, training, gamma, seed) for seed in seeds]
        log.info("adapted to %s on %d frames", adapted_on, len(training))
        cells += [
            Cell(adapted_on, name, fmean(f1_of(model, test) for model in models))
            for name, test in tests.items()
        ]
    return cells


def means_of(cells: Sequence[Cell]) -> Means:
    """Returns the means of a matrix."""
    others = [cell.f1 for cell in cells if cell.adapted_on not in (BASE, cell.tested_on)]
    return Means(
        base=fmean(cell.f1 for cell in cells if cell.adapted_on == BASE),
        own=fmean(cell.f1 for cell in cells if cell.adapted_on == cell.tested_on),
        others=fmean(others) if others else None,
    )


def table_of(cells: Sequence[Cell]) -> Table:
    """Returns the matrix as a table: a row for each student, a column for each camera."""
    tested = list(dict.fromkeys(cell.tested_on for cell in cells))
    table = Table(title="F1 on the last half of")
    for name in ("adapted on", *tested):
        table.add_column(name, overflow="fold")
    by_place = {(cell.adapted_on, cell.tested_on): cell.f1 for cell in cells}
    for adapted_on in dict.fromkeys(cell.adapted_on for cell in cells):
        table.add_row(adapted_on, *(f"{by_place[adapted_on, name]:.1%}" for name in tested))
    return table


def main(
    videos: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="One camera each.")],
    student: Student,
    golden: Golden,
    side: Side = 352,
    every: Every = 6,
    labelled: Labelled = 24,
    seeds: Annotated[str, typer.Option(metavar="N,...", help="Seeds whose mean is taken.")] = "11,12,13",
    json_to: Json = None,
) -> None:
    """Measure what a detector that was adapted to one camera does on others."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    one_thread()
    names = [video.stem for video in videos]
    distinct("videos", names)
    with output(json_to) as out:
        base = open_detector_weights(student, FASTESTDET, KINDS)
        clips = {
            name: labelled_clip(video, golden, side, every) for name, video in zip(names, videos, strict=True)
        }
        cells = cells_of(base, clips, labelled, numbers(seeds))
        means = means_of(cells)
        out.report({"cells": [asdict(cell) for cell in cells], "means": asdict(means)})
        out.console.print(table_of(cells))
        others = "" if means.others is None else f", {means.others:.1%} on the others"
        out.say(f"Mean: {means.base:.1%} not adapted, {means.own:.1%} on its own camera{others}")


if __name__ == "__main__":
    run(main, "python experiments/detect_cross.py --student FastestDet.onnx --golden deimv2.onnx a.mp4 b.mp4")
