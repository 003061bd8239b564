"""Interface of the part of a detector that is not its trunk: heads, decoding and loss; and what all share."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

_SMALLEST = 1e-9
_TEMPERATURE = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """Outputs of a detector for N images as A boxes each, before suppression.

    Attributes:
        boxes: (N, A, 4) x0 y0 x1 y1 as fractions of the image; they may reach over its edge.
        scores: (N, A) in [0, 1], of the box's best class among all that the detector knows.
        outputs: (N, A) int64, the output that stands for this class.
    """

    boxes: Tensor
    scores: Tensor
    outputs: Tensor

    @staticmethod
    def of(boxes: Tensor, scores: Tensor) -> "Decoded":
        """Returns boxes with (N, A, C) scores, one for each class."""
        best, outputs = scores.max(dim=2)
        return Decoded(boxes, best, outputs)


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """Objects of a batch of images.

    Attributes:
        image: (M,) int64, place in the batch of the image of each object.
        boxes: (M, 4) x0 y0 x1 y1 as fractions of the image.
        outputs: (M, C) bool, the outputs that name the object's class; at least one.
        doubtful_image, doubtful_boxes: (K,) and (K, 4), likewise, of regions that are neither object nor
            background.
    """

    image: Tensor
    boxes: Tensor
    outputs: Tensor
    doubtful_image: Tensor
    doubtful_boxes: Tensor

    def of_images(self, batch: Tensor) -> "Targets":
        """Returns the objects of (B,) of the images, as those of a batch of B."""
        # Pairs are compared, since a batch may hold an image twice (``batches_of``).
        objects, image = (self.image[:, None] == batch).nonzero(as_tuple=True)
        regions, doubtful_image = (self.doubtful_image[:, None] == batch).nonzero(as_tuple=True)
        return Targets(
            image, self.boxes[objects], self.outputs[objects], doubtful_image, self.doubtful_boxes[regions]
        )


class DetectorHeads(Protocol):
    """Heads of a detector, and how its outputs are read and trained."""

    def heads(self, classes: int) -> nn.Module:
        """Returns fresh heads, which map the last block's (N, F, h, w) to outputs, (N, …)."""

    def decode_outputs(self, outputs: Tensor) -> Decoded:
        """Returns the boxes and scores in outputs.

        It is exported for inference with a free side, so sizes come from the shape of the outputs by
        operations of torch alone.
        """

    def loss(self, outputs: Tensor, targets: Targets) -> Tensor:
        """Returns the loss of a batch, a scalar."""

    def trusted(self, outputs: Tensor, targets: Targets) -> Tensor:
        """Returns where a start model's outputs for N images are right, as ``distance`` takes it."""

    def distance(self, outputs: Tensor, answers: Tensor, trusted: Tensor) -> Tensor:
        """Returns the distillation loss of a batch: the distance from a start model's trusted outputs."""


def pair_iou(a: Tensor, b: Tensor) -> Tensor:
    """Returns the intersection over union of boxes (..., 4) and (..., 4), which are broadcast."""
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    shared = (high - low).clamp(min=0).prod(dim=-1)
    # Two boxes without area have no union.
    return shared / (_area(a) + _area(b) - shared).clamp(min=_SMALLEST)


def generalised_iou(a: Tensor, b: Tensor) -> Tensor:
    """Returns the generalised IoU in [-1, 1] of boxes (..., 4), row by row.

    It also falls with the distance of boxes that do not overlap (Rezatofighi et al., CVPR'19).
    """
    low, high = torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])
    around = (high - low).prod(dim=-1).clamp(min=_SMALLEST)
    iou = pair_iou(a, b)
    # Since iou = shared / union, and the areas add up to union + shared.
    union = (_area(a) + _area(b)) / (1 + iou)
    return iou - (around - union) / around


def any_of_image(marks: Tensor, image: Tensor, images: int) -> Tensor:
    """Returns (images, …) bool: what any of the (M, …) bool marks of each image has.

    Args:
        marks: one row for each object or region.
        image: (M,) place of its image.
        images: number of images.
    """
    count = torch.zeros(images, *marks.shape[1:], dtype=torch.int32, device=marks.device)
    return count.index_add_(0, image, marks.int()) > 0


def softened_divergence(logits: Tensor, answers: Tensor, trusted: Tensor) -> Tensor:
    """Returns the mean KL divergence from a start model's softened classes, where that is trusted.

    Args:
        logits, answers: (..., C) of the trained model and of the start model.
        trusted: (...) bool.
    """
    # The mean over nothing would be NaN.
    if not trusted.any():
        return logits.sum() * 0.0
    ours, theirs = (of[trusted] / _TEMPERATURE for of in (logits, answers))
    kept = kl_div(ours.log_softmax(dim=1), theirs.softmax(dim=1), reduction="batchmean")
    # Gradients of softened outputs fall with the square of the temperature (Hinton et al., 2015).
    return _TEMPERATURE * _TEMPERATURE * kept


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(dim=-1)
