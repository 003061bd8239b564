"""Runs fast forward passes of a detector over images."""

import numpy as np
import torch
from numpy.typing import NDArray

from ekya.models.edge.detection.suppress import Candidates
from ekya.models.edge.forward import PLAIN, ForwardWay
from ekya.models.edge.model import EdgeModel, normalised
from ekya.models.edge.predictor import on_device, prepared, resized


class DetectorPredictor:
    """Frozen copy of a detector, prepared for fast inference on a device."""

    def __init__(self, model: EdgeModel, device: str = "cpu", way: ForwardWay = PLAIN) -> None:
        self.source, self.classes, self.way = model, model.classes, way
        self.dtype = torch.float32
        self._device = device
        self.model = prepared(model, device, way).to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def predict(self, images: NDArray[np.uint8], resolution: int) -> Candidates:
        """Returns the candidates in (N, S, S, 3) uint8 RGB, resized to this side."""
        detector = self.model.detector
        assert detector is not None
        pixels = resized(normalised(on_device(images, self._device)), resolution)
        return Candidates.of(detector.decode(self.model(pixels)))
