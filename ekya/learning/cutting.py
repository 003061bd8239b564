"""Splits a model at the freeze boundary into frozen and trainable blocks (paper §3.1)."""

from torch import Tensor, nn

from ekya.learning.edge import EdgeModel, pool


class Suffix(nn.Module):
    """The trainable end of a model: its last blocks and the head, sharing the model's weights."""

    def __init__(self, blocks: nn.Sequential, head: nn.Module) -> None:
        super().__init__()
        self.blocks, self.head = blocks, head

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps activations at the boundary, or (N, F) features if no block is trained, to (N, C) logits."""
        features = pool(self.blocks(inputs)) if len(self.blocks) else inputs
        logits: Tensor = self.head(features)
        return logits


class Prefix(nn.Module):
    """The frozen beginning of a model, sharing the model's weights."""

    def __init__(self, blocks: nn.Sequential, pools: bool) -> None:
        super().__init__()
        self.blocks, self._pools = blocks, pools

    def forward(self, images: Tensor) -> Tensor:
        """Maps (N, 3, S, S) to activations at the boundary, or to (N, F) features if no block is trained."""
        activations: Tensor = self.blocks(images)
        return pool(activations) if self._pools else activations


def split_at(model: EdgeModel, trainable_blocks: int) -> tuple[Prefix, Suffix]:
    """Returns the frozen beginning and the trainable end; ``trainable_blocks`` counts from the end."""
    boundary = len(model.blocks) - trainable_blocks
    if not 0 <= boundary <= len(model.blocks):
        raise ValueError(f"{model.architecture} has {len(model.blocks)} blocks, not {trainable_blocks}")
    blocks = list(model.blocks)
    prefix = Prefix(nn.Sequential(*blocks[:boundary]), pools=trainable_blocks == 0)
    return prefix, Suffix(nn.Sequential(*blocks[boundary:]), model.head)


def on_cpu(frozen: nn.Module) -> dict[int, Tensor]:
    """Returns a module's tensors on the CPU, by the ``id`` of each; tensors already there are not copied."""
    weights = {
        id(weight): nn.Parameter(weight.detach().cpu(), requires_grad=False) for weight in frozen.parameters()
    }
    return {**weights, **{id(buffer): buffer.cpu() for buffer in frozen.buffers()}}
