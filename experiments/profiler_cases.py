"""Cases of ``profiler_truths.py``, stored (45 MB a case, mostly the model) and micro-profiled."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from profiler_truths import Case, Given, city_of, is_steady
from pydantic import TypeAdapter

from ekya.config.fleet_file import FleetConfig
from ekya.core.profile import FamilyCurve, Profiler, family_of
from ekya.models.edge.checkpoints import load_model, save_model
from ekya.models.golden.golden_model import GoldenModel
from ekya.models.training.labelled import LabelledCrops
from ekya.pipeline.collector import WindowMaterial
from ekya.pipeline.costs import CostCard
from ekya.pipeline.inference import Classifier
from ekya.pipeline.labels import LabelledPart, StreamLabels
from ekya.pipeline.setup import stream_setup
from ekya.pipeline.stream_preparation import StreamPreparation, counted_curve
from ekya.planning.profiling.pruning import ENOUGH_ACCURACY
from ekya.system.files import atomic_path, write_bytes_atomic

LIST = "cases.json"
"""Written last, so that a folder with this file is complete."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """Part of a case that is neither crops nor weights; attributes are those of ``Case``."""

    seed: int
    place: int
    stream: str
    window: int
    labelled_window: int
    exemplars: int
    before: float
    here: float
    asked_objects: int
    given: tuple[Given, ...]

    @property
    def name(self) -> str:
        return f"{self.stream}-{self.window}"


_LISTED: TypeAdapter[list[_Listed]] = TypeAdapter(list[_Listed])


def is_whole(folder: Path) -> bool:
    """Returns whether all cases of a seed are stored."""
    return (folder / LIST).is_file()


def save_cases(folder: Path, found: Iterable[Case]) -> Iterator[Case]:
    """Writes each case and yields it."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for case in found:
        row = _Listed(
            case.seed,
            case.place,
            case.stream,
            case.window,
            case.labels.window,
            case.exemplars,
            case.before,
            case.here,
            case.asked_objects,
            case.given,
        )
        save_model(case.model, folder / f"{row.name}.safetensors")
        _save_labels(folder / f"{row.name}.npz", case.labels)
        listed.append(row)
        yield case
    write_bytes_atomic(folder / LIST, _LISTED.dump_json(listed))


def load_cases(folder: Path) -> Iterator[Case]:
    """Reads the cases that ``save_cases`` wrote, one at a time."""
    for row in _LISTED.validate_json((folder / LIST).read_bytes()):
        yield Case(
            row.seed,
            row.place,
            row.stream,
            row.window,
            load_model(folder / f"{row.name}.safetensors"),
            _load_labels(folder / f"{row.name}.npz", row.labelled_window),
            row.exemplars,
            row.before,
            row.here,
            row.asked_objects,
            row.given,
        )


def _save_labels(path: Path, labels: StreamLabels) -> None:
    arrays = {}
    for name, part in (("training", labels.training), ("validation", labels.validation)):
        arrays |= {f"{name}_{column}": values for column, values in _columns(part).items()}
    with atomic_path(path) as beside, beside.open("wb") as file:
        np.savez(file, **arrays)


def _columns(part: LabelledPart) -> dict[str, NDArray[Any]]:
    crops = part.examples
    return {
        "crops": crops.crops,
        "classes": crops.classes,
        "tracks": crops.tracks,
        "t_us": crops.t_us,
        "frames": part.frames,
        "boxes": part.boxes,
    }


def _load_labels(path: Path, window: int) -> StreamLabels:
    with np.load(path) as file:
        training, validation = (
            LabelledPart(
                LabelledCrops(
                    *(file[f"{name}_{column}"] for column in ("crops", "classes", "tracks", "t_us"))
                ),
                file[f"{name}_frames"],
                file[f"{name}_boxes"],
            )
            for name in ("training", "validation")
        )
    return StreamLabels(window, training, validation)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One stream and window: the micro-profiles, and the true outcome of every γ.

    Attributes:
        fleet, seed: of the case.
        steady: whether the script changes nothing in the window that follows the labels.
        serving_accuracy: of the model that is retrained, on the validation part.
        before: of the same model, in the window that follows.
        curves, trial_gpu_s: of the micro-profiler, and their cost.
        plain_curves, plain_gpu_s: likewise of the paper's plain version.
        given: true outcomes.
    """

    fleet: str
    seed: int
    steady: bool
    training_crops: int
    validation_crops: int
    serving_accuracy: float
    before: float
    curves: tuple[FamilyCurve, ...]
    trial_gpu_s: float
    plain_curves: tuple[FamilyCurve, ...]
    plain_gpu_s: float
    given: tuple[Given, ...]

    @property
    def in_need(self) -> bool:
        """True if a run would micro-profile it."""
        return self.serving_accuracy < ENOUGH_ACCURACY


def profile_case(fleet: FleetConfig, case: Case, golden: GoldenModel, card: CostCard) -> Recorded:
    """Micro-profiles a case in both ways."""
    settings = stream_setup(fleet, case.place, city_of(fleet.streams[case.place]).fps, case.seed).settings
    serving = Classifier(case.model, settings.classes)
    nothing = WindowMaterial(case.labels.window, (), ())
    prepared = StreamPreparation(settings, nothing, serving, golden, case.exemplars)
    ours, trial_gpu_s = try_families(prepared, case, Profiler.EKYA, card)
    plain, plain_gpu_s = try_families(prepared, case, Profiler.PAPER, card)
    return Recorded(
        fleet.name,
        case.seed,
        is_steady(fleet, case.place, case.window),
        len(case.labels.training.examples),
        len(case.labels.validation.examples),
        prepared.serving_accuracy(case.labels),
        case.before,
        ours,
        trial_gpu_s,
        plain,
        plain_gpu_s,
        case.given,
    )


def try_families(
    prepared: StreamPreparation, case: Case, profiler: Profiler, card: CostCard
) -> tuple[tuple[FamilyCurve, ...], float]:
    """Returns every family's curve, and their total GPU-seconds."""
    by = replace(prepared, settings=replace(prepared.settings, profiler=profiler))
    curves, spent = [], 0.0
    for rank, family in enumerate(sorted({family_of(given.config) for given in case.given})):
        trial = by.trial(family, case.labels, clock=float, first=rank == 0)
        curve, gpu_s = counted_curve(trial, card)
        curves.append(curve)
        spent += gpu_s
    return tuple(curves), spent
