"""Edge model: the compressed network of one camera, a trunk of blocks and a head (paper §2.2, §3.1)."""

import copy
import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ekya.core.objects import SURE
from ekya.models.edge.architecture_table import DEFAULT_ARCHITECTURE, INPUT_MEAN, INPUT_SCALE
from ekya.models.edge.architectures import EDGE_MODELS


class EdgeModel(nn.Module):
    """A classifier or a detector for one camera.

    Attributes:
        architecture: key of ``EDGE_MODELS``.
        classes: names, in the order of the outputs.
        head_width: neurons of a classifier's hidden layer before the classes; 0 is a linear head.
        features: channels of the last block's output.
        blocks: from the input on. ``RetrainConfig.trainable_blocks`` counts them from the end.
        head: features to logits of a classifier, or feature maps to the outputs of a detector.
        kept_heads: heads for the same classes that a classifier had before, by their width; see ``adapt``.
        detector: decodes the outputs of a detector; None for a classifier.
        threshold: score from which what a detector finds counts, in (0, 1); see ``found_in``.
    """

    def __init__(
        self, architecture: str, classes: tuple[str, ...], head_width: int, kept_widths: Iterable[int] = ()
    ) -> None:
        super().__init__()
        trunk = EDGE_MODELS[architecture]()
        self.architecture = architecture
        self.classes = classes
        self.head_width = head_width
        self.features = trunk.features
        self.detector = trunk.detector
        self.threshold = SURE
        self.blocks = nn.ModuleList(trunk.blocks.values())
        self.head = _head(self, head_width, len(classes))
        self.kept_heads = nn.ModuleDict(
            {str(width): _head(self, width, len(classes)) for width in kept_widths}
        )

    def forward(self, images: Tensor) -> Tensor:
        """Maps (N, 3, S, S) float, as ``to_input`` returns them, to outputs.

        Those of a classifier are (N, C) logits; those of a detector are decoded by ``detector``.
        """
        maps = self.maps(images)
        outputs: Tensor = self.head(pool(maps) if self.detector is None else maps)
        return outputs

    def maps(self, images: Tensor) -> Tensor:
        """Maps (N, 3, S, S) float to (N, F, h, w) float feature maps."""
        for block in self.blocks:
            images = block(images)
        return images


def pool(maps: Tensor) -> Tensor:
    """Averages (N, F, h, w) feature maps to (N, F) features."""
    return maps.mean(dim=(2, 3))


def to_input(images: NDArray[np.uint8], device: str, channels_last: bool = False) -> Tensor:
    """Converts (N, S, S, 3) uint8 RGB to (N, 3, S, S) float32, shifted and scaled, on the device.

    Args:
        images: to convert.
        device: torch device.
        channels_last: keep the memory layout of the images.
    """
    # Copied to the device as bytes, a quarter of the floats; ``from_numpy`` refuses negative strides.
    pixels = normalised(torch.from_numpy(np.ascontiguousarray(images)).to(device))
    return pixels if channels_last else pixels.contiguous()


def normalised(pixels: Tensor) -> Tensor:
    """Converts (N, S, S, 3) uint8 RGB to (N, 3, S, S) float32, shifted and scaled; stays channels-last."""
    images = pixels.permute(0, 3, 1, 2).float()
    # In place: ``float`` has made a copy of the bytes.
    return images.div_(255.0).sub_(INPUT_MEAN).div_(INPUT_SCALE)


def build_edge_model(
    classes: tuple[str, ...], head_width: int, seed: int, architecture: str = DEFAULT_ARCHITECTURE
) -> EdgeModel:
    """Builds a model with fresh weights; the same seed gives the same weights."""
    # Trunks draw from the global generator. No GPU's is forked: that would initialise CUDA.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = EdgeModel(architecture, classes, head_width)
    # Drawn again, so that the head does not depend on how much the trunk has drawn before.
    _initialise(model.head, seed)
    return model.eval()


def clone(model: EdgeModel, shared: Mapping[int, Tensor] | None = None) -> EdgeModel:
    """Returns a copy with the same weights on the same device.

    Args:
        model: the model to copy.
        shared: tensors that the copy uses in place of the model's, by the ``id`` of the model's; without any
            the copy is independent.
    """
    # ``deepcopy`` takes what its memo has by ``id``, and adds to the memo: hence a new dictionary.
    return copy.deepcopy(model, dict(shared or {}))


def adapt(
    model: EdgeModel,
    classes: tuple[str, ...],
    head_width: int,
    seed: int,
    shared: Mapping[int, Tensor] | None = None,
) -> EdgeModel:
    """Returns a copy of the model with this head; the trunk's weights do not change.

    A detector keeps its head. Of each head width a classifier keeps the last head, so that a width it had
    before continues there; only a new one is initialised. Outputs of classes that the model knows are kept,
    by name, and only new classes are initialised. ``shared`` as in ``clone``.
    """
    adapted = clone(model, shared)
    if model.detector is not None or (classes == model.classes and head_width == model.head_width):
        return adapted
    device = next(model.parameters()).device
    known = {int(width): head for width, head in model.kept_heads.items()} | {model.head_width: model.head}
    heads = {
        width: _with_outputs(model, width, known.get(width), classes, seed).to(device)
        for width in (head_width, *known)
    }
    adapted.classes, adapted.head_width = classes, head_width
    adapted.head = heads.pop(head_width)
    adapted.kept_heads = nn.ModuleDict({str(width): head for width, head in heads.items()})
    # New heads begin in training mode.
    return adapted.train(model.training)


def known_outputs(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """Returns the positions in ``old`` and in ``new`` of the classes that both have, pair by pair."""
    shared = [(old.index(name), place) for place, name in enumerate(new) if name in old]
    return [place for place, _ in shared], [place for _, place in shared]


def _with_outputs(
    model: EdgeModel, width: int, head: nn.Module | None, classes: tuple[str, ...], seed: int
) -> nn.Module:
    """Returns a head of this width for ``classes``; it continues ``head``, one of the model's, if given."""
    continued = _head(model, width, len(classes))
    _initialise(continued, seed)
    if head is None:
        return continued
    old, new = linear_layers(head), linear_layers(continued)
    from_rows, to_rows = known_outputs(model.classes, classes)
    with torch.no_grad():
        for before, after in zip(old[:-1], new[:-1], strict=True):
            after.weight.copy_(before.weight)
            after.bias.copy_(before.bias)
        # ``copy_`` crosses devices, an assignment to rows does not.
        new[-1].weight[to_rows] = old[-1].weight[from_rows].to(new[-1].weight.device)
        new[-1].bias[to_rows] = old[-1].bias[from_rows].to(new[-1].bias.device)
    return continued


def linear_layers(head: nn.Module) -> list[nn.Linear]:
    """Returns the linear layers of a head, from the features to the classes."""
    return [module for module in head.modules() if isinstance(module, nn.Linear)]


def _head(model: EdgeModel, width: int, classes: int) -> nn.Module:
    if model.detector is not None:
        return model.detector.heads(classes)
    if width == 0:
        return nn.Linear(model.features, classes)
    return nn.Sequential(nn.Linear(model.features, width), nn.ReLU(), nn.Linear(width, classes))


def _initialise(head: nn.Module, seed: int) -> None:
    # Drawn on the CPU, so that a seed means the same weights on every device.
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in linear_layers(head):
            bound = 1.0 / math.sqrt(layer.in_features)
            drawn = torch.rand(layer.weight.shape, generator=generator, device="cpu")
            layer.weight.copy_((2 * drawn - 1) * bound)
            layer.bias.zero_()


class Suffix(nn.Module):
    """The trainable end of a model: its last blocks and the head, sharing the model's weights."""

    def __init__(self, blocks: nn.Sequential, head: nn.Module, pools: bool) -> None:
        super().__init__()
        self.blocks, self.head, self._pools = blocks, head, pools

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps activations at the boundary to outputs.

        For a classifier of which no block is trained these activations are (N, F) features.
        """
        maps = self.blocks(inputs)
        outputs: Tensor = self.head(pool(maps) if self._pools else maps)
        return outputs


class Prefix(nn.Module):
    """The frozen beginning of a model, sharing the model's weights."""

    def __init__(self, blocks: nn.Sequential, pools: bool) -> None:
        super().__init__()
        self.blocks, self._pools = blocks, pools

    def forward(self, images: Tensor) -> Tensor:
        """Maps (N, 3, S, S) to activations at the boundary; see ``Suffix``."""
        activations: Tensor = self.blocks(images)
        return pool(activations) if self._pools else activations


def split_at(model: EdgeModel, trainable_blocks: int) -> tuple[Prefix, Suffix]:
    """Returns the frozen beginning and the trainable end; ``trainable_blocks`` counts from the end."""
    boundary = len(model.blocks) - trainable_blocks
    if not 0 <= boundary <= len(model.blocks):
        raise ValueError(f"{model.architecture} has {len(model.blocks)} blocks, not {trainable_blocks}")
    blocks = list(model.blocks)
    classifies = model.detector is None
    prefix = Prefix(nn.Sequential(*blocks[:boundary]), pools=classifies and trainable_blocks == 0)
    return prefix, Suffix(
        nn.Sequential(*blocks[boundary:]), model.head, pools=classifies and trainable_blocks > 0
    )


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Returns whether two modules of one kind have the same weights and statistics."""
    if one is other:
        return True
    pairs = zip([*one.parameters(), *one.buffers()], [*other.parameters(), *other.buffers()], strict=True)
    return all(torch.equal(mine, its.to(mine.device)) for mine, its in pairs)


def on_cpu(frozen: nn.Module) -> dict[int, Tensor]:
    """Returns a module's tensors on the CPU, by the ``id`` of each; tensors already there are not copied."""
    # New parameters over the same memory: a copy may freeze or move them, and the model's stay as they are.
    weights = {
        id(weight): nn.Parameter(weight.detach().cpu(), requires_grad=False) for weight in frozen.parameters()
    }
    return {**weights, **{id(buffer): buffer.cpu() for buffer in frozen.buffers()}}
