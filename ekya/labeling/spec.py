"""What a fleet file says of the golden model."""

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ekya.labeling.names import DETECTOR_NAMES, GOLDEN_NAMES, ONNX, RESNEXT29

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


class GoldenSpec(BaseModel):
    """What a fleet file says about its golden model.

    Attributes:
        model: one of ``GOLDEN_NAMES``.
        weights: a local file; None for the shipped weights or the model's own download. A file
            that ends in ``.onnx`` is a detector's, whatever the model is called. For ``file`` it is the
            file of labels.
        sha256: what the file of ``weights`` must be, in hexadecimal digits; None for what its card says.
        class_map: YAML, which of the golden model's classes count for which of the fleet's; None for
            the shipped maps.
        labels_per_window: at most so many objects a stream and window are labelled.
        gpu_s_per_window: GPU-seconds that labelling a stream's window may take; None for any.
        policy: which objects are labelled, a name in ``profiling/label_policy.py``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = RESNEXT29
    weights: Path | None = None
    sha256: str | None = None
    class_map: Path | None = None
    labels_per_window: int = Field(default=96, ge=1)
    gpu_s_per_window: float | None = Field(default=None, gt=0)
    policy: str = "uniform"

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
    """Name of the detector behind a golden model, None where it is a classifier."""
    if spec.model in DETECTOR_NAMES:
        return spec.model
    return ONNX if spec.weights is not None and spec.weights.suffix.lower() == ".onnx" else None
