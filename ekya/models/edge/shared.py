"""Evaluates many classifiers on the same crops; their shared blocks run once."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ekya.models.edge.forward import PLAIN
from ekya.models.edge.model import EdgeModel, split_at, to_input
from ekya.models.edge.predictor import prepared, resized

_PASS_CROPS = 256


@dataclass(frozen=True, slots=True, eq=False)
class SharedTrunk:
    """Activations of crops after the first blocks, which a family of models has in common.

    Attributes:
        activations: (N, …) float32 at the boundary; (N, F) features if no block is left.
        blocks_left: number of blocks from the boundary to the head; models may differ in these.
    """

    activations: Tensor
    blocks_left: int

    @staticmethod
    def of(
        model: EdgeModel, blocks_left: int, crops: NDArray[np.uint8], resolution: int, device: str = "cpu"
    ) -> "SharedTrunk":
        """Passes (N, S, S, 3) uint8 RGB crops, at a resolution, through all but the last ``blocks_left``.

        Args:
            model: any model of the family.
            blocks_left: number of blocks, counted from the end, that the family does not have in common.

        Raises:
            ValueError: the model is a detector.
        """
        if model.detector is not None:
            raise ValueError(f"{model.architecture} detects; only classifiers share a trunk's activations")
        prefix, _ = split_at(model, blocks_left)
        shared = prepared(prefix, device, PLAIN)
        parts = [crops[start : start + _PASS_CROPS] for start in range(0, max(len(crops), 1), _PASS_CROPS)]
        with torch.inference_mode():
            passed = [shared(resized(to_input(part, device), resolution)) for part in parts]
        return SharedTrunk(torch.cat(passed), blocks_left)

    def without_blocks(self, model: EdgeModel) -> "SharedTrunk":
        """Returns the features of the crops, for models that differ from this one in the head only."""
        _, suffix = split_at(model, self.blocks_left)
        whole = nn.Sequential(*suffix.blocks)
        if not len(whole):
            return self
        ready = self._prepared(whole)
        with torch.inference_mode():
            passed = [ready(part).mean(dim=(2, 3)) for part in torch.split(self.activations, _PASS_CROPS)]
        return SharedTrunk(torch.cat(passed), 0)

    def take(self, rows: NDArray[np.int64]) -> "SharedTrunk":
        """Returns these crops, in this order."""
        return SharedTrunk(self.activations[torch.from_numpy(rows)], self.blocks_left)

    def predict(self, model: EdgeModel) -> NDArray[np.int64]:
        """Returns the (N,) class of each crop, an index into the model's classes."""
        _, suffix = split_at(model, self.blocks_left)
        ready = self._prepared(suffix)
        with torch.inference_mode():
            passed = [ready(part).argmax(dim=1) for part in torch.split(self.activations, _PASS_CROPS)]
        answers: NDArray[np.int64] = torch.cat(passed).cpu().numpy()
        return answers

    def _prepared(self, module: nn.Module) -> nn.Module:
        return prepared(module, str(self.activations.device), PLAIN)
