"""Opens the weights of a detector, and tells whether two files hold the same ones.

They are published weights, those of an ONNX file, or a model of Ekya's.
"""

from pathlib import Path
from typing import Any

import onnx
import torch
from google.protobuf.message import DecodeError
from onnx import numpy_helper
from torch import Tensor, nn

from ekya.core.errors import UserError
from ekya.models.edge.checkpoints import is_edge_model, load_model
from ekya.models.edge.detection import fastestdet
from ekya.models.edge.forward import PLAIN
from ekya.models.edge.model import EdgeModel, build_edge_model
from ekya.models.edge.predictor import prepared
from ekya.models.golden.class_map import COCO_CATEGORIES, class_of_each, coco_names, listed_names
from ekya.models.weights import differences, read_state

_ROUNDING = 1e-3
"""Largest difference of equal weights, relative to the largest of a kernel."""


_CLASS_BIAS = "head.classes.4.bias"
"""Name of the weight with one value for each class."""

_FIRST_KERNEL = "blocks.0.first.0.weight"
"""Name of the kernel that is for BGR in published files, and for RGB here."""


def open_detector_weights(
    path: Path, architecture: str, fleet: tuple[str, ...], class_map: Path | None = None
) -> EdgeModel:
    """Returns a detector with the weights of a file; its outputs for the fleet's classes have their names.

    Args:
        path: safetensors or a state dict of the published network, its ONNX file, or a model of Ekya's.
        architecture: key of ``EDGE_MODELS``.
        fleet: classes that it must find.
        class_map: file that maps classes of published weights to the fleet's; None if there is none.

    Raises:
        UserError: the file cannot be read, is of another network, or does not know one of the classes.
    """
    is_onnx = path.suffix.lower() == ".onnx"
    if not is_onnx and is_edge_model(path):
        return _own(path, architecture, fleet)
    state = _of_onnx(path, architecture) if is_onnx else fastestdet.renamed(read_state(path))
    if _CLASS_BIAS not in state:
        raise _other_network(path, architecture, f"weight '{_CLASS_BIAS}' is missing")
    outputs = _outputs(path, len(state[_CLASS_BIAS]), fleet, class_map)
    model = build_edge_model(outputs, 0, 0, architecture)
    wrong = differences(state, model.state_dict(), counters=False)
    if wrong:
        raise _other_network(path, architecture, wrong[0])
    state[_FIRST_KERNEL] = state[_FIRST_KERNEL].flip(1)
    # Not strict, since counters of batches may be missing; all else was compared.
    model.load_state_dict(state, strict=False)
    return model.eval()


def _own(path: Path, architecture: str, fleet: tuple[str, ...]) -> EdgeModel:
    model = load_model(path)
    if model.architecture != architecture:
        raise _other_network(path, architecture, f"it is a {model.architecture}")
    missing = [name for name in fleet if name not in model.classes]
    if missing:
        raise UserError(
            f"{path}: this detector does not find '{missing[0]}'; leave that out of the key 'classes', or "
            "name another detector under 'edge.weights'."
        )
    return model


def _other_network(path: Path, architecture: str, why: str) -> UserError:
    return UserError(
        f"{path}: is no {architecture}, which the key 'edge.model' asks for ({why}); name weights of that "
        "detector under 'edge.weights'."
    )


def _outputs(path: Path, count: int, fleet: tuple[str, ...], class_map: Path | None) -> tuple[str, ...]:
    """Returns the names of a model's outputs: the fleet's classes, and what other outputs are called."""
    names = _names(path, count)
    class_of = class_of_each(fleet, names, class_map, f"the detector {path.name}").tolist()
    # An output counts for the class of its name, so one of such a name that the map leaves out is renamed.
    others = [name if name not in fleet else f"other {name}" for name in names]
    return tuple(fleet[index] if index >= 0 else other for index, other in zip(class_of, others, strict=True))


def _names(path: Path, count: int) -> tuple[str, ...]:
    """Returns the classes of published weights: in a file of names beside them, or COCO's.

    Raises:
        UserError: there are neither, or not as many.
    """
    for beside in (path.with_suffix(".names"), path.with_name("coco.names")):
        if beside.is_file() and len(listed := listed_names(beside)) == count:
            return listed
    # COCO's classes, then its category numbers from 1 on, with gaps, then those with background.
    for known in (coco_names(), COCO_CATEGORIES[1:], COCO_CATEGORIES):
        if len(known) == count:
            return known
    raise UserError(
        f"{path}: this detector has {count} classes and their names are not known; list them, one a line, in "
        f"{path.stem}.names beside it."
    )


def _of_onnx(path: Path, architecture: str) -> dict[str, Tensor]:
    """Returns the weights of an ONNX file, in which batch normalisations were merged into convolutions.

    Convolutions are in the order in which the network runs them, which is that of the model's modules.

    Raises:
        UserError: the file is damaged, or its convolutions are not those of the architecture.
    """
    kernels = kernels_of(path)
    model = build_edge_model(("any",), 0, 0, architecture)
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)]
    if len(kernels) != len(layers):
        raise _untrainable(path, architecture, f"{len(kernels)} convolutions instead of {len(layers)}")
    state: dict[str, Tensor] = {}
    for (kernel, bias), (name, layer) in zip(kernels, layers, strict=True):
        if kernel.shape[1:] != layer.weight.shape[1:] or kernel.ndim != 4:
            raise _untrainable(path, architecture, f"a kernel of {tuple(kernel.shape)} for {name}")
        norm = _next_module(name)
        state[f"{name}.weight"] = kernel
        state |= {f"{norm}.{part}": tensor for part, tensor in _norm_of(bias, model, norm).items()}
    return state


def _norm_of(bias: Tensor, model: EdgeModel, norm: str) -> dict[str, Tensor]:
    """Returns a batch normalisation that only adds a bias."""
    eps: Any = model.get_submodule(norm).eps
    ones = torch.ones_like(bias)
    # With this variance the deviation is sqrt(variance + eps) = 1.
    return {"weight": ones, "bias": bias, "running_mean": 0 * bias, "running_var": ones - eps}


def _next_module(name: str) -> str:
    """Returns the name of the batch normalisation behind a convolution in an ``nn.Sequential``."""
    parent, _, place = name.rpartition(".")
    return f"{parent}.{int(place) + 1}"


def kernels_of(path: Path) -> list[tuple[Tensor, Tensor]]:
    """Returns the kernel and bias of each convolution of an ONNX file, in order."""
    try:
        graph = onnx.load(path).graph
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: no such file, named by the key 'edge.weights'; correct the path."
        ) from error
    except (OSError, DecodeError, ValueError) as error:
        raise UserError(
            f"{path}: no whole ONNX file, named by the key 'edge.weights'; copy or export it again."
        ) from error
    tensors = {one.name: one for one in graph.initializer}
    found = []
    for node in graph.node:
        if node.op_type == "Conv" and all(name in tensors for name in node.input[1:]):
            # Copied, since arrays over the bytes of a file are read-only.
            kernel, *bias = (
                torch.from_numpy(numpy_helper.to_array(tensors[name]).copy()).float()
                for name in node.input[1:]
            )
            found.append((kernel, bias[0] if bias else torch.zeros(len(kernel))))
    return found


def _untrainable(path: Path, architecture: str, why: str) -> UserError:
    return UserError(
        f"{path}: cannot be trained as a {architecture}, named by the key 'edge.weights' ({why}); give an "
        "export of that network, or its weights as safetensors."
    )


def is_same_network(model: EdgeModel, path: Path) -> bool:
    """Returns whether the convolutions of an ONNX file are those of a detector, in order.

    Batch normalisations are merged into ours, as they are in the files that exporters write.

    Args:
        model: the detector.
        path: any file; one that is no ONNX file holds another network.
    """
    if path.suffix.lower() != ".onnx":
        return False
    try:
        theirs = kernels_of(path)
    except UserError:
        return False
    merged = prepared(model, "cpu", PLAIN)
    ours = [
        layer.weight.flip(1) if f"{name}.weight" == _FIRST_KERNEL else layer.weight
        for name, layer in merged.named_modules()
        if isinstance(layer, nn.Conv2d)
    ]
    return len(ours) == len(theirs) and all(
        own.shape == other.shape
        and bool(torch.allclose(own, other, rtol=0.0, atol=_ROUNDING * float(other.abs().max())))
        for own, (other, _) in zip(ours, theirs, strict=True)
    )
