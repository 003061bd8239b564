"""Loads weights of torchvision's models from a local file or torchvision's download."""

import urllib.error
from pathlib import Path

from torch import Tensor, nn
from torchvision.models import get_model_weights

from ekya.errors import UserError
from ekya.labeling.weights import read_state


def load_weights(model: nn.Module, name: str, path: Path | None) -> None:
    """Load weights into a torchvision model.

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
    # Counters of batches are absent from some old files, and are not used in inference.
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
