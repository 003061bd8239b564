"""Creates predictors whose models share equal blocks, which are held and prepared once."""

import threading
from weakref import WeakSet

import torch
from torch import nn

from ekya.models.edge.batched import same_weights
from ekya.models.edge.forward import PLAIN, ForwardWay
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.predictor import Predictor


class Predictors:
    """Creates the predictors of one process. Methods may be called by any thread.

    A retraining changes a model's head, and perhaps its last blocks. The other blocks equal those of earlier
    models and of other streams' models, and preparing a whole model takes as long as dozens of frames.

    Args:
        device: torch device on which they run.
        way: options of their forward passes.
    """

    def __init__(self, device: str = "cpu", way: ForwardWay = PLAIN) -> None:
        self._device = device
        self._way = way
        self._making = threading.Lock()
        self._made: WeakSet[Predictor] = WeakSet()

    def of(self, model: EdgeModel) -> Predictor:
        """Returns a predictor of a model that must not change any more.

        Blocks of earlier models with the same weights, on the same device, replace the model's blocks.
        """
        with self._making:
            predictor = Predictor(model, self._device, self._way, ready=self._share_blocks(model))
            self._made.add(predictor)
        return predictor

    def _share_blocks(self, model: EdgeModel) -> dict[int, nn.Module]:
        """Replaces blocks; returns those that are prepared already, by the ``id`` of the model's block."""
        ready: dict[int, nn.Module] = {}
        kin = [one for one in self._made if one.source.architecture == model.architecture]
        for at, block in enumerate(model.blocks):
            known = {id(one.source.blocks[at]): one for one in kin}
            like = next((one for one in known.values() if _is_like(one.source.blocks[at], block)), None)
            if like is None:
                continue
            model.blocks[at] = like.source.blocks[at]
            if like.dtype == torch.float32:
                ready[id(model.blocks[at])] = like.model.blocks[at]
        return ready


def _is_like(one: nn.Module, other: nn.Module) -> bool:
    return _device_of(one) == _device_of(other) and same_weights(one, other)


def _device_of(block: nn.Module) -> torch.device | None:
    return next((weights.device for weights in block.parameters()), None)
