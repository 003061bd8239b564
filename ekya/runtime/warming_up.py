"""The first passes of a stream's model, which take longer than others, and what a frame costs after them."""

import time
from collections.abc import Iterable

import numpy as np

from ekya.runtime.ready import Ready
from ekya.workers.costs import TYPICAL_OBJECTS
from ekya.workers.inference import Classifier
from ekya.workers.settings import PreparationSettings

_TRIES = 4


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
