"""FastestDet as a network that can be trained: ShuffleNetV2, one joined feature map, three heads.

The blocks form a chain with a single tensor between any two, so that a retraining may freeze any number of
the first ones and keep what they give. The joined map has a sixteenth of the image's side: the finer map of
stage 2 is averaged down to it, the coarser one of stage 4 is repeated up to it.

Weights and outputs are those of the network at https://github.com/dog-qiuqiu/FastestDet (BSD-3-Clause); no
code was taken from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, binary_cross_entropy_with_logits, conv2d, interpolate

from ekya.models.edge.architecture_table import INPUT_MEAN, INPUT_SCALE
from ekya.models.edge.detection.detector import (
    Decoded,
    Targets,
    any_of_image,
    generalised_iou,
    pair_iou,
    softened_divergence,
)

FEATURES = 96
"""Channels of the neck's output."""

_STEM, _STAGES, _UNITS = 24, (48, 96, 192), (4, 8, 4)
_JOINED = sum(_STAGES)
_OBJECTNESS, _BOX, _CLASSES = 0, slice(1, 5), slice(5, None)
_OBJECTNESS_POWER = 0.6
_NEUTRAL_IOU = 0.5
_BOX_WEIGHT, _CLASS_WEIGHT = 2.0, 0.5


class FastestDetStem(nn.Module):
    """Maps (N, 3, S, S) to (N, 24, S/4, S/4)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(*_convolution(3, _STEM, 3, stride=2), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images, as ``to_input`` returns them, to features; the weights were trained on [0, 1]."""
        features: Tensor = self.pool(self.first(images * INPUT_SCALE + INPUT_MEAN))
        return features


class HalvingUnit(nn.Module):
    """First unit of a stage: both branches see all channels and halve the map; their outputs are joined."""

    def __init__(self, channels: int, features: int) -> None:
        super().__init__()
        self.short = nn.Sequential(
            *_depthwise(channels, 3, stride=2), *_convolution(channels, features // 2), nn.ReLU()
        )
        self.long = _branch(channels, features // 2, stride=2)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (N, channels, h, w) to (N, features, h/2, w/2)."""
        return torch.cat([self.short(maps), self.long(maps)], dim=1)


class Unit(nn.Module):
    """Other units: the even channels pass unchanged, the odd ones go through the branch."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.long = _branch(features // 2, features // 2)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (N, features, h, w) to the same shape."""
        return torch.cat([maps[:, 0::2], self.long(maps[:, 1::2])], dim=1)


def _stage(at: int) -> nn.Sequential:
    channels = _STEM if at == 0 else _STAGES[at - 1]
    return nn.Sequential(
        HalvingUnit(channels, _STAGES[at]), *(Unit(_STAGES[at]) for _ in range(_UNITS[at] - 1))
    )


class MiddleStage(nn.Module):
    """Stage 3. Its output is joined with its input, averaged to the same size."""

    def __init__(self) -> None:
        super().__init__()
        self.units = _stage(1)

    def forward(self, fine: Tensor) -> Tensor:
        """Maps (N, 48, S/8, S/8) to (N, 144, S/16, S/16)."""
        return torch.cat([avg_pool2d(fine, 3, 2, 1), self.units(fine)], dim=1)


class FastestDetLastStage(nn.Module):
    """Stage 4, on the stage 3 part of its input. Its output is enlarged to the input's size and joined."""

    def __init__(self) -> None:
        super().__init__()
        self.units = _stage(2)

    def forward(self, joined: Tensor) -> Tensor:
        """Maps (N, 144, S/16, S/16) to (N, 336, S/16, S/16)."""
        coarse = self.units(joined[:, _STAGES[0] :])
        return torch.cat([joined, interpolate(coarse, scale_factor=2.0, mode="nearest")], dim=1)


class Neck(nn.Module):
    """Spatial pyramid: one, two and three depthwise 5x5 convolutions in a row, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.reduce = nn.Sequential(*_convolution(_JOINED, FEATURES), nn.ReLU())
        self.near = _fives(1)
        self.middle = _fives(2)
        self.far = _fives(3)
        self.join = nn.Sequential(*_convolution(3 * FEATURES, FEATURES))

    def forward(self, joined: Tensor) -> Tensor:
        """Maps (N, 336, h, w) to (N, 96, h, w)."""
        reduced = self.reduce(joined)
        seen = torch.cat([self.near(reduced), self.middle(reduced), self.far(reduced)], dim=1)
        features: Tensor = (reduced + self.join(seen)).relu()
        return features


class FastestDetHeads(nn.Module):
    """Objectness, box and class of each cell.

    Args:
        classes: number of classes.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.shared = nn.Sequential(*_convolution(FEATURES, FEATURES), nn.ReLU())
        self.objectness = _head(1)
        self.box = _head(4)
        self.classes = _head(classes)

    def forward(self, features: Tensor) -> Tensor:
        """Maps (N, 96, h, w) to (N, 5 + classes, h, w), without the functions that end in probabilities."""
        shared = self.shared(features)
        return torch.cat([self.objectness(shared), self.box(shared), self.classes(shared)], dim=1)


class FastestDet:
    """``DetectorHeads`` of FastestDet: each cell has one box, and its score is objectness^0.6 x class^0.4.

    A box is the offset of its centre from the cell's corner (through tanh, in cells), and its width and
    height (through a sigmoid, as fractions of the image).
    """

    def heads(self, classes: int) -> nn.Module:
        return FastestDetHeads(classes)

    def decode_outputs(self, outputs: Tensor) -> Decoded:
        """Returns the boxes and scores of all cells, row by row, from (N, 5 + C, h, w)."""
        objectness = outputs[:, _OBJECTNESS].flatten(1).sigmoid() ** _OBJECTNESS_POWER
        # The best class first, and only then its power; and classes side by side, for the softmax.
        classes = outputs[:, _CLASSES].flatten(2).transpose(1, 2).softmax(dim=2)
        best = Decoded.of(_boxes(outputs).flatten(1, 2), classes)
        return replace(best, scores=objectness * best.scores ** (1 - _OBJECTNESS_POWER))

    def loss(self, outputs: Tensor, targets: Targets) -> Tensor:
        """Returns the mean over objects of the loss of box, class and objectness.

        The box of an object may come from the four cells around its centre. Those that fit it at least as
        well as their mean are trained, with their IoU as objectness. A cell whose box already covers an
        object, or a doubtful region, is not trained to be background.
        """
        at = _Candidates.of(outputs, targets)
        wanted = torch.zeros_like(outputs[:, _OBJECTNESS])
        counts = ~_covered(_boxes(outputs.detach()), targets)
        # Of a cell that two objects train, the IoU of one remains.
        wanted[at.image, at.row, at.column] = at.iou
        # A trained cell counts although its box covers an object.
        counts[at.image, at.row, at.column] = True
        errors = binary_cross_entropy_with_logits(outputs[:, _OBJECTNESS], wanted, reduction="none")
        # A batch without objects still trains background.
        objects = max(len(targets.image), 1)
        loss = (errors * counts).sum()
        if len(at.image):
            cells = outputs[at.image, :, at.row, at.column]
            # Several outputs may name the class: ``logsumexp`` adds their probabilities.
            named = cells[:, _CLASSES].log_softmax(dim=1).masked_fill(~targets.outputs[at.object], -torch.inf)
            loss = loss + _BOX_WEIGHT * (1 - at.generalised_iou).sum()
            loss = loss - _CLASS_WEIGHT * named.logsumexp(dim=1).sum()
        return loss / objects

    def trusted(self, outputs: Tensor, targets: Targets) -> Tensor:
        """Returns (N, h, w) bool: cells that give the box and the class of an object."""
        boxes, best = _boxes(outputs)[targets.image], outputs[:, _CLASSES].argmax(dim=1)[targets.image]
        named = targets.outputs.gather(1, best.flatten(1)).view_as(best)
        fits = named & (pair_iou(boxes, targets.boxes[:, None, None]) > _NEUTRAL_IOU)
        return any_of_image(fits, targets.image, len(outputs))

    def distance(self, outputs: Tensor, answers: Tensor, trusted: Tensor) -> Tensor:
        """Returns the mean KL divergence of the softened classes of trusted cells."""
        ours, theirs = (of[:, _CLASSES].movedim(1, -1) for of in (outputs, answers))
        return softened_divergence(ours, theirs, trusted)


@dataclass(frozen=True, slots=True, eq=False)
class _Candidates:
    """Cells whose boxes are trained, one row for each cell and object.

    Attributes:
        object: row of the targets.
        image, row, column: of the cell.
        iou: of the cell's box and the object, without gradient.
        generalised_iou: likewise, with gradient.
    """

    object: Tensor
    image: Tensor
    row: Tensor
    column: Tensor
    iou: Tensor
    generalised_iou: Tensor

    @staticmethod
    def of(outputs: Tensor, targets: Targets) -> "_Candidates":
        height, width = outputs.shape[2:]
        centre = (targets.boxes[:, :2] + targets.boxes[:, 2:]) / 2
        corner = (centre * centre.new_tensor([width, height])).long()
        # A centre is less than a cell from its cell's corner (tanh), so no other cells can have it.
        steps = torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]], device=outputs.device)
        cells = corner[:, None] + steps
        inside = ((cells >= 0) & (cells < cells.new_tensor([width, height]))).all(dim=2)
        object_, place = inside.nonzero(as_tuple=True)
        column, row = cells[object_, place].unbind(dim=1)
        image = targets.image[object_]
        boxes = _boxes(outputs)[image, row, column]
        iou = pair_iou(boxes.detach(), targets.boxes[object_])
        total = torch.zeros(len(targets.image), 2, device=outputs.device, dtype=iou.dtype)
        total.index_add_(0, object_, torch.stack([iou, torch.ones_like(iou)], dim=1))
        # The margin is for rounding, by which the mean of equal IoUs may exceed all of them.
        kept = iou >= (total[:, 0] / total[:, 1].clamp(min=1))[object_] - 1e-6
        return _Candidates(
            object_[kept],
            image[kept],
            row[kept],
            column[kept],
            iou[kept],
            generalised_iou(boxes[kept], targets.boxes[object_[kept]]),
        )


def _boxes(outputs: Tensor) -> Tensor:
    """Returns the (N, h, w, 4) boxes of cells as fractions of the image."""
    height, width = outputs.shape[2:]
    across, down, wide, high = outputs[:, _BOX].unbind(dim=1)
    columns = torch.arange(width, device=outputs.device)
    rows = torch.arange(height, device=outputs.device)[:, None]
    x, y = (columns + across.tanh()) / width, (rows + down.tanh()) / height
    half_width, half_height = wide.sigmoid() / 2, high.sigmoid() / 2
    return torch.stack([x - half_width, y - half_height, x + half_width, y + half_height], dim=-1)


def _covered(boxes: Tensor, targets: Targets) -> Tensor:
    """Returns (N, h, w) bool: cells whose box overlaps an object or a doubtful region of its image."""
    image = torch.cat([targets.image, targets.doubtful_image])
    regions = torch.cat([targets.boxes, targets.doubtful_boxes])
    overlaps = pair_iou(boxes[image], regions[:, None, None]) > _NEUTRAL_IOU
    return any_of_image(overlaps, image, len(boxes))


def blocks() -> dict[str, nn.Module]:
    """Returns the blocks before the heads by name, from the input on."""
    return {
        "stem": FastestDetStem(),
        "stage2": _stage(0),
        "stage3": MiddleStage(),
        "stage4": FastestDetLastStage(),
        "spp": Neck(),
    }


_PARTS = {
    "backbone.first_conv": "blocks.0.first",
    "backbone.stage2": "blocks.1",
    "backbone.stage3": "blocks.2.units",
    "backbone.stage4": "blocks.3.units",
    "branch_proj": "short",
    "branch_main": "long",
    "SPP.Conv1x1.conv1x1": "blocks.4.reduce",
    "SPP.S1": "blocks.4.near",
    "SPP.S2": "blocks.4.middle",
    "SPP.S3": "blocks.4.far",
    "SPP.output": "blocks.4.join",
    "detect_head.conv1x1.conv1x1": "head.shared",
    "detect_head.obj_layers.conv5x5": "head.objectness",
    "detect_head.reg_layers.conv5x5": "head.box",
    "detect_head.cls_layers.conv5x5": "head.classes",
}
"""Names of modules in the published weights, and here."""


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns published weights under the names of an ``EdgeModel``; names that are not known stay."""
    names = {}
    for name, tensor in state.items():
        ours = name
        # A name may have two of these parts, a stage and a branch in it.
        for theirs, part in _PARTS.items():
            ours = ours.replace(theirs, part)
        names[ours] = tensor
    return names


def _convolution(channels: int, features: int, side: int = 1, stride: int = 1) -> list[nn.Module]:
    plain = nn.Conv2d(channels, features, side, stride, side // 2, bias=False)
    return [plain, nn.BatchNorm2d(features)]


def _depthwise(channels: int, side: int, stride: int = 1) -> list[nn.Module]:
    each = nn.Conv2d(channels, channels, side, stride, side // 2, groups=channels, bias=False)
    return [each, nn.BatchNorm2d(channels)]


def _branch(channels: int, features: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        *_convolution(channels, features),
        nn.ReLU(),
        *_depthwise(features, 3, stride),
        *_convolution(features, features),
        nn.ReLU(),
    )


def _fives(count: int) -> nn.Sequential:
    return nn.Sequential(*(layer for _ in range(count) for layer in (*_five(), nn.ReLU())))


def _head(outputs: int) -> nn.Sequential:
    return nn.Sequential(*_five(), nn.ReLU(), *_convolution(FEATURES, outputs))


def _five() -> list[nn.Module]:
    return [DepthwiseConv2d(FEATURES, 5), nn.BatchNorm2d(FEATURES)]


_IMAGES = 4
"""With more images in one convolution, its temporary memory comes from the system anew each time."""


class DepthwiseConv2d(nn.Conv2d):
    """Convolution of each channel with its own kernel, without bias, that keeps the size of the map.

    It trains faster on a CPU than torch's, which takes ten times as long for the gradient of a large kernel
    as for the convolution itself. That gradient is a convolution too: of each channel of each image with its
    output's gradient as the kernel. Computed so, it takes a third to a half of the time.

    Args:
        channels: of input and output.
        side: of the kernel, odd.
    """

    def __init__(self, channels: int, side: int) -> None:
        super().__init__(channels, channels, side, 1, side // 2, groups=channels, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (N, C, h, w) to the same shape."""
        trains = torch.is_grad_enabled() and self.weight.requires_grad
        # ``_Depthwise`` is for 32 bits on a CPU, without a bias as a folded normalisation leaves one.
        if not trains or self.bias is not None or maps.device.type != "cpu" or maps.dtype != torch.float32:
            return super().forward(maps)
        convolved: Tensor = _Depthwise.apply(maps, self.weight)
        return convolved


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(maps, weight)
        return conv2d(maps, weight, padding=weight.shape[-1] // 2, groups=len(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (gradient,) = gradients
        maps, weight = ctx.saved_tensors
        padding = weight.shape[-1] // 2
        of_maps = of_weight = None
        if ctx.needs_input_grad[0]:
            # The kernel is odd and the map keeps its size, so this is the convolution with it turned round.
            of_maps = conv2d(gradient, weight.flip(2, 3), padding=padding, groups=len(weight))
        if ctx.needs_input_grad[1]:
            parts = zip(torch.split(maps, _IMAGES), torch.split(gradient, _IMAGES), strict=True)
            of_weight = torch.stack([_of_weight(*part, padding) for part in parts]).sum(dim=0)
        return of_maps, of_weight


def _of_weight(maps: Tensor, gradient: Tensor, padding: int) -> Tensor:
    """Returns the (C, 1, k, k) gradient of the kernels."""
    images, channels, height, width = maps.shape
    each = images * channels
    kernels = gradient.reshape(each, 1, height, width)
    # Each channel of each image is a group. Kernels as large as the map leave 2 * padding + 1 = k a side.
    swept = conv2d(maps.reshape(1, each, height, width), kernels, padding=padding, groups=each)
    return swept.reshape(images, channels, 1, *swept.shape[2:]).sum(dim=0)
