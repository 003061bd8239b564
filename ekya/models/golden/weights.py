"""Reads weights from a local file."""

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ekya.core.errors import UserError


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
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError, KeyError) as error:
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
