"""Storage of the cases of ``profiler_truths.py``: a folder a seed, 45 MB a case, mostly the model."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from profiler_truths import Case, Given
from pydantic import TypeAdapter

from ekya.models.edge.checkpoints import load_model, save_model
from ekya.models.training.labelled import LabelledCrops
from ekya.pipeline.labels import LabelledPart, StreamLabels
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
