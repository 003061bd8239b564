"""Registry of detectors by name."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ekya.core.errors import UserError
from ekya.models.golden.detections import Detector
from ekya.models.golden.fastestdet import FastestDet
from ekya.models.golden.spec import FASTESTDET, ONNX, TORCHVISION_DETECTORS

GOLDEN_SCORE = 0.6
PROPOSAL_SCORE = 0.4


def _from_file(
    name: str, opened: Callable[[Path, float], Detector], weights: Path | None, min_score: float
) -> Detector:
    if weights is None:
        raise UserError(f"{name} has no download; give its ONNX file under the key 'weights'.")
    return opened(weights, min_score)


def _onnx(weights: Path, min_score: float) -> Detector:
    # Imported for this detector only, because of onnxruntime.
    from ekya.models.golden.onnx_detector import open_onnx

    return open_onnx(weights, min_score)


def _torchvision(name: str, weights: Path | None, min_score: float) -> Detector:
    # Imported for these detectors only: torchvision takes as long as torch to import.
    from ekya.models.golden.torchvision_models import TorchvisionDetector

    return TorchvisionDetector(name, weights, min_score)


DETECTORS: Mapping[str, Callable[[Path | None, float], Detector]] = {
    FASTESTDET: partial(_from_file, FASTESTDET, FastestDet),
    ONNX: partial(_from_file, ONNX, _onnx),
    **{name: partial(_torchvision, name) for name in TORCHVISION_DETECTORS},
}
"""Functions that open each detector, from weights (None: its own download) and minimum score."""


def open_detector(name: str, weights: Path | None, min_score: float = GOLDEN_SCORE) -> Detector:
    """Opens a detector by name.

    Raises:
        UserError: no such name, or the weights cannot be loaded or do not fit.
    """
    if name not in DETECTORS:
        raise UserError(f"key 'model': no detector is called '{name}'; use one of {', '.join(DETECTORS)}.")
    return DETECTORS[name](weights, min_score)
