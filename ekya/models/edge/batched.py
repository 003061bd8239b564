"""Runs several models in one call, each on its own crops or all on the same; blocks that they share run once.

The models of a call must have the same architecture. Blocks that are equal in all models, as those that no
retraining trains, run on all crops in one ordinary batch. The others are joined into grouped convolutions.
Heads may differ in width and in classes, and run one by one, since they cost next to nothing.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ekya.models.edge.forward import PLAIN, ForwardWay
from ekya.models.edge.model import EdgeModel, normalised, pool, split_at, to_input
from ekya.models.edge.predictor import prepared, resized
from ekya.system.numeric_check import relative_error
from ekya.system.numeric_result import MOST_ERROR

Joined = Callable[[Tensor], Tensor]
"""Maps (K, N, C, h, w), the inputs of each of K modules, to (K, N, D, h', w')."""

_CHECKED_SIDE = 16


class BatchedPredictor:
    """Frozen copies of K models of one architecture, in 32 bits.

    Args:
        models: at least one.
        device: torch device on which the copies run.
        way: options of their forward passes. Neither half precision nor graphs are used.

    Raises:
        ValueError: detectors, different architectures, or one whose blocks cannot be joined.
    """

    def __init__(self, models: Sequence[EdgeModel], device: str = "cpu", way: ForwardWay = PLAIN) -> None:
        architectures = {model.architecture for model in models}
        if len(architectures) != 1:
            raise ValueError(f"models of one architecture run together, not of {sorted(architectures)}")
        if models[0].detector is not None:
            raise ValueError(f"{models[0].architecture} detects; detectors run one by one")
        self._device = device
        self.shared_blocks = common_blocks(models)
        shared = list(models[0].blocks)[: self.shared_blocks]
        self._shared = prepared(nn.Sequential(*shared), device, way)
        self._heads = [prepared(model.head, device, way) for model in models]
        self._joined: Joined | None = None
        if self.shared_blocks < len(models[0].blocks):
            # Joining needs weights in torch's layout.
            own = [list(model.blocks)[self.shared_blocks :] for model in models]
            unpacked = replace(way, packed_for=None)
            loose = [prepared(nn.Sequential(*blocks), device, unpacked) for blocks in own]
            self._joined = _joined(loose, self._shared)

    @torch.inference_mode()
    def predict(
        self, crops: Sequence[NDArray[np.uint8]], resolution: int
    ) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Returns for each model, in order, what ``Predictor.predict`` returns for its crops.

        Args:
            crops: for each model (N, S, S, 3) uint8 RGB; N may differ and may be 0, S may not differ.
            resolution: side in pixels that all are resized to.
        """
        counts = [len(of) for of in crops]
        if sum(counts) == 0:
            return [(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in counts]
        pixels = torch.from_numpy(np.concatenate(crops)).to(self._device)
        features = self._features(self._shared(resized(normalised(pixels), resolution)), counts)
        scores = [
            head(of).softmax(dim=1).max(dim=1)
            for head, of in zip(self._heads, torch.split(features, counts), strict=True)
        ]
        return [(index.cpu().numpy(), best.cpu().numpy()) for best, index in scores]

    def _features(self, activations: Tensor, counts: Sequence[int]) -> Tensor:
        """Maps (ΣN, C, h, w) after the shared blocks, model by model, to (ΣN, F)."""
        if self._joined is None:
            return pool(activations)
        most = max(counts)
        is_crop = torch.arange(most) < torch.tensor(counts)[:, None]
        is_crop = is_crop.to(self._device)
        together = activations.new_zeros((len(counts), most, *activations.shape[1:]))
        together[is_crop] = activations
        return self._joined(together).mean(dim=(3, 4))[is_crop]


def common_blocks(models: Sequence[EdgeModel]) -> int:
    """Returns the number of first blocks that have the same weights and statistics in all models."""

    def is_alike(blocks: tuple[nn.Module, ...]) -> bool:
        first, *others = blocks
        return all(same_weights(first, other) for other in others)

    return len(list(takewhile(is_alike, zip(*(model.blocks for model in models), strict=True))))


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Returns whether two modules of one kind have the same weights and statistics."""
    if one is other:
        return True
    pairs = zip([*one.parameters(), *one.buffers()], [*other.parameters(), *other.buffers()], strict=True)
    return all(torch.equal(mine, its.to(mine.device)) for mine, its in pairs)


def _grouped(modules: Sequence[nn.Module]) -> Joined:
    """Joins modules into one with K times the channels, whose grouped convolutions keep models separate."""
    wide = copy.deepcopy(modules[0])
    for name, module in wide.named_modules():
        if isinstance(module, nn.Conv2d):
            module.groups *= len(modules)
            for weights, _ in list(module.named_parameters()):
                together = torch.cat([of.get_parameter(f"{name}.{weights}") for of in modules])
                setattr(module, weights, nn.Parameter(together, requires_grad=False))

    def joined(images: Tensor) -> Tensor:
        answers: Tensor = wide(images.transpose(0, 1).flatten(1, 2))
        crops, channels, *pixels = answers.shape
        return answers.reshape(crops, len(images), channels // len(images), *pixels).transpose(0, 1)

    return joined


def _joined(modules: Sequence[nn.Module], before: nn.Module) -> Joined:
    """Joins modules if outputs do not change: blocks that mix channels themselves cannot be grouped."""
    device = next(modules[0].parameters()).device
    made = torch.Generator().manual_seed(0)
    noise = torch.randn(len(modules), 3, _CHECKED_SIDE, _CHECKED_SIDE, generator=made).to(device)
    with torch.inference_mode():
        inputs = before(noise)[:, None]
        expected = torch.stack([module(of) for module, of in zip(modules, inputs, strict=True)])
        try:
            joined = _grouped(modules)
            error = relative_error(joined(inputs), expected)
        except RuntimeError as refused:
            raise ValueError(f"these blocks cannot be joined: {refused}") from refused
    if error > MOST_ERROR:
        raise ValueError(f"these blocks cannot be joined: their answers would be off by {error:.2g}")
    return joined


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
