"""Detectors adapted to one camera and tested on all."""

from itertools import islice

import cv2
import detect_cross
import numpy as np
import pytest
from detect_clips import default_gamma, first_and_last
from detect_cross import BASE, Cell, Means, cells_of, means_of
from detect_scores import f1_of

from ekya.config.fleet_sections import RetrainingConfig
from ekya.config.shipped import shipped_detector
from ekya.core.configs import RetrainConfig
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.detection.weights import open_detector_weights
from ekya.models.training.frames import NOTHING, FrameObjects, LabelledFrames
from ekya.streams.synthetic import KINDS, CitySpec, Scene

SIDE = 128


def clip(kind):
    """Returns six frames of a street with objects of one class."""
    images, objects = [], []
    scene = Scene(mix={kind: 1.0}, density=4, scale=1.3)
    for frame, truth in islice(CitySpec(seed=11, fps=0.5, scenes=(scene,)).open(KINDS).frames(), 12):
        boxes = truth.boxes / np.array([320, 240, 320, 240], np.float32)
        objects.append(FrameObjects(boxes, truth.classes, NOTHING.doubtful))
        images.append(cv2.resize(frame.image, (SIDE, SIDE))[:, :, ::-1])
    at = np.arange(len(images), dtype=np.int64)
    return LabelledFrames(np.stack(images), tuple(objects), KINDS, at, at)


def test_every_student_is_tested_on_every_camera(monkeypatch):
    clips = {"buses": clip("bus"), "cars": clip("car")}
    base = open_detector_weights(shipped_detector(), FASTESTDET, KINDS)
    few = RetrainConfig(epochs=2, batch_size=8, head_width=0, trainable_blocks=0, data_fraction=1.0)
    monkeypatch.setattr(detect_cross, "default_gamma", lambda: few)
    cells = cells_of(base, clips, 4, (1,))
    assert [(cell.adapted_on, cell.tested_on) for cell in cells] == [
        (row, column) for row in (BASE, "buses", "cars") for column in clips
    ]
    for cell in cells[:2]:
        assert cell.f1 == f1_of(base, clips[cell.tested_on].take(np.arange(6, 12)))
    assert all(0.0 <= cell.f1 <= 1.0 for cell in cells)


def test_means_are_of_own_and_other_cameras():
    cells = [Cell(BASE, "a", 0.2), Cell(BASE, "b", 0.4)]
    cells += [Cell("a", "a", 0.9), Cell("a", "b", 0.1), Cell("b", "a", 0.3), Cell("b", "b", 0.7)]
    assert means_of(cells) == Means(pytest.approx(0.3), pytest.approx(0.8), pytest.approx(0.2))
    assert means_of([Cell(BASE, "a", 0.2), Cell("a", "a", 0.9)]).others is None


def test_training_comes_from_the_first_third_and_the_test_is_the_last_half():
    training, test = first_and_last(clip("bus"), 3)
    assert (training.t_us.tolist(), test.t_us.tolist()) == ([0, 2, 3], [6, 7, 8, 9, 10, 11])


def test_gamma_is_the_most_thorough_of_a_run():
    gamma, lists = default_gamma(), RetrainingConfig().of_detector()
    assert gamma.epochs == max(lists.epochs)
    assert (gamma.batch_size, gamma.trainable_blocks) == (lists.batch_sizes[0], max(lists.trainable_blocks))
    assert gamma.data_fraction == 1.0
