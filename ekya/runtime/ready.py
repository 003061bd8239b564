"""What is known of a stream before the run begins."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ekya.workers.costs import TYPICAL_OBJECTS
from ekya.workers.inference import Classifier
from ekya.workers.preparation import PreparationSettings

_TRIES = 4


@dataclass(frozen=True, slots=True)
class Ready:
    """A stream that can begin.

    Attributes:
        settings: of it.
        frame_gpu_s: GPU-seconds to analyse a typical frame, per resolution, as just measured.
    """

    settings: PreparationSettings
    frame_gpu_s: Mapping[int, float]


def warmed_up(settings: PreparationSettings, classifier: Classifier, resolutions: Iterable[int]) -> Ready:
    """Warms a stream's model up and measures what a frame costs."""
    crops = np.zeros((round(TYPICAL_OBJECTS), settings.side, settings.side, 3), np.uint8)
    costs = {}
    for resolution in resolutions:
        took = []
        for _ in range(_TRIES):
            began = time.thread_time()
            classifier.predict(crops, resolution)
            took.append(time.thread_time() - began)
        costs[resolution] = min(took)
    return Ready(settings, costs)
