"""Reads weights from files, and compares them with what a model needs."""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load, load_file, save
from torch import Tensor

from ekya.core.errors import UserError

_COUNTER = "num_batches_tracked"
"""Absent from some old files; only used where statistics are averaged over all batches."""


def read_state(path: Path) -> dict[str, Tensor]:
    """Reads tensors by name from a safetensors file or a state dict of torch.

    Raises:
        UserError: the file is missing, damaged, or does not contain tensors by name.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file, named by the key 'weights'; correct the path.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # No code of a foreign file is run, and tensors of a GPU can be read without one.
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (
        safetensors.SafetensorError,
        RuntimeError,
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        KeyError,
    ) as error:
        raise UserError(
            f"{path}: cannot be read as weights, named by the key 'weights'; it is truncated or of another "
            "format, so copy it again, as safetensors or a state dict."
        ) from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}, named by the key 'weights'; make it readable.") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(
            f"{path}: holds no tensors by name, named by the key 'weights'; save the model's state_dict()."
        )
    return state


def read_safetensors(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the tensors by name, and the metadata, in the bytes of a safetensors file.

    Raises:
        ValueError: the bytes are truncated or foreign.
    """
    try:
        tensors = load(data)
        # The file begins with the length of its JSON header, 8 bytes, little endian.
        length = int.from_bytes(data[:8], "little")
        return tensors, json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(str(error)) from error


def write_safetensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Returns the bytes of a safetensors file, the same for the same content."""
    data = save(dict(tensors), metadata=dict(metadata))
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    # The library writes metadata in an order that differs from process to process.
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    return data[:8] + text.ljust(length) + data[8 + length :]


def differences(
    given: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, counters: bool = True
) -> list[str]:
    """Returns a description of each weight that is missing, surplus or of another shape, by name.

    Without ``counters``, those of batches may differ.
    """
    return [
        f"weight '{name}' has shape {_shape(given, name)} instead of {_shape(expected, name)}"
        for name in sorted(expected.keys() | given.keys())
        if _shape(given, name) != _shape(expected, name) and (counters or not name.endswith(_COUNTER))
    ]


def _shape(state: Mapping[str, Tensor], name: str) -> tuple[int, ...] | str:
    return tuple(state[name].shape) if name in state else "none"
