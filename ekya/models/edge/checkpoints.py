"""Files of edge models: safetensors with the model's identity in the metadata, or torchvision's weights."""

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors
import torch
from torch import Tensor, nn

from ekya.core.errors import UserError
from ekya.core.objects import SURE
from ekya.models.edge.architecture_table import CUTS
from ekya.models.edge.architectures import EDGE_MODELS, fresh_network, trunk_of
from ekya.models.edge.model import EdgeModel, build_edge_model
from ekya.models.weights import differences, read_safetensors, write_safetensors
from ekya.system.files import write_bytes_atomic

FORMAT = "ekya-edge-model"
VERSION = "1"


def to_bytes(model: EdgeModel, extra: Mapping[str, str] | None = None, *, half: bool = False) -> bytes:
    """Returns the model as the bytes of a safetensors file.

    Args:
        model: on any device; it is not changed.
        extra: further metadata, for example how the model was made.
        half: store matrices and kernels in 16 bits, for shipped files. Statistics and
            biases stay in 32 bits, where small values would be lost.
    """
    # Safetensors refuses other layouts, and trained detectors are channels-last.
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    if half:
        state = {name: tensor.half() if tensor.ndim > 1 else tensor for name, tensor in state.items()}
    return write_safetensors(state, {**(extra or {}), **identity_of(model)})


def identity_of(model: EdgeModel) -> dict[str, str]:
    """Returns the metadata that ``model_of`` needs besides the weights to rebuild the model."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "architecture": model.architecture,
        "classes": json.dumps(model.classes),
        "head_width": str(model.head_width),
        **({} if model.threshold == SURE else {"threshold": repr(model.threshold)}),
        **({"kept_head_widths": json.dumps([int(w) for w in model.kept_heads])} if model.kept_heads else {}),
    }


def from_bytes(data: bytes, source: str = "the given bytes") -> EdgeModel:
    """Returns the model in these bytes, in 32 bits on the CPU, ready to predict.

    Args:
        data: as ``to_bytes`` returned it.
        source: name of the data in error messages.

    Raises:
        UserError: the bytes are truncated, foreign, or do not fit the model that they name.
    """
    try:
        state, metadata = read_safetensors(data)
    except ValueError as error:
        raise UserError(
            f"{source}: not a whole safetensors file ({error}); copy or train the model again"
        ) from error
    return model_of(metadata, state, source)


def model_of(identity: Mapping[str, str], state: Mapping[str, Tensor], source: str) -> EdgeModel:
    """Builds a model from its identity and weights, in 32 bits on their device, ready to predict.

    Args:
        identity: as ``identity_of`` returned it; other keys are ignored.
        state: its weights by name; the model takes over tensors of 32 bits without a copy.
        source: name of the data in error messages.

    Raises:
        UserError: the identity is unknown or damaged, or the weights do not fit it.
    """
    model = _empty_model(identity, source)
    wrong = differences(state, model.state_dict())
    if wrong:
        raise UserError(f"{source}: {wrong[0]} in a {model.architecture}; train the model again")
    in_32_bits = {
        name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()
    }
    # Assigned, since tensors without memory cannot be copied into.
    model.load_state_dict(in_32_bits, assign=True)
    return model.eval()


def save_model(
    model: EdgeModel, path: Path, extra: Mapping[str, str] | None = None, *, half: bool = False
) -> None:
    """Write the model so that the file is either whole or absent.

    Raises:
        UserError: no permission, no such folder or no space left.
    """
    write_bytes_atomic(path, to_bytes(model, extra, half=half))


def load_model(path: Path) -> EdgeModel:
    """Read a model that ``save_model`` wrote.

    Raises:
        UserError: the file is missing, unreadable, truncated, foreign or of the wrong shape.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: cannot read the model ({error.strerror}); give the path of a readable model file"
        ) from error
    return from_bytes(data, str(path))


def is_edge_model(path: Path) -> bool:
    """Returns whether a file of weights claims to be a model of Ekya, complete or not."""
    try:
        with safetensors.safe_open(path, framework="pt") as weights:
            return (weights.metadata() or {}).get("format") == FORMAT
    except (OSError, safetensors.SafetensorError):
        return path.suffix == ".safetensors"  # loading it reports what is wrong


def _empty_model(metadata: Mapping[str, str], source: str) -> EdgeModel:
    if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
        raise UserError(
            f"{source}: not an edge model of Ekya, version {VERSION}; give a file that Ekya wrote"
        )
    architecture = metadata.get("architecture", "")
    if architecture not in EDGE_MODELS:
        raise UserError(
            f"{source}: architecture '{architecture}' is unknown; use one of {', '.join(EDGE_MODELS)}"
        )
    try:
        classes = tuple(str(name) for name in json.loads(metadata["classes"]))
        head_width = int(metadata["head_width"])
        kept_widths = [int(width) for width in json.loads(metadata.get("kept_head_widths", "[]"))]
        threshold = float(metadata.get("threshold", SURE))
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"{source}: 'classes', 'head_width', 'kept_head_widths' or 'threshold' is damaged; "
            "train the model again"
        ) from error
    if not 0.0 < threshold < 1.0:
        raise UserError(f"{source}: a threshold of {threshold} is not in (0, 1); train the model again")
    # Without memory: initialising weights only to replace them would take most of the time.
    with torch.device("meta"):
        model = EdgeModel(architecture, classes, head_width, kept_widths)
    model.threshold = threshold
    return model


def from_torchvision(
    state: Mapping[str, Tensor], architecture: str, classes: tuple[str, ...], seed: int, source: Path
) -> EdgeModel:
    """Returns a model whose blocks have these weights; its head is linear and newly initialised.

    Args:
        state: torchvision's ``state_dict`` of the architecture, for any classes.
        architecture: key of ``CUTS``.
        classes: names, in the order of the outputs.
        seed: of the head.
        source: where the weights were read from, for error messages.

    Raises:
        UserError: the architecture is none of ``CUTS``, or the weights are of another one.
    """
    if architecture not in CUTS:
        raise UserError(f"{source}: {architecture} is none of torchvision's models; give weights of Ekya.")
    network = fresh_network(architecture)
    head = f"{CUTS[architecture].head}."
    given, expected = (
        {name: tensor for name, tensor in of.items() if not name.startswith(head)}
        for of in (state, network.state_dict())
    )
    wrong = differences(given, expected, counters=False)
    if wrong:
        raise UserError(
            f"{source}: does not fit the {architecture} that the key 'edge.model' asks for "
            f"({len(wrong)} differences, the first: {wrong[0]}); give weights of that model, or "
            "name another."
        )
    # Not strict: the classifier is left out, and old files lack counters of batches.
    # Weights stored in 16 bits are converted to 32 here.
    network.load_state_dict(given, strict=False)
    model = build_edge_model(classes, 0, seed, architecture)
    blocks = nn.ModuleList(trunk_of(network, architecture).blocks.values())
    model.blocks.load_state_dict(blocks.state_dict())
    return model.eval()
