"""The golden detector in inference, where λ of it are offered."""

import threading

import numpy as np
from numpy.typing import NDArray

from ekya.config.fleet_file import FleetConfig
from ekya.models.golden.detections import GoldenObjects, Question
from ekya.models.golden.golden_model import GoldenModel, open_golden
from ekya.pipeline.classes import fleet_classes

_NO_BOXES = np.zeros((0, 4), np.float32)
_BLANK = np.zeros((360, 640, 3), np.uint8)


class GoldenInference:
    """Golden detector of the streams of a process, opened on first use. Thread-safe.

    Args:
        fleet: with open classes found.
    """

    def __init__(self, fleet: FleetConfig) -> None:
        self._fleet = fleet
        self._golden: GoldenModel | None = None
        self._lock = threading.Lock()

    def find(self, image: NDArray[np.uint8]) -> GoldenObjects:
        """Returns the objects of an (H, W, 3) uint8 BGR frame."""
        golden = self._opened()
        with self._lock:
            found = golden.find(image)
        assert found is not None, "a fleet file with λ of it names a detector"
        return found

    def operations(self) -> int:
        """Returns the multiplications and additions for a frame; to count them first takes seconds."""
        return self._opened().operations([Question(_NO_BOXES, _BLANK)])

    def warm_up(self) -> None:
        """Opens the detector, and runs the first forward pass, which is slow."""
        self.find(_BLANK)

    def _opened(self) -> GoldenModel:
        with self._lock:
            if self._golden is None:
                fleet = self._fleet
                self._golden = open_golden(fleet.golden, fleet_classes(fleet), fleet.edge.task)
            return self._golden
