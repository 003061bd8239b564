"""A network that is trained on crops, with what its input needs, and its file of weights."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ekya.core.errors import UserError
from ekya.models.edge.checkpoints import to_bytes
from ekya.models.edge.model import EdgeModel
from ekya.models.weights import differences, write_safetensors


@dataclass(frozen=True, slots=True, eq=False)
class TrainableNetwork:
    """A classifier of crops before and while it is trained.

    Attributes:
        architecture: its name.
        module: from (N, 3, S, S), RGB minus ``mean`` by ``scale``, to logits.
        side: of its crops in pixels.
        begins_with: its first weights, in words.
        fresh: whether these are random.
        mean, scale: of a channel each, or of all.
    """

    architecture: str
    module: nn.Module
    side: int
    begins_with: str
    fresh: bool
    mean: Sequence[float] = (0.0,)
    scale: Sequence[float] = (1.0,)

    def answer(self, crops: Tensor) -> Tensor:
        """Maps (N, 3, S, S) RGB in [0, 1] to (N, classes) logits."""
        mean, scale = (
            torch.tensor(of, device=crops.device).reshape(-1, 1, 1) for of in (self.mean, self.scale)
        )
        logits: Tensor = self.module((crops - mean) / scale)
        return logits

    def round_as_stored(self) -> None:
        """Rounds the weights to what the file will hold: kernels of an edge model in 16 bits."""
        if isinstance(self.module, EdgeModel):
            with torch.no_grad():
                for weight in self.module.state_dict().values():
                    if weight.ndim > 1:
                        weight.copy_(weight.half())

    def to_file(self, classes: tuple[str, ...], metadata: Mapping[str, str]) -> bytes:
        """Returns the bytes of a safetensors file, which a run loads.

        Args:
            classes: in the order of the logits.
            metadata: further facts.
        """
        if isinstance(self.module, EdgeModel):
            return to_bytes(self.module, metadata, half=True)
        state = {name: of.detach().cpu().contiguous() for name, of in self.module.state_dict().items()}
        named = {"architecture": self.architecture, "classes": json.dumps(classes)}
        return write_safetensors(state, {**metadata, **named})


def load_start(network: nn.Module, state: Mapping[str, Tensor], head: str, source: str, name: str) -> None:
    """Loads weights to begin a training with; a head for another number of classes stays fresh.

    Args:
        network: that will be trained.
        state: its weights by name.
        head: beginning of the names of the head's weights.
        source: of the weights, for errors.
        name: of the architecture.

    Raises:
        UserError: the weights are of another architecture.
    """
    expected = network.state_dict()
    other = {
        one
        for one in expected
        if one.startswith(head) and differences({one: expected[one]}, _only(state, one))
    }
    needed = {one: of for one, of in expected.items() if one not in other}
    given = {one: of for one, of in state.items() if one not in other}
    wrong = differences(given, needed, counters=False)
    if wrong:
        raise UserError(
            f"{source}: does not fit {name}, named by --weights ({wrong[0]}, one of {len(wrong)} "
            f"differences); give a file made from {name}"
        )
    network.load_state_dict(given, strict=False)


def _only(state: Mapping[str, Tensor], name: str) -> Mapping[str, Tensor]:
    return {name: state[name]} if name in state else {}
