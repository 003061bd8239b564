"""Asking many models about the same crops: what the blocks that they share make of them is kept."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ekya.learning.cutting import split_at
from ekya.learning.edge import EdgeModel, to_input
from ekya.learning.forward import PLAIN
from ekya.learning.predictor import prepared, resized

_AT_ONCE = 256


@dataclass(frozen=True, slots=True, eq=False)
class SharedTrunk:
    """Crops as the first blocks of a family of models leave them.

    Attributes:
        activations: (N, …) float32 at the boundary; (N, F) features where no block is left.
        blocks_left: blocks from the boundary to the head, in which models may differ.
    """

    activations: Tensor
    blocks_left: int

    @staticmethod
    def of(
        model: EdgeModel, blocks_left: int, crops: NDArray[np.uint8], resolution: int, device: str = "cpu"
    ) -> "SharedTrunk":
        """Passes (N, S, S, 3) uint8 RGB crops, at a resolution, through all blocks of the model but the last.

        Args:
            model: one of those that have the first blocks in common.
            blocks_left: how many blocks, counted from the end, they do not have in common.
        """
        prefix, _ = split_at(model, blocks_left)
        shared = prepared(prefix, device, PLAIN)
        parts = [crops[start : start + _AT_ONCE] for start in range(0, max(len(crops), 1), _AT_ONCE)]
        with torch.inference_mode():
            passed = [shared(resized(to_input(part, device), resolution)) for part in parts]
        return SharedTrunk(torch.cat(passed), blocks_left)

    def without_blocks(self, model: EdgeModel) -> "SharedTrunk":
        """The features of the crops, for models that differ from this one in their heads alone."""
        _, suffix = split_at(model, self.blocks_left)
        whole = nn.Sequential(*suffix.blocks)
        if not len(whole):
            return self
        ready = self._prepared(whole)
        with torch.inference_mode():
            passed = [ready(part).mean(dim=(2, 3)) for part in torch.split(self.activations, _AT_ONCE)]
        return SharedTrunk(torch.cat(passed), 0)

    def take(self, rows: NDArray[np.int64]) -> "SharedTrunk":
        """These crops, in this order."""
        return SharedTrunk(self.activations[torch.from_numpy(rows)], self.blocks_left)

    def predict(self, model: EdgeModel) -> NDArray[np.int64]:
        """(N,) class of each crop, an index into the model's classes."""
        _, suffix = split_at(model, self.blocks_left)
        ready = self._prepared(suffix)
        with torch.inference_mode():
            passed = [ready(part).argmax(dim=1) for part in torch.split(self.activations, _AT_ONCE)]
        answers: NDArray[np.int64] = torch.cat(passed).cpu().numpy()
        return answers

    def _prepared(self, module: nn.Module) -> nn.Module:
        return prepared(module, str(self.activations.device), PLAIN)
