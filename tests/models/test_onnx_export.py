"""Exported edge models answer in onnxruntime as they do in a run, whatever the size of a frame."""

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from random_models import lively_model

from ekya.models.edge.architecture_table import CUTS, DETECTORS
from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.detection.read_objects import fleet_outputs, found_in
from ekya.models.edge.onnx_export import IMAGES, OBJECTS, PROBABILITIES, SIZES, export_model
from ekya.models.edge.predictor import Predictor
from ekya.streams.ingest.crops import square_frame

FLEET = ("person", "car", "bus")
SIDE = 96


def pictures():
    """Yields coarse pictures of several sizes, in BGR; one has the network's side already."""
    rng = np.random.default_rng(0)
    for height, width in ((120, 200), (SIDE, SIDE), (360, 640), (2 * SIDE, 2 * SIDE), (61, 37)):
        coarse = rng.integers(0, 256, (7, 9, 3)).astype(np.uint8)
        yield cv2.resize(coarse, (width, height), interpolation=cv2.INTER_NEAREST)


def as_input(picture):
    return picture[None, :, :, ::-1].transpose(0, 3, 1, 2).astype(np.float32) / 255


def session_of(file):
    onnx.checker.check_model(onnx.load_from_string(file), full_check=True)
    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("architecture", DETECTORS)
def test_exported_detector_finds_the_same_objects(architecture):
    model = lively_model(architecture)
    model.threshold = 0.37
    session = session_of(export_model(model, FLEET, SIDE, SIDE))
    ours, counts = DetectorPredictor(model), []
    for picture in pictures():
        size = picture.shape[1::-1]
        candidates = ours.predict(square_frame(picture, SIDE), SIDE)
        (expected,) = found_in(candidates, fleet_outputs(model.classes, FLEET), model.threshold)
        answers = session.run(OBJECTS, {IMAGES: as_input(picture), SIZES: np.array([size])})
        labels, boxes, scores = (one[0] for one in answers)
        np.testing.assert_allclose(scores, expected.confidence, atol=1e-3)
        # Random weights have scores that are nearly equal, so that the order may differ.
        rows, wanted = (
            np.column_stack([9999.0 * classes, pixels])
            for classes, pixels in ((labels, boxes), (expected.classes, expected.boxes * np.tile(size, 2)))
        )
        off = np.abs(rows[:, None] - wanted).max(axis=2)
        assert off.min(axis=0, initial=np.inf).max(initial=0.0) < 0.5
        counts.append(len(labels))
    assert min(counts) > 5


@pytest.mark.parametrize(("architecture", "side"), [*((name, 24) for name in CUTS), ("resnet18", 32)])
def test_exported_classifier_gives_the_same_probabilities(architecture, side):
    model = lively_model(architecture)
    session = session_of(export_model(model, FLEET, side, 32))
    crops = np.random.default_rng(1).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    best, sure = Predictor(model).predict(crops, side)
    (found,) = session.run([PROBABILITIES], {IMAGES: crops.transpose(0, 3, 1, 2).astype(np.float32) / 255})
    assert np.array_equal(found.argmax(axis=1), best)
    np.testing.assert_allclose(found.max(axis=1), sure, atol=1e-3)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-3)
