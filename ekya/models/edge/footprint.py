"""Estimates the memory of a training from the trainer's modules, without allocating any."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ekya.core.gpus import Footprint
from ekya.core.profile import Family
from ekya.models.edge.architecture_table import DEFAULT_ARCHITECTURE, Task, task_of
from ekya.models.edge.model import EdgeModel, Prefix, Suffix, build_edge_model, split_at
from ekya.models.edge.predictor import FORWARD_BATCH

COUNTED_CROPS = 2
_CLASSES, _DETECTED_CLASSES = 6, 80


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """A model cut for training, and a batch, all of zeros: counting needs shapes only."""

    model: EdgeModel
    prefix: Prefix
    suffix: Suffix
    images: Tensor
    labels: Tensor

    def loss(self, boundary: Tensor) -> Tensor:
        """Returns a loss for activations at the boundary: the model's own, or for a detector one like it."""
        outputs: Tensor = self.suffix(boundary)
        return cross_entropy(outputs, self.labels) if self.model.detector is None else outputs.square().mean()


def shapes_of(
    architecture: str, head_width: int, trainable_blocks: int, side: int, device: str = "meta"
) -> Shapes:
    """Returns a model and a batch of ``COUNTED_CROPS`` images of this side in pixels.

    On ``meta`` they take no memory, but the first layer that runs there loads torch's compiler, a second.
    """
    classes = _DETECTED_CLASSES if task_of(architecture) is Task.DETECT else _CLASSES
    names = tuple(str(index) for index in range(classes))
    with torch.device("meta"):
        model = build_edge_model(names, head_width, 0, architecture)
    if device != "meta":
        zeros = {
            name: torch.zeros(of.shape, dtype=of.dtype, device=device)
            for name, of in model.state_dict().items()
        }
        model.load_state_dict(zeros, assign=True)
    images = torch.zeros(COUNTED_CROPS, 3, side, side, device=device)
    labels = torch.zeros(COUNTED_CROPS, dtype=torch.int64, device=device)
    prefix, suffix = split_at(model, trainable_blocks)
    # As in a training, so that no gradient passes the boundary.
    prefix.requires_grad_(False)
    return Shapes(model, prefix, suffix, images, labels)


@lru_cache
def footprint_of(family: Family, side: int, architecture: str = DEFAULT_ARCHITECTURE) -> Footprint:
    """Returns the memory that training this family keeps, for crops of this side in pixels, in 32 bits.

    The workspace of libraries for convolutions is not included: it can only be measured on a GPU. Kernels
    count whole; trimmed ones (``trimmed_kernels.py``) take less.
    """
    parts = shapes_of(architecture, family.head_width, family.trainable_blocks, side)
    model, suffix, images = parts.model, parts.suffix, parts.images
    with _passing_bytes(model) as passed:
        boundary: Tensor = parts.prefix(images)
        with torch.no_grad():
            suffix(boundary)
    return Footprint(
        model_bytes=sum(_bytes(tensor) for tensor in (*model.parameters(), *model.buffers())),
        trained_bytes=sum(_bytes(weight) for weight in suffix.parameters()),
        input_bytes=_bytes(images) // COUNTED_CROPS,
        boundary_bytes=_bytes(boundary) // COUNTED_CROPS,
        passing_bytes=max(passed) // COUNTED_CROPS,
        saved_bytes=_saved_bytes(parts, boundary) // COUNTED_CROPS,
        forward_crops=FORWARD_BATCH,
    )


@contextmanager
def _passing_bytes(model: nn.Module) -> Iterator[list[int]]:
    """Yields a list of the bytes of input and output of each layer that runs meanwhile."""
    passed: list[int] = []

    def see(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        passed.append(sum(map(_bytes, inputs)) + _bytes(output))

    with ExitStack() as hooks:
        for module in model.modules():
            if not list(module.children()):
                hooks.callback(module.register_forward_hook(see).remove)
        yield passed


def _saved_bytes(parts: Shapes, boundary: Tensor) -> int:
    """Returns the bytes that autograd keeps of a batch besides the weights, each tensor once."""
    suffix = parts.suffix
    weights = {_storage(tensor) for tensor in (*suffix.parameters(), *suffix.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if _storage(tensor) not in weights:
            # The tensor is held, so that no later storage gets the address of a freed one.
            kept[_storage(tensor)] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        parts.loss(boundary)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def _storage(tensor: Tensor) -> int:
    # On ``meta`` all addresses of data are 0, so storages are told apart by their objects.
    return int(tensor.untyped_storage()._cdata)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
