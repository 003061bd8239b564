"""Trunks of edge models: the networks of ``architecture_table.py``, cut into blocks.

ResNets (He et al., CVPR 2016) for ImageNet's classes are defined here, with torchvision's names, shapes and
initial weights of a seed, so that weights are interchangeable: torchvision cannot be imported in part, and
takes as long as torch itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ekya.models.edge.architecture_table import CUTS, FASTESTDET, STUDENTS, Cut, build_student
from ekya.models.edge.detection import fastestdet
from ekya.models.edge.detection.detector import DetectorHeads

_IMAGENET_CLASSES = 1000
_STEM = 64
_STAGES = 4


class BasicBlock(nn.Module):
    """Residual block of two 3x3 convolutions; its output is as wide as its inside."""

    widens = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _short_cut(channels, width, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """Last normalisation of the residual branch, which scales it."""
        return self.bn2

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, channels, H, W) to (N, width, H/stride, W/stride)."""
        kept = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        # In place: the gradient of a normalisation needs its input and not its output.
        x += kept
        given: Tensor = self.relu(x)
        return given


class Bottleneck(nn.Module):
    """Residual block of 1x1, 3x3 and 1x1 convolutions; its output is four times as wide as its inside."""

    widens = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, self.widens * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(self.widens * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _short_cut(channels, self.widens * width, stride)

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        """Last normalisation of the residual branch, which scales it."""
        return self.bn3

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, channels, H, W) to (N, 4 * width, H/stride, W/stride)."""
        kept = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x += kept
        given: Tensor = self.relu(x)
        return given


def _short_cut(channels: int, wanted: int, stride: int) -> nn.Sequential | None:
    """Returns the projection of a block's input to the shape of its output; None if they are equal."""
    if stride == 1 and channels == wanted:
        return None
    return nn.Sequential(nn.Conv2d(channels, wanted, 1, stride, bias=False), nn.BatchNorm2d(wanted))


class ResNet(nn.Module):
    """Residual network that maps (N, 3, H, W) to (N, 1000) logits.

    Args:
        block: type of block in its four stages.
        depths: blocks in each stage.
        zero_init_residual: each block starts as its shortcut, so that a deep network can be trained afresh.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        zero_init_residual: bool = False,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, _STEM, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(_STEM)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = _STEM
        for stage in range(_STAGES):
            width = _STEM << stage
            blocks = [block(channels, width, 1 if stage == 0 else 2)]
            channels = block.widens * width
            blocks += [block(channels, width, 1) for _ in range(depths[stage] - 1)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, _IMAGENET_CLASSES)
        self._draw(zero_init_residual)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits of normalised images."""
        maps = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for stage in range(_STAGES):
            maps = self.get_submodule(f"layer{stage + 1}")(maps)
        logits: Tensor = self.fc(torch.flatten(self.avgpool(maps), 1))
        return logits

    def _draw(self, zero_init_residual: bool) -> None:
        """Applies He's initialisation; normalisations have scale one and shift zero by default."""
        if self.conv1.weight.is_meta:
            return  # nothing to fill, and torch would import its compiler, which takes a second
        # In the order of torchvision's modules, so that a seed draws the same weights.
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif zero_init_residual and isinstance(module, BasicBlock | Bottleneck):
                nn.init.zeros_(module.last_norm.weight)


RESNETS: Mapping[str, Callable[..., nn.Module]] = {
    "resnet18": partial(ResNet, BasicBlock, (2, 2, 2, 2)),
    "resnet101": partial(ResNet, Bottleneck, (3, 4, 23, 3)),
}
"""Builders by name, with ``zero_init_residual`` as an option."""


@dataclass(frozen=True, slots=True, eq=False)
class Trunk:
    """Layers of an architecture from the input to the features.

    Attributes:
        blocks: by name, from the input on; each takes the output of the one before, a single tensor.
        features: channels of the last block's output.
        detector: heads, decoding and loss of a detector; None for a classifier.
    """

    blocks: Mapping[str, nn.Module]
    features: int
    detector: DetectorHeads | None = None


def fresh_network(architecture: str) -> nn.Module:
    """Returns torchvision's network of an architecture, or one with the same weights, freshly initialised."""
    cut = CUTS[architecture]
    own = RESNETS.get(architecture)
    return _of_torchvision(architecture, cut) if own is None else own(**cut.options)


def trunk_of(network: nn.Module, architecture: str) -> Trunk:
    """Cuts a network of ``fresh_network`` into the blocks of ``CUTS``."""
    cut = CUTS[architecture]
    if cut.full_size is not None:
        halving: Any = network.get_submodule(cut.full_size)
        halving.stride = (1, 1)
    return Trunk({name: _together(network, paths) for name, paths in cut.blocks.items()}, cut.features)


def _of_torchvision(architecture: str, how: Cut) -> nn.Module:
    # Imported here: it takes as long as torch, and a process whose models are ResNets does not need it.
    from torchvision.models import get_model

    options = dict(how.options)
    if how.norm is not None:
        options["norm_layer"] = partial(nn.BatchNorm2d, eps=how.norm.eps, momentum=how.norm.momentum)
    net: nn.Module = get_model(architecture, weights=None, **options)
    return net


def _together(net: nn.Module, paths: tuple[str, ...]) -> nn.Module:
    modules = [net.get_submodule(path) for path in paths]
    return modules[0] if len(modules) == 1 else nn.Sequential(*modules)


def _fresh_trunk(architecture: str) -> Trunk:
    return trunk_of(fresh_network(architecture), architecture)


def _of_fastestdet() -> Trunk:
    return Trunk(fastestdet.blocks(), fastestdet.FEATURES, fastestdet.FastestDet())


def _of_student(name: str) -> Trunk:
    return Trunk(*build_student(name))


EDGE_MODELS: Mapping[str, Callable[[], Trunk]] = {
    **{name: partial(_of_student, name) for name in STUDENTS},
    **{name: partial(_fresh_trunk, name) for name in CUTS},
    FASTESTDET: _of_fastestdet,
}
"""Builders of trunks with fresh weights, by name of the architecture."""


def get_ready_to_build(architecture: str) -> None:
    """Imports what a trunk is built of, so that a process's first build takes no longer than the next."""
    with torch.device("meta"):
        EDGE_MODELS[architecture]()
