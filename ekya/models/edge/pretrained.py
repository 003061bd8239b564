"""Loads torchvision's ImageNet weights into the blocks of an edge model."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from ekya.core.errors import UserError
from ekya.models.edge.architecture_table import CUTS
from ekya.models.edge.architectures import fresh_network, trunk_of
from ekya.models.edge.model import EdgeModel, build_edge_model
from ekya.models.weights import differences


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
    # Weights stored in 16 bits are converted to 32 here.
    network.load_state_dict(given, strict=False)
    model = build_edge_model(classes, 0, seed, architecture)
    blocks = nn.ModuleList(trunk_of(network, architecture).blocks.values())
    model.blocks.load_state_dict(blocks.state_dict())
    return model.eval()
