"""Frames with bright rectangles, and detectors that read class and confidence from their colour."""

from types import SimpleNamespace

import cv2
import numpy as np
from street import t_us

from ekya.core.objects import SURE
from ekya.models.edge.detection.read_objects import BoxCandidates
from ekya.models.golden.detections import ON_CPU, Detections
from ekya.pipeline.collector import LONGEST_SIDE, CollectedFrame
from ekya.pipeline.inference import ServingDetector
from ekya.streams.ingest.pictures import shrink_by_area

FLEET = ("car", "person")
NAMES = ("person", "kite", "car")
"""Classes of the detectors, in another order and with one more."""

SIZE = (120, 80)
_STEP = 60
_LEAST_PIXELS = 5


def picture(*objects, size=SIZE):
    """Returns a BGR image with rectangles (x0, y0, x1, y1, name, confidence)."""
    image = np.zeros((size[1], size[0], 3), np.uint8)
    for x0, y0, x1, y1, name, confidence in objects:
        image[y0:y1, x0:x1] = (round(255 * confidence), 255, _STEP * (1 + NAMES.index(name)))
    return image


def seen_in(image):
    """Returns the rectangles in a BGR image as a detector of ``NAMES`` does; tiny ones are missed."""
    parts, of, stats, _ = cv2.connectedComponentsWithStats((image[..., 1] > 127).astype(np.uint8))
    rows = [
        (
            [left, top, left + width, top + height],
            round(float(np.median(image[of == part][:, 2])) / _STEP) - 1,
            float(np.median(image[of == part][:, 0])) / 255,
        )
        for part, (left, top, width, height, _) in zip(range(1, parts), stats[1:].tolist(), strict=True)
        if min(width, height) >= _LEAST_PIXELS
    ]
    return Detections(
        np.array([box for box, _, _ in rows], np.float32).reshape(-1, 4),
        np.array([name for _, name, _ in rows], np.int64),
        np.array([score for _, _, score in rows], np.float32),
    )


class BrightDetector:
    """Detector of the rectangles, for a golden model."""

    names = NAMES
    runs_on = ON_CPU

    def detect_objects(self, image):
        return seen_in(image)

    def detect_each(self, images):
        return [self.detect_objects(image) for image in images]

    def operations_per_frame(self, shape):
        return 1


class BrightPredictor:
    """Predictor of the rectangles, for an edge model; ``sees`` are the names that it finds."""

    def __init__(self, sees=NAMES):
        self._sees = sees

    def predict(self, images, resolution):
        boxes = np.zeros((len(images), 8, 4), np.float32)
        scores, outputs = np.zeros((len(images), 8), np.float32), np.zeros((len(images), 8), np.int64)
        for at, image in enumerate(images):
            found = seen_in(cv2.resize(image, (resolution, resolution))[..., ::-1])
            found = found.select_rows(np.isin(found.classes, [NAMES.index(name) for name in self._sees]))
            count = len(found.classes)
            boxes[at, :count] = found.boxes / resolution
            scores[at, :count], outputs[at, :count] = found.scores, found.classes
        return BoxCandidates(boxes, scores, outputs)


class Namespace(SimpleNamespace):
    """A namespace that can be referred to weakly, as a model can."""


def serving_detector(sees=NAMES):
    """Returns an edge model that finds the rectangles, ready to serve."""
    model = Namespace(classes=NAMES, detector=object(), threshold=SURE)
    return ServingDetector(model, FLEET, SimpleNamespace(predictor_for=lambda _model: BrightPredictor(sees)))


def kept(index, *objects, size=SIZE):
    """Returns a frame with rectangles as the collector keeps it for a detector."""
    image = shrink_by_area(picture(*objects, size=size), LONGEST_SIDE)
    nothing = np.zeros((0, 4), np.float32)
    crops = np.zeros((0, 8, 8, 3), np.uint8)
    return CollectedFrame(
        index, t_us(index), nothing, np.zeros(0, np.int64), crops, image, None, size, stream="cam"
    )
