"""ResNets (He et al., CVPR 2016) for ImageNet's classes, compatible with torchvision's.

Names, shapes and the initial weights of a seed are torchvision's, so weights are interchangeable. The
networks are defined here because torchvision cannot be imported in part, and takes as long as torch itself.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

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
