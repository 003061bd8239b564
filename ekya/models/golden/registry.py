"""Registry of golden models: each name of the key ``golden.model``, and the function that opens it.

A new golden model is one entry here. An entry names its function as ``module:function``, which is imported
when the model is opened: a fleet file is read without the libraries that run the models.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

RESNEXT29 = "resnext29"
"""The shipped golden model, for the synthetic city."""

RESNEXT101 = "resnext101_32x8d"
"""The paper's golden model, with ImageNet weights."""

ONNX = "onnx"
"""Any detector as an ONNX file, including FastestDet."""

FILE = "file"
"""Labels from a file."""

_GOLDEN = "ekya.models.golden"


@dataclass(frozen=True, slots=True)
class ClassifierEntry:
    """A golden model that classifies given boxes.

    Attributes:
        opener: function of (name, file of weights or None, the fleet's classes, class map or None) that
            returns a ``GoldenClassifier``.
        operations: multiplications and additions for one object, for use before the model is loaded.
    """

    opener: str
    operations: int


CLASSIFIERS: Mapping[str, ClassifierEntry] = {
    RESNEXT29: ClassifierEntry(f"{_GOLDEN}.resnext:open_resnext29", 37_456_896),
    RESNEXT101: ClassifierEntry(f"{_GOLDEN}.torchvision_models:open_resnext101", 32_828_030_976),
    "resnext101_64x4d": ClassifierEntry(f"{_GOLDEN}.torchvision_models:open_resnext101", 30_920_540_160),
}
"""Golden models that classify. The two ResNeXt-101 have ImageNet weights, from torchvision."""

DETECTORS: Mapping[str, str] = {
    "fastestdet": f"{_GOLDEN}.fastestdet:open_fastestdet",
    ONNX: f"{_GOLDEN}.onnx_detector:open_onnx",
    "fasterrcnn_resnet50_fpn_v2": f"{_GOLDEN}.torchvision_models:TorchvisionDetector",
    "fasterrcnn_mobilenet_v3_large_320_fpn": f"{_GOLDEN}.torchvision_models:TorchvisionDetector",
    "ssdlite320_mobilenet_v3_large": f"{_GOLDEN}.torchvision_models:TorchvisionDetector",
    "retinanet_resnet50_fpn_v2": f"{_GOLDEN}.torchvision_models:TorchvisionDetector",
}
"""Functions of (name, file of weights or None, minimum score) that return a ``Detector``."""

GOLDEN_NAMES = (*CLASSIFIERS, *DETECTORS, FILE)
"""Every golden model."""


def imported(opener: str) -> Callable[..., Any]:
    """Imports the function that an entry names."""
    module, name = opener.split(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
