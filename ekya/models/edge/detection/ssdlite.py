"""SSDlite with MobileNetV3 as a network that can be trained: torchvision's modules, cut into a chain.

Heads read six feature maps, but a chain of blocks passes one tensor on. So the maps are packed as channels of
one tensor on the grid of the second map, a 32nd of the image's side: of the finest map the four cells of each
coarser one become channels, and the coarse maps are padded with zeros.

Torchvision is imported where its modules are built, since that takes as long as importing torch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, smooth_l1_loss

from ekya.models.edge.architecture_table import INPUT_MEAN, INPUT_SCALE
from ekya.models.edge.detection.detector import (
    Decoded,
    Targets,
    any_of_image,
    pair_iou,
    softened_divergence,
)

_CHANNELS = (672, 480, 512, 256, 256, 128)
_PACKED = (4 * _CHANNELS[0], *_CHANNELS[1:])
"""Channels of the six maps, and of each within the packed tensor."""

FEATURES = sum(_PACKED)
"""Channels of the packed tensor."""

ANCHORS = 6
"""Anchors of each cell."""

_STAGES = {"stem": (0, 1), "stage1": (1, 2), "stage2": (2, 4), "stage3": (4, 7), "stage4": (7, 14)}
"""Blocks with one map, and the layers in each: the part that torchvision calls ``backbone.features.0``."""

# Torchvision's sizes of anchors; the last one is only used for the mean of two neighbours.
_SCALES = (*(0.2 + 0.75 * place / 5 for place in range(6)), 1.0)
_RATIOS = (2.0, 3.0)
_CENTRE_VARIANCE, _SIZE_VARIANCE = 0.1, 0.2
# Torchvision's bound, so that ``exp`` does not overflow.
_MOST_GROWTH = math.log(1000 / 16)
_ANCHOR, _MOVES, _LOGITS = slice(0, 4), slice(4, 8), slice(8, None)
_OBJECT_IOU, _NEUTRAL_IOU = 0.5, 0.4
_NEGATIVES_OF_ONE = 3
_SMALLEST = 1e-6


class SsdLiteStem(nn.Module):
    """Maps (N, 3, S, S) to (N, 16, S/2, S/2).

    Args:
        layers: the first layers of the network.
    """

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, images: Tensor) -> Tensor:
        """Maps images, as ``to_input`` returns them, to features; the weights were trained on [-1, 1]."""
        features: Tensor = self.layers((images * INPUT_SCALE + (INPUT_MEAN - 0.5)) / 0.5)
        return features


class SsdLiteLastStage(nn.Module):
    """Maps the first map to the first two, packed.

    Args:
        layers: from the first map to the second.
    """

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, fine: Tensor) -> Tensor:
        """Maps (N, 672, S/16, S/16) to (N, 2688 + 480, S/32, S/32)."""
        return packed([fine, self.layers(fine)])


class Extra(nn.Module):
    """Adds four coarser maps to the packed first two.

    Args:
        layers: each maps a map to the next.
    """

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, two: Tensor) -> Tensor:
        """Maps (N, 3168, S/32, S/32) to (N, 4320, S/32, S/32)."""
        maps = unpacked(two)
        for layer in self.layers:
            maps.append(layer(maps[-1]))
        return packed(maps)


class SsdLiteHeads(nn.Module):
    """Box and class of each anchor, from the six packed maps.

    Args:
        classes: number of classes, without background.
    """

    def __init__(self, classes: int) -> None:
        from torchvision.models.detection.ssdlite import SSDLiteClassificationHead, SSDLiteRegressionHead

        super().__init__()
        channels, each = list(_CHANNELS), [ANCHORS] * len(_CHANNELS)
        self.box = SSDLiteRegressionHead(channels, each, _norm)
        self.classes = SSDLiteClassificationHead(channels, each, 1 + classes, _norm)

    def forward(self, features: Tensor) -> Tensor:
        """Maps (N, 4320, h, w) to (N, A, 4 + 4 + 1 + C): anchor, its moves, and logits, background first."""
        maps = unpacked(features)
        moves = self.box(maps)
        # Anchors depend on the sizes of the maps, which the outputs alone do not show; so they go along.
        anchors = _anchors_on(maps).expand(moves.shape[0], -1, -1)
        return torch.cat([anchors, moves, self.classes(maps)], dim=2)


class SsdLite:
    """``DetectorHeads`` of SSDlite: each anchor has a box and a softmax over background and classes.

    A box is the move of its anchor's centre, in sizes of the anchor, and the logarithm of its growth, each
    divided by a variance (Liu et al., ECCV'16).
    """

    def heads(self, classes: int) -> nn.Module:
        return SsdLiteHeads(classes)

    def decode_outputs(self, outputs: Tensor) -> Decoded:
        """Returns the boxes and scores of all anchors from (N, A, 9 + C)."""
        return Decoded.of(_boxes(outputs), outputs[..., _LOGITS].softmax(dim=2)[..., 1:])

    def loss(self, outputs: Tensor, targets: Targets) -> Tensor:
        """Returns the mean over anchors of objects of the loss of box and class, and of that of background.

        An object has the anchors that overlap it by half, and the one that overlaps it most. Background are
        the anchors, three for each of an object, that look most like one; three in a frame without objects.
        Anchors that overlap an object a little less, or a doubtful region, are neither; nor are those
        whose box covers a doubtful region.
        """
        logits = outputs[..., _LOGITS]
        every = logits.logsumexp(dim=2)
        owner = _owners(_anchors_of(outputs), targets, len(outputs))
        # Cross-entropy of background; ``every`` is the logarithm of the softmax's denominator.
        background = every - logits[..., 0]
        loss = (background * _hardest(background.detach(), owner >= 0, _neither(outputs, targets))).sum()
        image, anchor = (owner >= 0).nonzero(as_tuple=True)
        if len(image):
            of = owner[image, anchor]
            others = ~targets.outputs[of]
            # Several outputs may name the class: ``logsumexp`` adds their probabilities.
            named = logits[image, anchor, 1:].masked_fill(others, -torch.inf).logsumexp(dim=1)
            moves = _moves_to(targets.boxes[of], _anchors_of(outputs)[anchor])
            loss = loss + (every[image, anchor] - named).sum()
            loss = loss + smooth_l1_loss(outputs[image, anchor, _MOVES], moves, reduction="sum")
        return loss / max(len(image), 1)

    def trusted(self, outputs: Tensor, targets: Targets) -> Tensor:
        """Returns (N, A) bool: anchors that give the box and the class of an object."""
        best = outputs[..., _LOGITS].argmax(dim=2)[targets.image]
        with_background = torch.cat([torch.zeros_like(targets.outputs[:, :1]), targets.outputs], dim=1)
        named = with_background.gather(1, best)
        fits = named & (pair_iou(_boxes(outputs)[targets.image], targets.boxes[:, None]) > _OBJECT_IOU)
        return any_of_image(fits, targets.image, len(outputs))

    def distance(self, outputs: Tensor, answers: Tensor, trusted: Tensor) -> Tensor:
        """Returns the mean KL divergence of the softened classes of trusted anchors."""
        return softened_divergence(outputs[..., _LOGITS], answers[..., _LOGITS], trusted)


def blocks() -> dict[str, nn.Module]:
    """Returns the blocks before the heads by name, from the input on."""
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    # Without weights of the backbone nothing is downloaded, and torchvision builds the reduced tail that the
    # published weights have.
    network = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, norm_layer=_norm)
    layers, last = network.backbone.features
    # A slice keeps the names of its layers, which ``renamed`` relies on.
    stages: dict[str, nn.Module] = {name: layers[first:end] for name, (first, end) in _STAGES.items()}
    return {
        **stages,
        "stem": SsdLiteStem(stages["stem"]),
        "stage5": SsdLiteLastStage(last),
        "extra": Extra(network.backbone.extra),
    }


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns torchvision's weights under the names of an ``EdgeModel``; names that are not known stay."""
    # Parts end with a dot, so that layer 1 is not taken for layer 13.
    parts = {
        f"backbone.features.0.{layer}.": f"blocks.{block}.{layer}."
        for block, (first, end) in enumerate(_STAGES.values())
        for layer in range(first, end)
    }
    # The first layer is wrapped in ``SsdLiteStem``.
    parts["backbone.features.0.0."] = "blocks.0.layers.0."
    parts["backbone.features.1."] = f"blocks.{len(_STAGES)}.layers."
    parts["backbone.extra."] = f"blocks.{len(_STAGES) + 1}.layers."
    parts["head.regression_head."] = "head.box."
    parts["head.classification_head."] = "head.classes."
    names = {}
    for name, tensor in state.items():
        part = next((part for part in parts if name.startswith(part)), "")
        names[parts.get(part, "") + name.removeprefix(part)] = tensor
    return names


def packed(maps: Sequence[Tensor]) -> Tensor:
    """Joins the first two maps or more, (N, C, h, w) each, on the grid of the second."""
    fine, grid, *coarse = maps
    height, width = grid.shape[2:]
    padded = [pad(one, (0, width - one.shape[3], 0, height - one.shape[2])) for one in coarse]
    return torch.cat([_folded(fine), grid, *padded], dim=1)


def unpacked(joined: Tensor) -> list[Tensor]:
    """Returns the maps that ``packed`` joined."""
    known = list(_PACKED[: 2 if joined.shape[1] == sum(_PACKED[:2]) else None])
    fine, *others = torch.split(joined, known, dim=1)
    height, width = joined.shape[2:]
    sizes = zip(_halved(height), _halved(width), strict=True)
    # Before ``Extra`` there are two maps, and sizes are left over.
    return [_unfolded(fine), *(one[:, :, :h, :w] for one, (h, w) in zip(others, sizes, strict=False))]


def _folded(fine: Tensor) -> Tensor:
    """Maps (N, C, 2h, 2w) to (N, 4 C, h, w); torch's ``pixel_unshuffle`` fails if N is 0."""
    images, channels, height, width = fine.shape
    cells = fine.reshape(images, channels, height // 2, 2, width // 2, 2).permute(0, 1, 3, 5, 2, 4)
    return cells.reshape(images, 4 * channels, height // 2, width // 2)


def _unfolded(folded: Tensor) -> Tensor:
    """Maps (N, 4 C, h, w) to (N, C, 2h, 2w), as they were before ``_folded``."""
    images, channels, height, width = folded.shape
    cells = folded.reshape(images, channels // 4, 2, 2, height, width).permute(0, 1, 4, 2, 5, 3)
    return cells.reshape(images, channels // 4, 2 * height, 2 * width)


def _halved(side: int) -> Iterator[int]:
    """Yields the sides of all maps but the first, of which the second map has this one."""
    for _ in _CHANNELS[1:]:
        yield side
        # Padded convolutions of stride 2 round up.
        side = (side + 1) // 2


def _norm(features: int) -> nn.BatchNorm2d:
    # Torchvision's momentum of 0.03 is too slow: a window has fewer than a hundred batches.
    return nn.BatchNorm2d(features, eps=0.001, momentum=0.1)


def _sizes_on(place: int) -> list[tuple[float, float]]:
    """Returns the width and height of each anchor of a cell, as fractions of the image."""
    # In torchvision's order, which is that of the heads' outputs, and clipped to the image as there.
    scale, between = _SCALES[place], math.sqrt(_SCALES[place] * _SCALES[place + 1])
    sizes = [(scale, scale), (between, between)]
    for root in map(math.sqrt, _RATIOS):
        sizes += [(scale * root, scale / root), (scale / root, scale * root)]
    return [(min(width, 1.0), min(height, 1.0)) for width, height in sizes]


_SIZES = tuple(_sizes_on(place) for place in range(len(_CHANNELS)))


@lru_cache
def _sizes_at(device: torch.device) -> Tensor:
    """Returns ``_SIZES`` on a device; kept, since a CUDA graph cannot record a copy from the host."""
    with torch.inference_mode(False):
        return torch.tensor(_SIZES, device=device)


def _anchors_on(maps: Sequence[Tensor]) -> Tensor:
    """Returns (A, 4) centre, width and height of the anchors on maps, in the order of the outputs."""
    each = []
    for sizes, one in zip(_sizes_at(maps[0].device), maps, strict=True):
        y, x = ((torch.arange(side, device=one.device) + 0.5) / side for side in one.shape[2:])
        centres = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=2)[:, :, None]
        # By broadcasting, since an export has no shape to expand to.
        each.append((pad(centres, (0, 2)) + pad(sizes, (2, 0))).flatten(0, 2))
    return torch.cat(each)


def _corners(boxes: Tensor) -> Tensor:
    """Converts (..., 4) centre, width and height to x0 y0 x1 y1."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], dim=-1)


def _anchors_of(outputs: Tensor) -> Tensor:
    """Returns the (A, 4) anchors, which are the same for all images."""
    return outputs[0, :, _ANCHOR].detach()


def _boxes(outputs: Tensor) -> Tensor:
    """Returns the (N, A, 4) boxes of anchors as fractions of the image."""
    before, moves = outputs[..., _ANCHOR].detach(), outputs[..., _MOVES]
    centre = before[..., :2] + moves[..., :2] * _CENTRE_VARIANCE * before[..., 2:]
    growth = (moves[..., 2:] * _SIZE_VARIANCE).clamp(max=_MOST_GROWTH)
    return _corners(torch.cat([centre, before[..., 2:] * growth.exp()], dim=-1))


def _moves_to(boxes: Tensor, before: Tensor) -> Tensor:
    """Returns the (P, 4) outputs with which (P, 4) anchors give these boxes."""
    # An object may have no width or height, and the logarithm must be finite.
    centre, size = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]).clamp(min=_SMALLEST)
    moved = (centre - before[:, :2]) / before[:, 2:] / _CENTRE_VARIANCE
    return torch.cat([moved, (size / before[:, 2:]).log() / _SIZE_VARIANCE], dim=1)


def _owners(before: Tensor, targets: Targets, images: int) -> Tensor:
    """Returns (N, A) int64: the row of the object that each anchor is of, -1 for none."""
    iou = pair_iou(_corners(before), targets.boxes[:, None])
    best = _largest_of_image(iou, targets.image, images, 0.0)[targets.image]
    # Exact equality is safe: the largest is one of these values.
    overlapping = (iou >= _OBJECT_IOU) & (iou == best)
    own = torch.zeros_like(overlapping).scatter_(1, iou.argmax(dim=1, keepdim=True), True)
    # The anchor that overlaps an object most is that object's, although another may overlap it more.
    taken = any_of_image(own, targets.image, images)[targets.image]
    rows = torch.arange(len(iou), device=iou.device)[:, None]
    # Where an anchor is the best of two objects, the later row has it.
    return _largest_of_image(torch.where(own | (overlapping & ~taken), rows, -1), targets.image, images, -1)


def _largest_of_image(values: Tensor, image: Tensor, images: int, none: float) -> Tensor:
    """Returns (images, A): the largest of the (M, A) values of each image, ``none`` at least."""
    largest = torch.full((images, values.shape[1]), none, dtype=values.dtype, device=values.device)
    return largest.scatter_reduce_(0, image[:, None].expand_as(values), values, "amax")


def _neither(outputs: Tensor, targets: Targets) -> Tensor:
    """Returns (N, A) bool: anchors that are not trained to be background; some of them are of objects."""
    image = torch.cat([targets.image, targets.doubtful_image])
    regions = torch.cat([targets.boxes, targets.doubtful_boxes])
    near = pair_iou(_corners(_anchors_of(outputs)), regions[:, None]) >= _NEUTRAL_IOU
    given = _boxes(outputs.detach())[targets.doubtful_image]
    covers = pair_iou(given, targets.doubtful_boxes[:, None]) >= _OBJECT_IOU
    doubtful = any_of_image(covers, targets.doubtful_image, len(outputs))
    return any_of_image(near, image, len(outputs)) | doubtful


def _hardest(losses: Tensor, of_objects: Tensor, neither: Tensor) -> Tensor:
    """Returns (N, A) bool: the background anchors of largest loss, as many as are trained in each image."""
    possible = ~(of_objects | neither)
    wanted = _NEGATIVES_OF_ONE * of_objects.sum(dim=1, keepdim=True).clamp(min=1)
    falling = losses.masked_fill(~possible, -torch.inf).argsort(dim=1, descending=True, stable=True)
    # Sorting an order gives ranks; where few anchors are possible, others are among the first.
    return possible & (falling.argsort(dim=1) < wanted)
