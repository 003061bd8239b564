"""Warm-up forward passes of a model before the run begins; the first ones are slow."""

from collections.abc import Iterable

import numpy as np

from ekya.core.host import TYPICAL_OBJECTS
from ekya.pipeline.inference import Classifier
from ekya.pipeline.settings import PreparationSettings
from ekya.runtime.ready import Ready


def warmed_up(settings: PreparationSettings, classifier: Classifier, resolutions: Iterable[int]) -> Ready:
    """Runs a stream's model at each resolution."""
    crops = np.zeros((round(TYPICAL_OBJECTS), settings.side, settings.side, 3), np.uint8)
    for resolution in resolutions:
        classifier.predict(crops, resolution)
    return Ready(settings)
