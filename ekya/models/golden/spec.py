"""Golden models by name, and their schema in a fleet file.

A new golden model is one entry here. An entry names its function as ``module:function``, which is imported
when the model is opened: a fleet file is read without the libraries that run the models.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ekya.core.plug_ins import PlugInGroup, find_plug_ins

RESNEXT29 = "resnext29"
"""The shipped golden model, for the synthetic city."""

RESNEXT101 = "resnext101_32x8d"
"""The paper's golden model, with ImageNet weights."""

ONNX = "onnx"
"""Any detector as an ONNX file, including FastestDet."""

FILE = "file"
"""Labels from a file."""

_GOLDEN = "ekya.models.golden"
_OF_TORCHVISION = (
    f"{_GOLDEN}.torchvision_models:open_resnext101",
    f"{_GOLDEN}.torchvision_models:trainable_resnext101",
)

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class ClassifierEntry:
    """A golden model that classifies given boxes.

    Attributes:
        opener: function of (name, file of weights or None, the fleet's classes, class map or None, torch
            device) that returns a ``GoldenClassifier``.
        trainable: function of (name, number of classes, file of first weights or None) that returns a
            ``TrainableNetwork``.
        operations: multiplications and additions for one object, for use before the model is loaded.
    """

    opener: str
    trainable: str
    operations: int


CLASSIFIERS: Mapping[str, ClassifierEntry] = {
    RESNEXT29: ClassifierEntry(
        f"{_GOLDEN}.resnext:open_resnext29", f"{_GOLDEN}.resnext:trainable_resnext29", 37_456_896
    ),
    RESNEXT101: ClassifierEntry(*_OF_TORCHVISION, 32_828_030_976),
    "resnext101_64x4d": ClassifierEntry(*_OF_TORCHVISION, 30_920_540_160),
}
"""Golden models that classify. The two ResNeXt-101 have ImageNet weights, from torchvision."""

DETECTORS: Mapping[str, str] = {
    **{point.name: point.value for point in find_plug_ins(PlugInGroup.GOLDEN_MODELS).values()},
    "fastestdet": f"{_GOLDEN}.onnx_detector:open_onnx",
    ONNX: f"{_GOLDEN}.onnx_detector:open_onnx",
    "fasterrcnn_resnet50_fpn_v2": f"{_GOLDEN}.torchvision_models:TorchvisionDetector",
    "fasterrcnn_mobilenet_v3_large_320_fpn": f"{_GOLDEN}.torchvision_models:TorchvisionDetector",
    "ssdlite320_mobilenet_v3_large": f"{_GOLDEN}.torchvision_models:TorchvisionDetector",
    "retinanet_resnet50_fpn_v2": f"{_GOLDEN}.torchvision_models:TorchvisionDetector",
}
"""Functions of (name, file of weights or None, minimum score, device) that return a ``ObjectDetector``."""

GOLDEN_NAMES = (*CLASSIFIERS, *DETECTORS, FILE)
"""Every golden model."""


LAYOUT_WORDS: Mapping[str, tuple[str, ...]] = {
    "order": ("x1y1x2y2", "y1x1y2x2", "cxcywh", "xywh"),
    "units": ("pixels", "parts"),
    "scores": ("scores", "logits", "softmax"),
    "classes": ("from-0", "from-1", "categories"),
    "columns": ("box-score-class", "box-class-score", "class-score-box", "score-class-box"),
    "fit": ("letterbox", "stretch"),
    "colours": ("rgb", "bgr"),
    "range": ("0..1", "0..255", "imagenet"),
}
"""Words of ``golden.layout``, by what they say."""


def layout_words(layout: str) -> dict[str, str]:
    """Returns the words of a ``golden.layout``, by what they say.

    Raises:
        ValueError: a word is unknown, or contradicts an earlier one.
    """
    said: dict[str, str] = {}
    for word in layout.replace(",", " ").split():
        kind = next((kind for kind, words in LAYOUT_WORDS.items() if word in words), None)
        if kind is None:
            every = ", ".join(one for words in LAYOUT_WORDS.values() for one in words)
            raise ValueError(f"layout has no word '{word}'; use some of {every}")
        if said.setdefault(kind, word) != word:
            raise ValueError(f"layout has both {said[kind]} and {word}; keep the right one")
    return said


def is_of_torchvision(detector: str) -> bool:
    """Returns whether a golden detector has COCO's classes, and takes seconds to load."""
    return DETECTORS[detector].startswith(f"{_GOLDEN}.torchvision_models:")


def imported(opener: str) -> Callable[..., Any]:
    """Imports the function that an entry names."""
    module, name = opener.split(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


class GoldenSpec(BaseModel):
    """Golden model of a fleet file.

    Attributes:
        model: the model that labels. ``resnext29`` (shipped, for the synthetic city), ``resnext101_32x8d``
            and ``resnext101_64x4d`` (ImageNet weights of torchvision) classify given boxes. ``fastestdet``,
            ``onnx`` (any detector as an ONNX file), ``fasterrcnn_resnet50_fpn_v2``,
            ``fasterrcnn_mobilenet_v3_large_320_fpn``, ``ssdlite320_mobilenet_v3_large`` and
            ``retinanet_resnet50_fpn_v2`` (COCO weights of torchvision) also find the objects. ``file`` takes
            labels that ``ekya golden label`` made before.
        weights: a local file; None for the shipped weights or the model's own download. A file that ends in
            ``.onnx`` is opened as a detector even if ``model`` names another golden model. For ``file`` it
            is the label file.
        sha256: checksum of the file of ``weights``, in hexadecimal digits; None for that of its card.
        layout: what the input and the outputs of an ONNX file mean, in words, where its answers do not show
            it: ``cxcywh parts``, for example.
        class_map: YAML file that maps the golden model's classes to the fleet's; None for the shipped maps.
        labels_per_window: maximum number of objects that are labelled per stream and window, for edge models
            that classify.
        frames_per_window: number of frames that are labelled per stream and window, for those that detect.
        gpu_s_per_window: GPU-seconds that labelling a stream's window may take; None for no limit.
        audit_frames: number of frames per stream and window on which a service compares its answers with the
            golden model, to know its accuracy; nothing learns from them. 0 for none. A run has none: it is
            scored at its end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = RESNEXT29
    weights: Path | None = None
    sha256: str | None = None
    layout: str | None = None
    class_map: Path | None = None
    labels_per_window: int = Field(default=96, ge=1)
    frames_per_window: int = Field(default=24, ge=4, le=48)
    gpu_s_per_window: float | None = Field(default=None, gt=0)
    audit_frames: int = Field(default=4, ge=0, le=48)

    @field_validator("model")
    @classmethod
    def _known(cls, model: str) -> str:
        if model not in GOLDEN_NAMES:
            raise ValueError(f"no golden model is called '{model}'; use one of {', '.join(GOLDEN_NAMES)}")
        return model

    @field_validator("sha256")
    @classmethod
    def _is_a_checksum(cls, sha256: str | None) -> str | None:
        if sha256 is not None and not _SHA256.fullmatch(sha256):
            raise ValueError(f"'{sha256[:16]}' is no SHA-256; write the 64 digits that sha256sum prints")
        return sha256

    @field_validator("layout")
    @classmethod
    def _is_of_known_words(cls, layout: str | None) -> str | None:
        layout_words(layout or "")
        return layout

    @model_validator(mode="after")
    def _has_a_file_to_check(self) -> "GoldenSpec":
        if self.sha256 is not None and self.weights is None:
            raise ValueError("sha256 is what a file must be; name the file under weights, or remove it")
        if self.layout is not None and DETECTORS.get(detector_of(self) or "") != DETECTORS[ONNX]:
            raise ValueError("layout is of an ONNX file; name one under weights, or remove it")
        return self


def detector_of(spec: GoldenSpec) -> str | None:
    """Returns the name of the detector behind a golden model, None for other golden models."""
    if spec.model in DETECTORS:
        return spec.model
    return ONNX if spec.weights is not None and spec.weights.suffix.lower() == ".onnx" else None
