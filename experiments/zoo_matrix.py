"""Gain of choosing among kept models on a few labels, on CSBAD's public matrix of nine cameras.

    python experiments/zoo_matrix.py cross_camera_map.csv

The matrix has the mAP of nine students, each trained on one camera (rows), on all nine cameras (columns). A
camera whose scene is new serves the student of a random other one. It tries students on n labelled objects
and serves another one, or not, by a rule:

- *kept*: the zoo's, ``why_offered``, where nothing is known of a student on the camera before;
- *12 points*: the margin for detectors without a zoo, which concludes nothing from fewer than eight objects;
- *best*: whichever gets most objects right.

The matrix has no answers to single objects, so a trial is modelled: each of n objects is right with the
student's mAP as probability, independently of the other students. Three students are drawn at random, since
the matrix has no pictures to find near scenes by; or all eight are tried. In a scene that returns, the
camera's own student is one of the three, and its mAP is what is known of it there. Each seed is a mean over
all cameras and many draws; the interval is that of the mean over seeds.
"""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from recipe import RESULTS, Json, Out, as_csv, run
from rich.table import Table
from scipy.stats import t as student_t

from ekya.cli.output import output
from ekya.core.errors import UserError
from ekya.core.weights import Compared
from ekya.planning.adaptation.kept_models import (
    MOST_CANDIDATES,
    OF_ANOTHER_SCENE,
    expected_accuracies,
    why_offered,
)
from ekya.planning.adaptation.shadow_gate import why_adopted
from ekya.system.files import write_text_atomic

OBJECTS = (4, 8, 12, 20, 40)
DRAWS = 200
"""Trials of each camera and seed."""

Rule = Callable[[Compared, float], bool]
"""Tells whether a student serves, from a comparison and what was known of its accuracy."""

RULES: dict[str, Rule] = {
    "kept": lambda compared, before: (
        why_offered(compared, expected_accuracies(compared, before, OF_ANOTHER_SCENE)) is not None
    ),
    "12 points": lambda compared, _: why_adopted(compared) is not None,
    "best": lambda compared, _: compared.new > compared.old,
}


@dataclass(frozen=True, slots=True)
class Served:
    """Mean mAP that serves after a trial.

    Attributes:
        tried: number of students; those of a scene that returns have the camera's own among them.
        returns: whether the scene returns.
        rule: that decides.
        objects: labelled, on which they are tried.
        map: mean over the seeds; ``low`` and ``high`` are the ends of its 95% interval.
    """

    tried: int
    returns: bool
    rule: str
    objects: int
    map: float
    low: float
    high: float


def main(
    matrix: Annotated[Path, typer.Argument(metavar="CSV", help="mAP of each student (row) on each camera.")],
    seeds: Annotated[int, typer.Option(min=2, help="Number of seeds.")] = 10,
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Measure what choosing among kept models on a few labels brings, on a matrix of cameras."""
    scores = read_matrix(matrix)
    served = [
        served_by(scores, tried, returns, rule, objects, seeds)
        for returns, tried in ((False, MOST_CANDIDATES), (False, len(scores) - 1), (True, MOST_CANDIDATES))
        for rule in RULES
        for objects in OBJECTS
    ]
    own, random, best = anchors(scores)
    with output(json_to) as ready:
        ready.report(
            {
                "own": own,
                "random_other": random,
                "best_other": best,
                "served": [asdict(one) for one in served],
            }
        )
        ready.console.print(f"own {own:.2f}, a random other {random:.2f}, the best other {best:.2f} mAP")
        ready.console.print(_table(served))
    write_text_atomic(out / "zoo_matrix.csv", as_csv([asdict(one) for one in served]))


def read_matrix(path: Path) -> NDArray[np.float64]:
    """Returns the mAP of each student on each camera.

    Raises:
        UserError: the file is no such matrix.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        scores = np.array([[float(value) for value in row[1:]] for row in rows[1:]])
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: is no matrix of mAP ({error}); name CSBAD's cross_camera_map.csv"
        ) from error
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] or len(scores) <= MOST_CANDIDATES + 1:
        raise UserError(f"{path}: has not as many cameras as students; name CSBAD's cross_camera_map.csv")
    return scores


def anchors(scores: NDArray[np.float64]) -> tuple[float, float, float]:
    """Returns the mean mAP of the own student, of a random other one, and of the best other one."""
    others = np.where(np.eye(len(scores), dtype=bool), np.nan, scores)
    return (
        float(np.diag(scores).mean()),
        float(np.nanmean(others)),
        float(np.nanmax(others, axis=0).mean()),
    )


def served_by(
    scores: NDArray[np.float64], tried: int, returns: bool, rule: str, objects: int, seeds: int
) -> Served:
    """Returns the mean mAP after trials of ``tried`` students on ``objects`` objects."""
    means = [
        _one_seed(scores, tried, returns, RULES[rule], objects, np.random.default_rng((seed, objects, tried)))
        for seed in range(seeds)
    ]
    half = float(student_t.ppf(0.975, seeds - 1)) * stdev(means) / math.sqrt(seeds)
    mean = fmean(means)
    return Served(tried, returns, rule, objects, mean, mean - half, mean + half)


def _one_seed(
    scores: NDArray[np.float64],
    tried: int,
    returns: bool,
    rule: Rule,
    objects: int,
    rng: np.random.Generator,
) -> float:
    served = []
    for camera in range(len(scores)):
        others = np.delete(np.arange(len(scores)), camera)
        for _ in range(DRAWS):
            drawn = rng.permutation(others).tolist()
            serves, candidates = drawn[0], [*([camera] if returns else []), *drawn[1:], drawn[0]][:tried]
            right = {
                who: rng.binomial(objects, scores[who, camera]) / objects for who in (serves, *candidates)
            }
            known = {
                who: float(scores[who, camera]) if who == camera else OF_ANOTHER_SCENE for who in candidates
            }
            compared = {who: Compared(right[who], right[serves], objects) for who in candidates}
            best = max(
                candidates,
                key=lambda who: expected_accuracies(compared[who], known[who], OF_ANOTHER_SCENE).new,
            )
            served.append(scores[best if rule(compared[best], known[best]) else serves, camera])
    return fmean(served)


def _table(served: Sequence[Served]) -> Table:
    table = Table(title="mAP that serves after a trial", title_justify="left")
    for heading in ("students tried", "rule", *(f"{objects} objects" for objects in OBJECTS)):
        table.add_column(heading)
    for at in range(0, len(served), len(OBJECTS)):
        row = served[at : at + len(OBJECTS)]
        what = f"{row[0].tried}{', one its own' if row[0].returns else ''}"
        table.add_row(what, row[0].rule, *(f"{one.map:.3f} ± {one.high - one.map:.3f}" for one in row))
    return table


if __name__ == "__main__":
    run(main, "python experiments/zoo_matrix.py cross_camera_map.csv")
