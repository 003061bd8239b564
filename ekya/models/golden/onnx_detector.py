"""Detectors as ONNX files; ``onnx_layouts.py`` has the table of what is supported."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ekya.models.golden.checksum import existing
from ekya.models.golden.detections import Detections, Detector
from ekya.models.golden.nms import suppressed
from ekya.models.golden.onnx_file import Answers, OnnxFile, names_of, open_file
from ekya.models.golden.onnx_layouts import Layout, layout_of, refused


def open_onnx(name: str, weights: Path | None, min_score: float) -> Detector:
    """Opens a detector from an ONNX file; its layout is determined by running it once.

    Args:
        name: of the detector, for errors.
        weights: the file. Its classes are those of ``names_of``.
        min_score: detections below are dropped.

    Raises:
        UserError: the file is missing, damaged, or has none of the supported layouts.
    """
    path = existing(name, weights)
    file = open_file(path)
    names = names_of(file)
    return OnnxDetector(file, names, layout_of(file, _tried(file), names), min_score)


@dataclass(slots=True, eq=False)
class OnnxDetector:
    """``Detector`` from an ONNX file. Suppression is class-wise; repeating it changes nothing."""

    file: OnnxFile
    names: tuple[str, ...]
    layout: Layout
    min_score: float
    _operations: int = 0

    def detect(self, image: NDArray[np.uint8]) -> Detections:
        """Returns the objects in an (H, W, 3) uint8 BGR image, at most 300."""
        height, width = image.shape[:2]
        picture, scale, border = self.layout.fit(image, self.file.height, self.file.width)
        with np.errstate(all="ignore"):  # Foreign answers may overflow; what is not finite is dropped.
            found = self.layout.decode(self.file.run(picture, (width, height)))
            boxes = ((found.boxes - np.tile(border, 2)) / np.tile(scale, 2)).astype(np.float32)
        placed = Detections(boxes, found.classes, found.scores)
        return suppressed(placed, width, height, len(self.names), self.min_score, self.layout.max_iou)

    def operations_per_frame(self, shape: tuple[int, ...]) -> int:
        """Returns the multiplications and additions; the same for every shape, as images are resized."""
        if not self._operations:
            self._operations = self.file.operations()
        return self._operations


def _tried(file: OnnxFile) -> Answers:
    """Returns the answers to noise, in which a network half sees objects of many classes."""
    noise = np.random.default_rng(0).random((3, file.height, file.width), np.float32)
    try:
        return file.run(noise, (file.width, file.height))
    except Exception as error:  # onnxruntime's exceptions have no other common base.
        raise refused(
            file.path, f"nothing to a picture of noise ({str(error)[:160]})", "export it again"
        ) from error
