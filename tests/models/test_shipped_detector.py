"""The detector that ships: for when no weights from pictures are at hand."""

from itertools import islice

import cv2
import numpy as np
import pytest

from ekya.config.shipped import shipped_detector
from ekya.core.objects import iou_matrix
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.detection.read_objects import fleet_outputs, found_in
from ekya.models.edge.detection.weights import open_detector_weights
from ekya.models.golden.checksum import verified
from ekya.streams.synthetic import KINDS, CitySpec, StreetScene


@pytest.mark.parametrize("fleet", [KINDS, ("person",)])
def test_shipped_detector_is_that_of_its_card_and_has_the_citys_classes(fleet: tuple[str, ...]) -> None:
    assert open_detector_weights(verified(shipped_detector()), FASTESTDET, fleet).classes == KINDS


def test_shipped_detector_finds_objects_in_the_city() -> None:
    model = open_detector_weights(shipped_detector(), FASTESTDET, KINDS)
    predictor = DetectorPredictor(model)
    city = CitySpec(seed=40, fps=0.2, scenes=(StreetScene(view="side", density=5),))
    objects = hits = 0
    for frame, truth in islice(city.open(KINDS).frames(), 6):
        assert truth is not None
        square = cv2.resize(frame.image, (256, 256))
        candidates = predictor.predict(square[None, :, :, ::-1], 256)
        (found,) = found_in(candidates, fleet_outputs(model.classes, KINDS))
        height, width = frame.image.shape[:2]
        overlaps = iou_matrix(found.boxes, truth.boxes / np.array([width, height, width, height], np.float32))
        right = found.sure[:, None] & (overlaps >= 0.5) & (found.classes[:, None] == truth.classes)
        objects, hits = objects + len(truth.classes), hits + int(right.any(axis=0).sum())
    assert hits > objects / 3
