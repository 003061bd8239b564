"""Writes edge models as ONNX files that answer as they do in a run, without Ekya: from pixels to objects.

A detector has the inputs and outputs of RT-DETR, D-FINE and DEIM, which many tools read: ``images`` and
``orig_target_sizes`` to ``labels``, ``boxes`` and ``scores``. Frames of any size are resized in the graph,
bit for bit as OpenCV does it for a camera; one that has the network's side already stays as it is.
"""

import io
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ekya.core.objects import SURE
from ekya.models.edge.architecture_table import INPUT_MEAN, INPUT_SCALE
from ekya.models.edge.detection.read_objects import (
    LEAST_CONFIDENCE,
    MAX_IOU,
    MOST_CANDIDATES,
    MOST_OBJECTS,
    fleet_outputs,
)
from ekya.models.edge.forward import PLAIN
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.predictor import prepared

IMAGES, SIZES = "images", "orig_target_sizes"
OBJECTS = ("labels", "boxes", "scores")
PROBABILITIES = "probabilities"

_TRACED = (97, 131)
"""Height and width of the frame that is traced."""

_ONE = 1 << 11
"""Fixed-point one of OpenCV's weights of pixels."""

_EXPORTING = threading.Lock()
"""Torch's exporter keeps the state of an export in its module, so a process makes one at a time."""


def export_model(model: EdgeModel, classes: tuple[str, ...], side: int, crop_side: int) -> bytes:
    """Returns an edge model as an ONNX file.

    Args:
        model: classifier or detector, on the CPU; it is not changed.
        classes: the fleet's, which a detector's labels index. A classifier has its own order.
        side: λ's resolution in pixels, to which frames or crops are resized.
        crop_side: of a classifier's input in pixels.
    """
    fused = prepared(model, "cpu", PLAIN)
    if model.detector is None:
        crops = torch.zeros(1, 3, crop_side, crop_side)
        axes = {IMAGES: {0: "crops"}, PROBABILITIES: {0: "crops"}}
        return trace_network(_CropsToProbabilities(fused, side, crop_side), (crops,), (PROBABILITIES,), axes)
    frame, size = torch.zeros(1, 3, *_TRACED), torch.tensor([_TRACED[::-1]])
    axes = {IMAGES: {2: "height", 3: "width"}, **{name: {1: "objects"} for name in OBJECTS}}
    return trace_network(_FrameToObjects(fused, classes, side), (frame, size), OBJECTS, axes)


def trace_network(
    network: nn.Module,
    example: tuple[Tensor, ...],
    outputs: Sequence[str],
    axes: Mapping[str, Mapping[int, str]],
    *,
    fold: bool = True,
) -> bytes:
    """Returns a network as an ONNX file.

    Args:
        network: takes ``images`` and perhaps ``orig_target_sizes``; in evaluation mode.
        example: its inputs.
        outputs: names.
        axes: names of axes whose length is free, by input or output.
        fold: constants may be computed beforehand, which may replace weights by others of another name.
    """
    file: Any = io.BytesIO()
    with _EXPORTING, warnings.catch_warnings():
        # The exporter by tracing is deprecated; the other one needs a package more and takes longer.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network.eval(),
            example,
            file,
            dynamo=False,
            do_constant_folding=fold,
            input_names=[IMAGES, SIZES][: len(example)],
            output_names=list(outputs),
            dynamic_axes=axes,
        )
    graph: bytes = file.getvalue()
    return graph


class _CropsToProbabilities(nn.Module):
    """Maps (N, 3, S, S) RGB in [0, 1] to (N, C)."""

    def __init__(self, fused: EdgeModel, side: int, crop_side: int) -> None:
        super().__init__()
        self._fused = fused
        # (side, S): what each row takes of each row of a crop, since the exporter knows no averaging resize.
        eye = torch.eye(crop_side)[None, None]
        self._mix = interpolate(eye, (side, crop_side), mode="bilinear", antialias=True)[0, 0]

    def forward(self, images: Tensor) -> Tensor:
        small = self._mix @ images @ self._mix.T
        logits: Tensor = self._fused((small - INPUT_MEAN) / INPUT_SCALE)
        return logits.softmax(dim=1)


class _FrameToObjects(nn.Module):
    """Maps a frame (1, 3, H, W), RGB in [0, 1], and its size to what ``found_in`` finds in it."""

    def __init__(self, fused: EdgeModel, classes: tuple[str, ...], side: int) -> None:
        super().__init__()
        self._fused, self._side, self._count = fused, side, len(classes)
        self._in_fleet = torch.from_numpy(fleet_outputs(fused.classes, classes))
        self._power = float(np.log(SURE) / np.log(fused.threshold))

    def forward(self, images: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert self._fused.detector is not None
        pixels = _squared(images, self._side) * (1 / (255 * INPUT_SCALE)) - INPUT_MEAN / INPUT_SCALE
        decoded = self._fused.detector.decode_outputs(self._fused(pixels))
        boxes, classes = decoded.boxes[0].clamp(0.0, 1.0), self._in_fleet[decoded.outputs[0]]
        scores = decoded.scores[0] ** self._power
        usable = (scores >= LEAST_CONFIDENCE) & (classes >= 0) & (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
        scores, rows = torch.where(usable, scores, 0.0).topk(min(MOST_CANDIDATES, len(usable)))
        boxes, classes = boxes[rows], classes[rows]
        each = scores * (classes == torch.arange(self._count)[:, None])
        kept = _Suppress.apply(boxes[None], each[None])[:, 2]
        # Candidates are sorted, so their order is that of the scores.
        kept = kept.sort().values[:MOST_OBJECTS]
        frame = torch.cat([sizes, sizes], dim=1)
        return classes[kept][None], (boxes[kept] * frame)[None], scores[kept].clamp(max=1.0)[None]


class _Suppress(torch.autograd.Function):
    """Stands for ONNX's suppression, which torch does not have; its rows name image, class and box."""

    @staticmethod
    def forward(_: Any, boxes: Tensor, scores: Tensor) -> Tensor:
        return torch.zeros(1, 3, dtype=torch.int64)

    @staticmethod
    def symbolic(graph: Any, boxes: Any, scores: Any) -> Any:
        limits = (
            graph.op("Constant", value_t=torch.tensor([limit])) for limit in (MOST_OBJECTS, MAX_IOU, 0.0)
        )
        return graph.op("NonMaxSuppression", boxes, scores, *limits)


def _squared(images: Tensor, side: int) -> Tensor:
    """Resizes (1, 3, H, W) in [0, 1] to (1, 3, side, side) in grey levels, as OpenCV does with bytes.

    OpenCV weighs pixels by whole 2048ths and drops bits between its steps, so that an eighth of the values
    differ by one from exact ones, and a detector's scores with them.
    """
    upper, lower, down = _neighbours(images.shape[2], side)
    left, right, across = _neighbours(images.shape[3], side)
    # Columns come first: onnxruntime picks whole rows of memory fast, and single values slowly.
    columns = images.index_select(2, torch.cat([upper, lower])).permute(3, 0, 1, 2)
    share = across.reshape(-1, 1, 1, 1) * 255
    level = columns.index_select(0, left) * (_ONE * 255 - share) + columns.index_select(0, right) * share
    # Weights of both axes make 22 bits, of which 4, 16 and 2 are dropped in turn. Products need 26.
    above, below = torch.split((level.round() / 16).floor().double(), side, dim=3)
    blended = (above * (_ONE - down) / 65536).floor() + (below * down / 65536).floor()
    return torch.floor((blended + 2) / 4).float().permute(1, 2, 3, 0)


def _neighbours(size: int, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the two pixels of an axis of ``size`` that make each of ``side``, and the second's 2048ths."""
    exact = ((2 * torch.arange(side) + 1) * size - side) / (2 * side)
    first = exact.floor()
    second = (first + 1).clamp(max=size - 1)
    return first.clamp(min=0).long(), second.long(), ((exact - first) * _ONE).round()
