"""Loads torchvision's ImageNet weights into the blocks of an edge model."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from ekya.core.errors import UserError
from ekya.models.edge.cuts import CUTS, places_of_torchvisions_modules
from ekya.models.edge.model import EdgeModel, build_edge_model

_COUNTER = "num_batches_tracked"
"""Absent from some old files; only used where statistics are averaged over all batches."""


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
    model = build_edge_model(classes, 0, seed, architecture)
    ours = _renamed(state, architecture)
    expected = model.blocks.state_dict()
    wrong = [
        name
        for name in sorted(expected.keys() | ours.keys())
        if _shape(expected, name) != _shape(ours, name) and not name.endswith(_COUNTER)
    ]
    if wrong:
        raise UserError(
            f"{source}: does not fit the {architecture} that the key 'edge.model' asks for "
            f"({len(wrong)} differences, the first at '{wrong[0]}'); give weights of that model, or "
            "name another."
        )
    # Weights stored in 16 bits are converted to 32 here.
    model.blocks.load_state_dict({**expected, **{name: ours[name] for name in ours if name in expected}})
    return model.eval()


def _renamed(state: Mapping[str, Tensor], architecture: str) -> dict[str, Tensor]:
    """Returns the weights by their names among the blocks, without those of the classifier."""
    places = places_of_torchvisions_modules(architecture)
    renamed = {}
    for name, tensor in state.items():
        if name.startswith(f"{CUTS[architecture].head}."):
            continue
        module = next((path for path in places if name.startswith(path)), None)
        renamed[name if module is None else places[module] + name.removeprefix(module)] = tensor
    return renamed


def _shape(state: Mapping[str, Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(state[name].shape) if name in state else None
