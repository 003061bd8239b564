"""File of what a training elsewhere needs: safetensors, which unlike pickle carry data only."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter
from safetensors.numpy import save
from torch import Tensor

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.frames import LabelledFrames
from ekya.models.training.labelled import LabelledCrops
from ekya.models.training.trainer import Compute, Retraining, RetrainingData
from ekya.models.weights import read_safetensors

_TOLD, _ARRAY = "training", "array"

_Samples = LabelledCrops | LabelledFrames


@dataclass(frozen=True, slots=True, eq=False)
class TrainingBundle:
    """All that a training needs. On equal machines it trains the same weights wherever it is, to the bit.

    Attributes:
        config: γ.
        start: checkpoint of the model to begin with and to distil from.
        data: to learn from.
        snapshot: of the training, to go on from; None begins with the first epoch.
    """

    config: RetrainConfig
    start: bytes
    data: RetrainingData
    snapshot: bytes | None = None

    def make_retraining(self, compute: Compute) -> Retraining:
        """Returns the training.

        Raises:
            UserError: the weights are damaged.
        """
        return Retraining(from_bytes(self.start), self.config, self.data, compute)


@dataclass(frozen=True, slots=True, eq=False)
class _Content:
    """A bundle as it is written."""

    config: RetrainConfig
    start: NDArray[np.uint8]
    snapshot: NDArray[np.uint8] | None
    training: _Samples
    validation: _Samples
    pooled: _Samples | None
    exemplars: _Samples | None
    budget: int
    classes: tuple[str, ...]
    seed: int


_CONTENT = TypeAdapter(tuple[_Content], config=ConfigDict(arbitrary_types_allowed=True))


def pack_bundle(bundle: TrainingBundle) -> bytes:
    """Returns a bundle as the bytes of a file."""
    data, memory = bundle.data, bundle.data.memory or ExemplarMemory()
    content: Any = _Content(
        bundle.config,
        _bytes(bundle.start),
        None if bundle.snapshot is None else _bytes(bundle.snapshot),
        data.training,  # type: ignore[arg-type]  # Examples are one or the other.
        data.validation,  # type: ignore[arg-type]
        data.pooled,  # type: ignore[arg-type]
        memory.exemplars(),  # type: ignore[arg-type]
        memory.budget,
        data.classes,
        data.seed,
    )
    arrays: dict[str, NDArray[Any]] = {}

    def told(value: object) -> object:
        """Returns what JSON knows; arrays go beside it."""
        if is_dataclass(value):
            return {one.name: getattr(value, one.name) for one in fields(value)}
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{type(value).__name__} is no part of a bundle")
        arrays[str(len(arrays))] = value
        return {_ARRAY: str(len(arrays) - 1)}

    said = json.dumps(content, default=told)
    return save(arrays, {_TOLD: said})


def read_bundle(path: Path) -> TrainingBundle:
    """Returns the bundle in a file.

    Raises:
        UserError: it holds none.
    """
    try:
        tensors, metadata = read_safetensors(path.read_bytes())
        said = json.loads(metadata[_TOLD], object_hook=lambda one: _in_place(one, tensors))
        (content,) = _CONTENT.validate_python((said,))
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise UserError(
            f"this is no training: {' '.join(str(error).split())[:200]}; send it again"
        ) from error
    memory = ExemplarMemory(content.budget, content.exemplars)
    data = RetrainingData(
        content.training, content.validation, content.classes, memory, content.seed, content.pooled
    )
    snapshot = None if content.snapshot is None else content.snapshot.tobytes()
    return TrainingBundle(content.config, content.start.tobytes(), data, snapshot)


def digest_of(content: bytes) -> str:
    """Returns the SHA-256 of bytes as hexadecimal digits."""
    return sha256(content).hexdigest()


def _bytes(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(content, np.uint8)


def _in_place(said: dict[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    return tensors[said[_ARRAY]].numpy() if said.keys() == {_ARRAY} else said
