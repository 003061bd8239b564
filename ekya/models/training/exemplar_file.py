"""File of a stream's exemplars, so that a restarted trainer remembers what it learnt from."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.frames import FrameObjects, LabelledFrames
from ekya.models.training.labelled import Examples, LabelledCrops
from ekya.system.files import write_bytes_atomic

_LOG = logging.getLogger(__name__)
_CROPS, _FRAMES = "crops", "frames"


def save_exemplars(path: Path, memory: ExemplarMemory) -> None:
    """Writes the exemplars of a memory that has any, as safetensors.

    Raises:
        UserError: full disk, no permission and the like.
    """
    columns: dict[str, NDArray[Any]]
    match memory.kept:
        case LabelledCrops() as crops:
            columns = {"images": crops.crops, "classes": crops.classes}
            written = _written(_CROPS, (), crops, columns)
        case LabelledFrames() as frames:
            objects = frames.objects
            columns = {
                "images": frames.images,
                "boxes": np.concatenate([of.boxes for of in objects]),
                "classes": np.concatenate([of.classes for of in objects]),
                "doubtful": np.concatenate([of.doubtful for of in objects]),
                "objects": np.array([len(of.classes) for of in objects], np.int64),
                "doubts": np.array([len(of.doubtful) for of in objects], np.int64),
            }
            written = _written(_FRAMES, frames.names, frames, columns)
        case _:
            return
    write_bytes_atomic(path, written)


def load_exemplars(path: Path, memory: ExemplarMemory) -> ExemplarMemory:
    """Returns the memory with the exemplars of a file, as it is where there is none that can be read."""
    if not path.is_file():
        return memory
    try:
        with safe_open(path, framework="numpy") as file:
            columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            kept = _examples((file.metadata() or {}).get("kind", ""), file.metadata() or {}, columns)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        _LOG.warning("%s: the exemplars of earlier windows cannot be read (%s)", path, error)
        return memory
    return ExemplarMemory(memory.budget, kept)


def _written(
    kind: str, names: tuple[str, ...], examples: Examples, columns: dict[str, NDArray[Any]]
) -> bytes:
    given = {**columns, "tracks": examples.tracks, "t_us": examples.t_us}
    whole = {name: np.ascontiguousarray(column) for name, column in given.items()}
    # Metadata of safetensors are strings.
    content: bytes = save(whole, {"kind": kind, "names": "\n".join(names)})
    return content


def _examples(kind: str, about: dict[str, str], columns: dict[str, NDArray[Any]]) -> Examples:
    images, tracks, t_us = (columns[name] for name in ("images", "tracks", "t_us"))
    if kind == _CROPS:
        return LabelledCrops(images, columns["classes"], tracks, t_us)
    if kind != _FRAMES:
        raise ValueError(f"unknown kind {kind!r}")
    objects = tuple(
        FrameObjects(boxes, classes, doubtful)
        for boxes, classes, doubtful in zip(
            _parts(columns["boxes"], columns["objects"]),
            _parts(columns["classes"], columns["objects"]),
            _parts(columns["doubtful"], columns["doubts"]),
            strict=True,
        )
    )
    names = tuple(about["names"].split("\n"))
    return LabelledFrames(images, objects, names, tracks, t_us)


def _parts(rows: NDArray[Any], counts: NDArray[Any]) -> list[NDArray[Any]]:
    return np.split(rows, np.cumsum(counts)[:-1])
