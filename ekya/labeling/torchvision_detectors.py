"""torchvision's COCO detectors as golden models."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import get_model

from ekya.labeling.coco import COCO_CATEGORIES, coco_names
from ekya.labeling.detections import Detections
from ekya.labeling.torchvision_weights import load_weights


class TorchvisionDetector:
    """``Detector`` of torchvision, which resizes, normalises and suppresses itself."""

    def __init__(self, name: str, weights: Path | None, min_score: float = 0.5) -> None:
        """Build the model and load its weights.

        Args:
            name: one of ``names.TORCHVISION_DETECTORS``.
            weights: a local file, or None for torchvision's download.
            min_score: detections below are dropped.

        Raises:
            UserError: the weights cannot be loaded or do not fit.
        """
        self._names = coco_names()
        # torchvision's labels include the background and numbers that COCO dropped; these become -1.
        index = {name: row for row, name in enumerate(self._names)}
        self._class_of = np.asarray([index.get(name, -1) for name in COCO_CATEGORIES], dtype=np.int64)
        self._min_score = min_score
        self._operations: dict[tuple[int, int], int] = {}
        self._model: nn.Module = get_model(
            name, weights=None, weights_backbone=None, num_classes=len(COCO_CATEGORIES)
        )
        load_weights(self._model, name, weights)
        self._model.eval()

    @property
    def names(self) -> tuple[str, ...]:
        """COCO's 80 classes."""
        return self._names

    def detect(self, image: NDArray[np.uint8]) -> Detections:
        """Returns the objects in an (H, W, 3) uint8 BGR image."""
        rgb = np.ascontiguousarray(image[:, :, ::-1].transpose(2, 0, 1))
        with torch.inference_mode():
            found = self._model([torch.from_numpy(rgb).float() / 255])[0]
        classes = self._class_of[found["labels"].numpy()]
        scores = found["scores"].numpy().astype(np.float32)
        keep = (classes >= 0) & (scores >= self._min_score)
        order = np.flatnonzero(keep)[np.argsort(-scores[keep], kind="stable")]
        return Detections(found["boxes"].numpy().astype(np.float32), classes, scores).take(order)

    def operations_per_frame(self, shape: tuple[int, ...]) -> int:
        """Returns the operations on noise, counted once per shape.

        A two-stage model does more if it finds more.
        """
        size = (int(shape[0]), int(shape[1]))
        if size not in self._operations:
            noise = torch.rand((3, *size), generator=torch.Generator().manual_seed(0))
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                self._model([noise])
            self._operations[size] = int(counter.get_total_flops())
        return self._operations[size]
