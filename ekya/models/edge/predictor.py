"""Runs fast forward passes of a model over crops, and measures their accuracy.

Convolution kernels can be packed once into the layout of the CPU's library, instead of in every pass: oneDNN
multiplies blocks of channels, and reorders a kernel from torch's layout into these each time. For the six
crops of a frame that is half of a ResNet18's time. The right layout depends on the instruction set and on
the height and width of the images, not on their number. Packed without a shape, or for another one, a kernel
may be far slower than plain. So kernels are packed when images of a size first come, and only if a self-test
found this faster (``models/edge/self_test.py``).
"""

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ekya.models.edge.forward import PLAIN, ForwardWay
from ekya.models.edge.graphs import CudaRecorder, GraphRecorder, Graphs, Work
from ekya.models.edge.model import EdgeModel, normalised, pool
from ekya.models.training.labelled import LabelledCrops
from ekya.system.numeric_check import relative_error
from ekya.system.numeric_result import MOST_ERROR

_ONE_DNN: Any = torch.ops.mkldnn  # used by torch's own compiler; it has no public name

_TAKES = {
    "_reorder_convolution_weight": "self padding stride dilation groups input_size",
    "_convolution_pointwise": "X W B padding stride dilation groups attr scalars algorithm",
}
"""The private operators that are used, and their arguments."""

_HEAVY = 1 << 15
"""Minimum weights of a packed kernel. Reordering a lighter or 1x1 kernel costs less than the packed call."""


class PackedConvolution(nn.Module):
    """Convolution for inference in 32 bits on a CPU, with its kernel packed for each size of images."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self._how = (
            [int(side) for side in convolution.padding],
            list(convolution.stride),
            list(convolution.dilation),
            convolution.groups,
        )
        self._bias = convolution.bias
        self._loose: Tensor | None = convolution.weight
        self._kernels: dict[tuple[int, ...], Tensor] = {}

    def forward(self, images: Tensor) -> Tensor:
        """Maps (N, C, h, w) to (N, D, h', w'), as the convolution does."""
        size = tuple(images.shape[2:])
        kernel = self._kernels.get(size)
        if kernel is None:
            kernel = self._packed_for(images)
        convolved: Tensor = _ONE_DNN._convolution_pointwise(
            images, kernel, self._bias, *self._how, "none", [], ""
        )
        return convolved

    def _packed_for(self, images: Tensor) -> Tensor:
        # The unpacked kernel is dropped after the first packing; any packed one can be converted back.
        loose = self._loose if self._loose is not None else next(iter(self._kernels.values())).to_dense()
        packed: Tensor = _ONE_DNN._reorder_convolution_weight(loose, *self._how, list(images.shape))
        self._kernels[tuple(images.shape[2:])] = packed
        self._loose = None
        return packed


def pack(model: nn.Module) -> None:
    """Packs the heavy convolutions of a model, in place; does nothing where torch cannot pack."""
    if not can_pack():
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Conv2d) and _is_heavy(child):
                setattr(parent, name, PackedConvolution(child))


def _is_heavy(convolution: nn.Conv2d) -> bool:
    return convolution.weight.numel() >= _HEAVY and max(convolution.kernel_size) > 1


def can_pack() -> bool:
    """Returns whether torch has the private operators that packing needs, with the expected arguments."""
    return all(_arguments(name) == takes.split() for name, takes in _TAKES.items())


def _arguments(operator: str) -> list[str]:
    """Returns the names of a private operator's arguments; empty if torch was built without it."""
    found = getattr(_ONE_DNN, operator, None)
    overload = getattr(found, "default", None)
    return [] if overload is None else [argument.name for argument in overload._schema.arguments]


FORWARD_BATCH = 32
"""Crops in one forward pass of a training; for a ``Predictor`` it is ``ForwardWay.crops_a_pass``."""

_LOG = logging.getLogger(__name__)

_CHECKED = (32, 3, 32, 32)

_Module = TypeVar("_Module", bound=nn.Module)


class Classifies(Protocol):
    """Interface of everything that predicts like a ``Predictor``."""

    def predict(
        self, crops: NDArray[np.uint8], resolution: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Maps (N, S, S, 3) uint8 RGB to classes (N,) and confidences (N,)."""


class Predictor:
    """Frozen copy of a classifier, prepared for fast inference on a device.

    Args:
        model: the model to copy; on any device.
        device: torch device on which the copy runs.
        way: options of its forward passes.
        recorder: of passes, if the way uses graphs; None is CUDA's.
        ready: as in ``prepared``.

    Raises:
        ValueError: the model is a detector.

    Attributes:
        way: options of its forward passes.
        source: the model that was copied.
        model: the copy.
        dtype: type that the copy computes in.
        classes: names, in the order of the outputs.
    """

    shares_blocks = True
    """Whether equal blocks of several models may run once, on the crops of all."""

    def __init__(
        self,
        model: EdgeModel,
        device: str = "cpu",
        way: ForwardWay = PLAIN,
        recorder: GraphRecorder | None = None,
        ready: Mapping[int, nn.Module] | None = None,
    ) -> None:
        if model.detector is not None:
            raise ValueError(f"{model.architecture} detects; a DetectorPredictor runs it")
        self.way = way
        self._device = device
        self.source = model
        self.model = prepared(model, device, self.way, ready)
        self.dtype = torch.float32
        self.classes = model.classes
        if way.half is not None:
            self._halve(model, getattr(torch, way.half))
        elif way.packed_for is not None:
            self._lay_out(*way.packed_for)
        # Not ``self._pass``: a reference cycle would keep the weights until the next garbage collection.
        self._graphs: Work | None = None
        if self.way.graphs:
            self._graphs = Graphs(self._pass, recorder or CudaRecorder(device))

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
        if len(crops) == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        # All passes are launched before the first result is waited for.
        answer = self._graphs or self._pass
        scores = torch.cat([answer(part, resolution) for part in self._parts(crops)])
        return self.read_scores([scores])[0]

    def load_images(self, crops: NDArray[np.uint8], resolution: int) -> Tensor:
        """Converts (N, S, S, 3) uint8 RGB to the first block's input (N, 3, resolution, resolution)."""
        return self._images(on_device(crops, self._device), resolution)

    def score_maps(self, maps: Tensor) -> Tensor:
        """Maps (N, F, h, w), the last block's output, to scores (N, C) float32."""
        # Probabilities are computed in 32 bits even if the logits are in half precision.
        scores: Tensor = self.model.head(pool(maps)).float().softmax(dim=1)
        return scores

    def read_scores(self, scores: Sequence[Tensor]) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Returns the answers in what ``score_maps`` returned, on the host."""
        # All are launched before the first is waited for.
        best = [one.max(dim=1) for one in scores]
        return [(index.cpu().numpy(), sure.cpu().numpy()) for sure, index in best]

    def _parts(self, crops: NDArray[np.uint8]) -> Iterator[Tensor]:
        """Yields the crops as (n, S, S, 3) uint8 on the device, at most ``crops_a_pass`` at a time."""
        for start in range(0, len(crops), self.way.crops_a_pass):
            yield on_device(crops[start : start + self.way.crops_a_pass], self._device)

    def _images(self, pixels: Tensor, resolution: int) -> Tensor:
        # Cast last: pixels are scaled and resized in 32 bits.
        images = resized(normalised(pixels), resolution).to(self.dtype)
        return images if self.way.channels_last else images.contiguous()

    def _pass(self, pixels: Tensor, resolution: int) -> Tensor:
        """Maps (n, S, S, 3) uint8 to scores (n, C) float32."""
        return self.score_maps(self.model.maps(self._images(pixels, resolution)))

    @torch.inference_mode()
    def _lay_out(self, crops: int, side: int) -> None:
        """Runs a pass of this shape, so that its kernels are packed before the first frame."""
        self._pass(torch.zeros(crops, side, side, 3, dtype=torch.uint8, device=self._device), side)

    def _halve(self, model: EdgeModel, dtype: torch.dtype) -> None:
        # Packed kernels are in 32 bits only. Blocks of ``ready`` are not used: the cast is in place and would
        # change them for others.
        halved = prepared(model, self._device, replace(self.way, packed_for=None)).to(dtype)
        error = half_error(halved, self.model)
        if error > MOST_ERROR:
            _LOG.warning("predicting in 32 bits: in %s the logits are off by %.2g", dtype, error)
            return
        self.model, self.dtype = halved, dtype


def half_error(halved: EdgeModel, exact: EdgeModel) -> float:
    """Returns the ``relative_error`` of the logits of a model in half precision, on images of noise.

    Half precision has a small range, and some kernels have returned NaN on a part of a GPU, so every device
    is checked.
    """
    weight = next(halved.parameters())
    # Drawn on the CPU, so that every device is checked on the same noise.
    made = torch.Generator().manual_seed(0)
    pictures = torch.randn(_CHECKED, generator=made).to(weight.device)
    with torch.inference_mode():
        return relative_error(halved(pictures.to(weight.dtype)), exact(pictures))


def on_device(crops: NDArray[np.uint8], device: str) -> Tensor:
    """Returns (N, S, S, 3) uint8 crops as a tensor on the device."""
    pixels = torch.from_numpy(np.ascontiguousarray(crops))
    if device == "cpu":
        return pixels
    # From pinned memory the copy is asynchronous, beside the GPU's work.
    # Torch's allocator keeps the pinned memory until the copy is done.
    return pixels.pin_memory().to(device, non_blocking=True)


def prepared(
    module: _Module, device: str, way: ForwardWay, ready: Mapping[int, nn.Module] | None = None
) -> _Module:
    """Returns a copy for fast inference, in 32 bits and its own memory; the module is not changed.

    Args:
        module: the module to copy.
        device: torch device on which the copy runs.
        way: options of its forward passes.
        ready: parts that were prepared before, for the same device and way, by the ``id`` of the module's
            parts; the copy uses them instead.
    """
    copied = fuse(copy.deepcopy(module, dict(ready or {})))
    if way.channels_last:
        copied = copied.to(memory_format=torch.channels_last)
    # The last step on a GPU: it is complete on return, and another thread may then use the copy.
    copied = copied.to(device)
    if way.packed_for is not None:
        pack(copied)
    return copied


def resized(images: Tensor, resolution: int) -> Tensor:
    """Resizes (N, 3, S, S) to (N, 3, resolution, resolution), bilinear; the same tensor if S fits."""
    if images.shape[-1] == resolution:
        return images
    # Without antialiasing a shrunk image would be sampled at a few of its pixels.
    return interpolate(
        images, size=(resolution, resolution), mode="bilinear", antialias=images.shape[-1] > resolution
    )


def accuracy(
    model: EdgeModel | Classifies, labelled: LabelledCrops, weights: NDArray[np.float64] | None = None
) -> float:
    """Returns the fraction of crops, at their own size, that get their label's class; 0.0 for no crops.

    A label that the model does not know counts as wrong. ``weights`` (N,) are those of the crops; None weighs
    all crops equally.
    """
    if len(labelled) == 0:
        return 0.0
    return float(np.average(_right(model, labelled), weights=weights))


def fuse(model: _Module) -> _Module:
    """Fold every batch normalisation into the convolution before it, in place, for prediction only.

    In the trunks of ``EDGE_MODELS`` a batch normalisation directly follows its convolution among the
    children of their parent; the pairs are found by this.
    """
    # Folding uses running statistics, and torch refuses it in training mode.
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
