"""Weights from a local file or from torchvision's own download, with errors that say what to do."""

import pickle
import urllib.error
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models import get_model_weights

from ekya.errors import UserError


def load_weights(model: nn.Module, name: str, path: Path | None) -> None:
    """Fill a torchvision model.

    Args:
        model: as torchvision builds it under ``name``.
        name: torchvision's name of the model.
        path: a safetensors file, or one that ``torch.save`` wrote from a state dict; None to take
            torchvision's best weights, from its cache or over the network.

    Raises:
        UserError: the file is missing, damaged or of another model, or the download fails.
    """
    state = read_state(path) if path is not None else _download(name)
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    given = {key: tuple(value.shape) for key, value in state.items()}
    # Counters of batches seen are absent from some old files, and play no part in inference.
    wrong = [
        key
        for key in sorted(expected.keys() | given.keys())
        if expected.get(key) != given.get(key) and not key.endswith("num_batches_tracked")
    ]
    if wrong:
        key = wrong[0]
        raise UserError(
            f"{path}: does not fit {name}, named by the key 'weights' ('{key}' is "
            f"{given.get(key, 'missing')} where {expected.get(key, 'nothing')} belongs, one of {len(wrong)} "
            f"differences); give a file made from {name}."
        )
    model.load_state_dict(state, strict=False)


def read_state(path: Path) -> dict[str, Tensor]:
    """Tensors by name, from a safetensors file or a state dict of torch.

    Raises:
        UserError: no such file, damaged, or something else than tensors by name.
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


def _download(name: str) -> dict[str, Tensor]:
    try:
        state: dict[str, Tensor] = get_model_weights(name).DEFAULT.get_state_dict(
            progress=False, check_hash=True, weights_only=True
        )
    except (urllib.error.URLError, OSError, RuntimeError) as error:
        raise UserError(
            f"{name}: its weights cannot be downloaded ({error}); give a local file under the key 'weights'."
        ) from error
    return state
