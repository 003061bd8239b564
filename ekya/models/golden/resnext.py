"""Golden model of the synthetic city: a small ResNeXt for crops of 32x32 pixels.

Aggregated residual transformations (Xie et al., CVPR 2017) in the 29-layer form for small images: three
stages of three grouped bottlenecks. It is far slimmer than the published one, because the whole demonstration
has to run on two cores.
"""

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.models.golden.checksum import verified
from ekya.models.golden.classifier import ByFleetClass, GoldenClassifier, grouped
from ekya.models.golden.on_device import place_network
from ekya.models.supervised.network import TrainableNetwork, load_start
from ekya.models.weights import differences, read_safetensors, read_state

ARCHITECTURE = "resnext29"
"""Name of the architecture in the metadata of weights."""

_SHIPPED = "golden_models/synthetic_city_resnext29.safetensors"
_SIDE = 32
_CARDINALITY = 4
_STEM = 32
_STAGES = ((32, 64), (64, 128), (128, 256))
_BLOCKS = 3
_MEAN, _STD = 0.42, 0.24
_REMEDY = "make it again with `ekya golden train`"


def open_resnext29(
    name: str, weights: Path | None, classes: tuple[str, ...], class_map: Path | None, device: str = "cpu"
) -> GoldenClassifier:
    """Opens the small golden model of the synthetic city.

    Args:
        name: of the model, for errors.
        weights: see ``load_resnext29``; None for the shipped ones.
        classes: the fleet's; without a map exactly those of the weights, in their order.
        class_map: file that maps the weights' classes to the fleet's.
        device: torch's name.

    Raises:
        UserError: the weights or the map do not fit.
    """
    file = weights or verified(shipped_path(_SHIPPED))
    trained, names = load_resnext29(file, classes if class_map is None else None)
    network, runs_on = place_network(trained, device, (32, 3, _SIDE, _SIDE))
    if class_map is not None:
        network = ByFleetClass(network, grouped(classes, names, class_map, name))
    return GoldenClassifier(classes, network, _SIDE, runs_on)


class _Bottleneck(nn.Module):
    """Residual block: narrow, grouped convolution, widen."""

    def __init__(self, channels_in: int, width: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, groups=_CARDINALITY, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, channels_out, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, channels_in, H, W) to (N, channels_out, H/stride, W/stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNeXt29(nn.Module):
    """ResNeXt from (N, 3, 32, 32) float RGB in [0, 1] to (N, classes) logits; normalises its input itself."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        # The stem works at full resolution and then halves it: thin structures, such as a bicycle's
        # frame, survive, and the stages cost a quarter of what they would at 32x32.
        layers: list[nn.Module] = [
            nn.Conv2d(3, _STEM // 2, 3, 1, 1, bias=False),
            nn.BatchNorm2d(_STEM // 2),
            nn.ReLU(inplace=True),
            nn.Conv2d(_STEM // 2, _STEM, 3, 2, 1, bias=False),
            nn.BatchNorm2d(_STEM),
            nn.ReLU(inplace=True),
        ]
        channels = _STEM
        for stage, (width, channels_out) in enumerate(_STAGES):
            for block in range(_BLOCKS):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(_Bottleneck(channels, width, channels_out, stride))
                channels = channels_out
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, classes)

    def forward(self, crops: Tensor) -> Tensor:
        """Returns the logits of crops."""
        normalised = ((crops - _MEAN) / _STD).contiguous(memory_format=torch.channels_last)
        features: Tensor = self.features(normalised)
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


def build_resnext29(classes: int) -> nn.Module:
    """Builds an untrained ResNeXt, channels-last for fast inference on one thread.

    It maps (N, 3, 32, 32) float RGB in [0, 1] to (N, classes) logits.
    """
    return ResNeXt29(classes).to(memory_format=torch.channels_last)


def trainable_resnext29(name: str, classes: int, weights: Path | None) -> TrainableNetwork:
    """Returns a ResNeXt to be trained, from weights of such a model, or the shipped ones.

    Eight epochs from the shipped weights are worth sixteen from fresh ones, in cities that are new to them.

    Raises:
        UserError: the weights do not fit.
    """
    network = build_resnext29(classes)
    file = weights or verified(shipped_path(_SHIPPED))
    load_start(network, read_state(file), "head.", str(file), name)
    return TrainableNetwork(name, network, _SIDE, file.name, fresh=False)


def load_resnext29(path: Path, classes: tuple[str, ...] | None) -> tuple[nn.Module, tuple[str, ...]]:
    """Loads the trained ResNeXt, in evaluation mode, and its classes from a safetensors file.

    Args:
        path: weights with the metadata ``architecture`` and ``classes`` (names as JSON).
        classes: the expected classes, in the order of the logits; None for those of the file.

    Raises:
        UserError: the file is missing, truncated, for another architecture or other classes, or its tensors
            have other shapes.
    """
    try:
        tensors, metadata = read_safetensors(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as safetensors ({error}); {_REMEDY}") from error
    held = _check_metadata(path, metadata, classes)
    model = build_resnext29(len(held))
    wrong = differences(tensors, model.state_dict())
    if wrong:
        raise UserError(f"{path}: {wrong[0]} in a {ARCHITECTURE}; {_REMEDY}")
    model.load_state_dict(tensors)
    return model.eval(), held


def _check_metadata(path: Path, metadata: dict[str, str], classes: tuple[str, ...] | None) -> tuple[str, ...]:
    if metadata.get("architecture") != ARCHITECTURE:
        raise UserError(
            f"{path}: holds weights of {metadata.get('architecture', 'an unnamed model')!r} "
            f"instead of {ARCHITECTURE!r}; {_REMEDY}"
        )
    try:
        held = json.loads(metadata.get("classes", "null"))
    except json.JSONDecodeError:
        held = None
    expected = held if classes is None else list(classes)
    if not isinstance(held, list) or held != expected:
        raise UserError(
            f"{path}: distinguishes {held}, in this order, instead of {expected}; "
            "change classes in the fleet file, or train a golden model for them"
        )
    return tuple(str(name) for name in held)
