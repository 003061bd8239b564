"""Asking a model: fast forward passes over crops, and the accuracy they reach."""

from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ekya.learning.edge import EdgeModel, clone, to_input
from ekya.learning.labelled import LabelledCrops

_Module = TypeVar("_Module", bound=nn.Module)

FORWARD_BATCH = 32
"""Crops in one forward pass; larger batches gain little on a CPU and delay the first answer."""


class Classifies(Protocol):
    """Anything that can be asked like a ``Predictor``."""

    def predict(
        self, crops: NDArray[np.uint8], resolution: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(N, S, S, 3) uint8 RGB to classes (N,) and confidences (N,)."""


class Predictor:
    """A frozen copy of a model with its batch normalisation folded into the convolutions."""

    def __init__(self, model: EdgeModel, device: str = "cpu") -> None:
        self._device = device
        self._model = fuse(clone(model)).to(device)
        self.classes = model.classes

    @torch.inference_mode()
    def predict(
        self, crops: NDArray[np.uint8], resolution: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Classify crops.

        Args:
            crops: (N, S, S, 3) uint8 RGB; N may be 0.
            resolution: side in pixels that the crops are resized to, λ's resolution.

        Returns:
            Classes (N,) int64, index into the model's classes, and confidences (N,) float32 in [0, 1].
        """
        classes = np.zeros(len(crops), np.int64)
        confidence = np.zeros(len(crops), np.float32)
        for start in range(0, len(crops), FORWARD_BATCH):
            part = slice(start, start + FORWARD_BATCH)
            images = resized(to_input(crops[part], self._device), resolution)
            best, index = self._model(images).softmax(dim=1).max(dim=1)
            classes[part], confidence[part] = index.cpu().numpy(), best.cpu().numpy()
        return classes, confidence

    @torch.inference_mode()
    def look(self, crops: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Of crops at their own size: how sure the model is (N,), and what its head sees (N, F)."""
        sure, seen = [np.zeros(0, np.float32)], [np.zeros((0, self._model.features), np.float32)]
        for start in range(0, len(crops), FORWARD_BATCH):
            features = self._model.embed(to_input(crops[start : start + FORWARD_BATCH], self._device))
            sure.append(self._model.head(features).softmax(dim=1).amax(dim=1).cpu().numpy())
            seen.append(features.cpu().numpy())
        return np.concatenate(sure), np.concatenate(seen)


def resized(images: Tensor, resolution: int) -> Tensor:
    """(N, 3, S, S) to (N, 3, resolution, resolution), bilinear; the same tensor where S fits."""
    if images.shape[-1] == resolution:
        return images
    return interpolate(
        images, size=(resolution, resolution), mode="bilinear", antialias=images.shape[-1] > resolution
    )


def accuracy(
    model: EdgeModel | Classifies, labelled: LabelledCrops, weights: NDArray[np.float64] | None = None
) -> float:
    """Part of the crops, at their own size, that get their label's class; 0.0 for no crops.

    A label that the model does not know counts as wrong. ``weights`` (N,) says how much each crop counts;
    None is all alike.
    """
    if len(labelled) == 0:
        return 0.0
    return float(np.average(_right(model, labelled), weights=weights))


def balanced_accuracy(model: EdgeModel | Classifies, labelled: LabelledCrops) -> float:
    """The mean over the classes that occur of the accuracy within each; 0.0 for no crops."""
    if len(labelled) == 0:
        return 0.0
    right = _right(model, labelled)
    return float(np.mean([right[labelled.classes == index].mean() for index in np.unique(labelled.classes)]))


def fuse(model: _Module) -> _Module:
    """Fold every batch normalisation into the convolution before it, in place, for prediction only.

    In the trunks of ``EDGE_MODELS`` a batch normalisation directly follows its convolution among the
    children of their parent, which is how the pairs are found.
    """
    model.eval()
    for parent in list(model.modules()):
        children = list(parent.named_children())
        for (conv_name, conv), (norm_name, norm) in pairwise(children):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, conv_name, fuse_conv_bn_eval(conv, norm))
                setattr(parent, norm_name, nn.Identity())
    model.requires_grad_(False)
    return model


def _right(model: EdgeModel | Classifies, labelled: LabelledCrops) -> NDArray[np.bool_]:
    asked = Predictor(model, str(next(model.parameters()).device)) if isinstance(model, EdgeModel) else model
    predicted, _ = asked.predict(labelled.crops, labelled.side)
    return np.equal(predicted, labelled.classes)
