"""Makes predictors of which most blocks are the same, and holds and prepares those blocks once."""

import threading
from weakref import WeakSet

import torch
from torch import nn

from ekya.learning.batched import same_weights
from ekya.learning.edge import EdgeModel
from ekya.learning.forward import PLAIN, ForwardWay
from ekya.learning.predictor import Predictor


class Predictors:
    """Makes the predictors of one process. Methods may be called by any thread.

    A retraining changes a model's head, and perhaps its last blocks. The other blocks are those of the models
    before it, and of other streams' models. Preparing a whole model takes as long as dozens of frames.

    Args:
        device: torch's name of where they run.
        way: how they run.
    """

    def __init__(self, device: str = "cpu", way: ForwardWay = PLAIN) -> None:
        self._device = device
        self._way = way
        self._making = threading.Lock()
        self._made: WeakSet[Predictor] = WeakSet()

    def of(self, model: EdgeModel) -> Predictor:
        """A predictor of a model that must not change any more.

        Blocks that a model had before with the same weights, on the same device, replace the model's own.
        """
        with self._making:
            predictor = Predictor(model, self._device, self._way, ready=self._share_blocks(model))
            self._made.add(predictor)
        return predictor

    def _share_blocks(self, model: EdgeModel) -> dict[int, nn.Module]:
        """Replaces blocks; returns those that are prepared already by the identity of the model's."""
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
