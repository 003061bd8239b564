"""Retraining bases of detectors on clips; the rendered city stands in for video."""

from itertools import islice

import cv2
import detect_bases
import numpy as np
import pytest
from detect_scores import f1_by_class, f1_of

from ekya.config.shipped import shipped_detector
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.detection.weights import open_detector_weights
from ekya.models.training.frames import NOTHING, FrameObjects, LabelledFrames
from ekya.streams.synthetic import KINDS, CitySpec, Scene

SIDE = 128


@pytest.fixture(scope="module")
def clip():
    images, objects = [], []
    scene = Scene(mix={"bus": 1.0}, density=4, scale=1.3)
    for frame, truth in islice(CitySpec(seed=11, fps=0.5, scenes=(scene,)).open(KINDS).frames(), 18):
        boxes = truth.boxes / np.array([320, 240, 320, 240], np.float32)
        objects.append(FrameObjects(boxes, truth.classes, NOTHING.doubtful))
        images.append(cv2.resize(frame.image, (SIDE, SIDE))[:, :, ::-1])
    at = np.arange(len(images), dtype=np.int64)
    return LabelledFrames(np.stack(images), tuple(objects), KINDS, at, at)


@pytest.fixture(scope="module")
def base():
    return open_detector_weights(shipped_detector(), FASTESTDET, KINDS)


def test_base_is_better_on_the_end_of_a_clip_after_training_on_its_beginning(base, clip):
    (row,) = detect_bases.rows_of("clip", clip, {"own": base}, 6, [2], epochs=25, seeds=1)
    assert (row.clip, row.base, row.blocks) == ("clip", "own", 2)
    assert row.before == f1_of(base, clip.take(np.arange(9, 18)))
    assert row.after > row.before


def test_scores_by_class_count_its_objects_alone(base, clip):
    scores = {score.name: score for score in f1_by_class(base, clip)}
    assert scores["bus"].objects == clip.objects_in_each().sum() > 0
    assert scores["person"].objects == 0
    assert all(score.f1 == 0.0 for name, score in scores.items() if name != "bus")
