"""Schema of the golden model in a fleet file."""

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ekya.models.golden.registry import DETECTORS, GOLDEN_NAMES, ONNX, RESNEXT29

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


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

    @model_validator(mode="after")
    def _has_a_file_to_check(self) -> "GoldenSpec":
        if self.sha256 is not None and self.weights is None:
            raise ValueError("sha256 is what a file must be; name the file under weights, or remove it")
        return self


def detector_of(spec: GoldenSpec) -> str | None:
    """Returns the name of the detector behind a golden model, None for other golden models."""
    if spec.model in DETECTORS:
        return spec.model
    return ONNX if spec.weights is not None and spec.weights.suffix.lower() == ".onnx" else None
