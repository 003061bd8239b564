"""The golden detector in inference, where λ of it are offered."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import NDArray

from ekya.config.fleet_file import FleetConfig
from ekya.models.golden.detections import GoldenObjects, Question
from ekya.models.golden.golden_model import GoldenModel, open_golden
from ekya.pipeline.costs import TYPICAL_FRAME
from ekya.pipeline.discover_classes import fleet_classes

TYPICAL_QUESTION = Question(np.zeros((0, 4), np.float32), np.zeros(TYPICAL_FRAME, np.uint8))
"""A frame, to count the golden detector's operations on it, and to warm it up."""


class GoldenInference:
    """Golden detector of the streams of a process, opened on first use. Thread-safe.

    Args:
        fleet: with open classes found.
        scope: context of each analysis; may block before and after it until its share lets it run.
    """

    def __init__(
        self, fleet: FleetConfig, scope: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._fleet, self._scope = fleet, scope
        self._golden: GoldenModel | None = None
        self._lock = threading.Lock()

    def find(self, image: NDArray[np.uint8]) -> GoldenObjects:
        """Returns the objects of an (H, W, 3) uint8 BGR frame."""
        with self._lock:
            golden = self._opened()
            # Inside the lock: who waits for another stream's frame has no batch under way.
            with self._scope():
                found = golden.find(image)
        assert found is not None, "a fleet file with λ of it names a detector"
        return found

    def operations(self) -> int:
        """Returns the multiplications and additions for a frame; to count them first takes seconds."""
        with self._lock:
            return self._opened().operations([TYPICAL_QUESTION])

    def warm_up(self) -> None:
        """Opens the detector and runs the first forward pass, which is slow, unless it is already open.

        Before a run there is no share, so it waits for none.
        """
        with self._lock:
            if self._golden is None:
                self._opened().find(TYPICAL_QUESTION.picture)

    def _opened(self) -> GoldenModel:
        if self._golden is None:
            fleet = self._fleet
            self._golden = open_golden(fleet.golden, fleet_classes(fleet), fleet.edge.task)
        return self._golden
