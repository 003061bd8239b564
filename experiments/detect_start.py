"""F1 of cameras that start from another camera's model, beside those that start from the base.

    python experiments/detect_start.py --student FastestDet.onnx --golden deimv2.onnx street.mp4 gate.mp4

Each half of a video is one camera. The student is retrained for each camera on labelled frames of its first
third and tested on its last half; the golden detector's objects count as the truth. Each camera then tries
the models of all others on its labels, as a run does where it still serves the base model.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

# Must be set before numpy is imported: trainings on a CPU use one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import typer
from city_windows import one_thread
from detect_clips import default_gamma, first_and_last, labelled_clip, retrained
from detect_options import Every, Golden, Labelled, Side, Student
from detect_scores import f1_of
from numpy.typing import NDArray
from recipe import Json, run
from rich.table import Table

from ekya.cli.options import distinct
from ekya.cli.output import output
from ekya.core.weights import Compared
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.detection.weights import open_detector_weights
from ekya.models.edge.model import EdgeModel
from ekya.models.training.frames import LabelledFrames, distinct_objects
from ekya.planning.adaptation.shadow_gate import LEAST_OBJECTS, why_adopted
from ekya.streams.synthetic.scene import KINDS

HALVES = 2

log = logging.getLogger("detect_start")


@dataclass(frozen=True, slots=True)
class Pair:
    """A camera and the model of another one; each F1 is in [0, 1], on the camera's last half.

    Attributes:
        camera, of: the camera, and the other one.
        compared: on the camera's labels.
        passes: whether the gate lets the other's model serve.
        base: F1 of the base model.
        at_once: F1 of the other's model.
    """

    camera: str
    of: str
    compared: Compared
    passes: bool
    base: float
    at_once: float


@dataclass(frozen=True, slots=True)
class Adoption:
    """The pair that a run takes of a camera, and what a retraining makes of it.

    Attributes:
        from_base, from_other: F1 after a retraining from the base model, and from the other's.
    """

    pair: Pair
    from_base: float
    from_other: float


def halves_of(name: str, frames: LabelledFrames) -> dict[str, LabelledFrames]:
    """Returns the halves of a clip as two cameras."""
    parts = np.array_split(np.arange(len(frames)), HALVES)
    return {f"{name} {number}": frames.take(rows) for number, rows in enumerate(parts, start=1)}


def pairs_of(
    base: EdgeModel,
    models: Mapping[str, EdgeModel],
    parts: Mapping[str, tuple[LabelledFrames, LabelledFrames]],
) -> list[Pair]:
    """Returns all pairs of cameras, except where the labels show too few objects to conclude anything."""
    pairs = []
    for camera, (labels, test) in parts.items():
        objects = distinct_objects(labels)
        if objects < LEAST_OBJECTS:
            log.info("%s: too few objects", camera)
            continue
        old, before = f1_of(base, labels), f1_of(base, test)
        for of, model in models.items():
            if of != camera:
                compared = Compared(f1_of(model, labels), old, objects)
                passes = why_adopted(compared) is not None
                pairs.append(Pair(camera, of, compared, passes, before, f1_of(model, test)))
        log.info("%s: %d models tried", camera, len(models) - 1)
    return pairs


def taken(pairs: Sequence[Pair]) -> list[Pair]:
    """Returns the pair that a run takes of each camera for which any passes: the best on its labels."""
    best: dict[str, Pair] = {}
    for pair in pairs:
        known = best.get(pair.camera)
        if pair.passes and (known is None or pair.compared.new > known.compared.new):
            best[pair.camera] = pair
    return list(best.values())


def said(pairs: Sequence[Pair]) -> str:
    """Returns in words how often another's model is better, blindly and through the gate."""
    gains = np.array([100 * (pair.at_once - pair.base) for pair in pairs])
    through = gains[[pair.passes for pair in pairs]]
    blind = (
        f"Of {len(gains)} pairs {(gains > 0).sum()} are better and {(gains < 0).sum()} worse, {_range(gains)}"
    )
    if not len(through):
        return f"{blind}; the gate lets none pass"
    better = f"{(through > 0).sum()} of them better, {_range(through)}, {through.mean():+.1f} in the mean"
    return f"{blind}; the gate lets {len(through)} pass, {better}"


def _range(gains: NDArray[np.float64]) -> str:
    return f"by {gains.min():+.1f} to {gains.max():+.1f} points"


def table_of(adoptions: Sequence[Adoption]) -> Table:
    """Returns the adoptions as a table."""
    table = Table(title="F1 on the last half")
    for title in ("camera", "takes over", "base", "at once", "retrained from the base", "from the other"):
        table.add_column(title, overflow="fold")
    for one in adoptions:
        figures = (one.pair.base, one.pair.at_once, one.from_base, one.from_other)
        table.add_row(one.pair.camera, one.pair.of, *(f"{figure:.1%}" for figure in figures))
    return table


def main(
    videos: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="Two cameras each.")],
    student: Student,
    golden: Golden,
    side: Side = 352,
    every: Every = 6,
    labelled: Labelled = 24,
    epochs: Annotated[int, typer.Option(min=1, help="Of a retraining.")] = 40,
    seed: Annotated[int, typer.Option(help="Of the retrainings.")] = 11,
    json_to: Json = None,
) -> None:
    """Measure what a camera gains by starting from another camera's model."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    one_thread()
    distinct("videos", [video.stem for video in videos])
    gamma = replace(default_gamma(), epochs=epochs)
    with output(json_to) as out:
        base = open_detector_weights(student, FASTESTDET, KINDS)
        parts = {
            camera: first_and_last(frames, labelled)
            for video in videos
            for camera, frames in halves_of(video.stem, labelled_clip(video, golden, side, every)).items()
        }
        models = {camera: retrained(base, labels, gamma, seed) for camera, (labels, _) in parts.items()}
        pairs = pairs_of(base, models, parts)
        adoptions = []
        for pair in taken(pairs):
            labels, test = parts[pair.camera]
            again = retrained(models[pair.of], labels, gamma, seed)
            adoptions.append(Adoption(pair, f1_of(models[pair.camera], test), f1_of(again, test)))
        out.report(
            {
                "pairs": [asdict(pair) for pair in pairs],
                "adoptions": [asdict(adoption) for adoption in adoptions],
            }
        )
        out.console.print(table_of(adoptions))
        if pairs:
            out.say(said(pairs))


if __name__ == "__main__":
    run(main, "python experiments/detect_start.py --student FastestDet.onnx --golden deimv2.onnx a.mp4 b.mp4")
