"""Tests of a frame's steps around an edge model that detects."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from bright import FLEET, SIZE, BrightDetector, picture, serving_detector
from street import PER_WINDOW, WINDOW_US, settings, t_us

from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.records import NOT_ANSWERED
from ekya.core.units import BASE_VERSION, ModelVersion
from ekya.models.edge.architecture_table import FASTESTDET, Task
from ekya.models.edge.detection.read_objects import Found
from ekya.models.edge.model import build_edge_model
from ekya.models.golden.detections import GoldenObjects
from ekya.models.golden.golden_from_detections import detector_model
from ekya.models.proposer import NoProposals
from ekya.models.training.frames import FrameObjects, LabelledFrames
from ekya.pipeline.collector import LONGEST_SIDE, WindowCollector
from ekya.pipeline.inference import (
    SHADOW_EVERY,
    Classifier,
    FrameSteps,
    ServingDetector,
    analyse,
    judged_by,
    serving,
)
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.motion import BoxFlow

SIDE = 96
EVERY, THIRD = InferenceConfig(1, SIDE), InferenceConfig(3, GOLDEN_RESOLUTION)
CAR, PERSON, KITE = (
    (12, 8, 60, 40, "car", 0.9),
    (78, 50, 108, 72, "person", 0.6),
    (80, 5, 100, 30, "kite", 0.9),
)
NOWHERE = np.zeros((0, 4), np.float32)


def steps_of(golden=None):
    collector = WindowCollector(replace(settings(0), task=Task.DETECT, side=SIDE), WINDOW_US)
    return FrameSteps(NoProposals(), collector, Task.DETECT, golden)


@pytest.fixture
def steps():
    return steps_of()


@pytest.fixture
def following():
    """Steps that follow boxes, after a golden detector found a car in frame 4."""
    car = GoldenObjects(np.array([[20, 20, 60, 60]], np.float32), np.zeros(1, np.int64), NOWHERE)
    steps = steps_of(SimpleNamespace(find_objects=lambda _picture: car))
    first = textured(4, 20)
    assert steps.follow(first, THIRD, BASE_VERSION) is None, "nothing is analysed yet"
    steps.ask_golden(first, THIRD, ModelVersion(3))
    return steps


def textured(index, x, size=(160, 80)):
    """Returns a frame with a textured square of 40 pixels at x."""
    noise = np.random.default_rng(5).integers(0, 256, (10, 10, 3)).astype(np.uint8)
    image = np.full((size[1], size[0], 3), 90, np.uint8)
    image[20:60, x : x + 40] = np.kron(noise, np.ones((4, 4, 1), np.uint8))
    return Frame(index, t_us(index), image, None)


def frame(index, *objects, size=SIZE):
    return Frame(index, t_us(index), picture(*objects, size=size), None)


def rows_of(steps, frames, resolution=SIDE):
    cut = [steps.cut(one, NOWHERE, resolution) for one in frames]
    config = InferenceConfig(1, resolution)
    return steps.prediction_rows(cut, config, ModelVersion(3), analyse(serving_detector(), cut, resolution))


def test_boxes_are_pixels_of_the_frame_and_classes_the_fleets(steps):
    first, empty, last = rows_of(steps, [frame(4, CAR, PERSON, KITE), frame(5), frame(6, PERSON)])
    assert first.classes.tolist() == [0, 1], "the fleet has no kite"
    assert first.boxes == pytest.approx(np.array([CAR[:4], PERSON[:4]]), abs=1.5)
    assert first.confidence == pytest.approx([0.9, 0.6], abs=0.05)
    assert (empty.boxes.shape, len(empty.classes), len(empty.confidence)) == ((0, 4), 0, 0)
    assert (last.classes.tolist(), last.classes.dtype) == ([1], np.int16)
    assert [(row.frame, row.answered_by, row.analysed) for row in (first, empty, last)] == [
        (4, 4, True),
        (5, 5, True),
        (6, 6, True),
    ]


def test_frames_of_several_sizes_share_a_batch(steps):
    wide = tuple(2 * edge for edge in CAR[:4])
    rows = rows_of(steps, [frame(0, CAR), frame(1, (*wide, "car", 0.9), size=(240, 160))])
    assert rows[1].boxes == pytest.approx(2 * rows[0].boxes)


def test_cut_resizes_the_frame_to_the_resolution(steps):
    cut = steps.cut(frame(9, CAR), NOWHERE, 64)
    assert (cut.images.shape, cut.size, len(cut.boxes)) == ((1, 64, 64, 3), SIZE, 0)
    assert cut.images[0, 20, 20].tolist() == [180, 255, 230], "RGB of the car"


def test_proposals_are_free_and_empty(steps):
    assert steps.proposes_free
    assert steps.propose(frame(0, CAR)).boxes.shape == (0, 4)


def test_skipped_frame_has_no_boxes_and_is_answered_by_the_last(steps):
    assert steps.skip(0, 0, EVERY, ModelVersion(0)).answered_by == NOT_ANSWERED
    rows_of(steps, [frame(1, CAR)])
    steps.answered(1)
    row = steps.skip(2, t_us(2), EVERY, ModelVersion(0))
    assert (row.answered_by, row.analysed, row.boxes.shape) == (1, False, (0, 4))


def test_base_answers_are_of_sampled_frames_in_their_pixels(steps):
    """The kept copy of a large frame is smaller."""
    size = (2 * LONGEST_SIDE, LONGEST_SIDE)
    for index in range(100):
        steps.collect(
            frame(index, (320, 160, 960, 480, "car", 0.9), size=size), NoProposals().propose_boxes(None)
        )
    sample = [one.frame for one in steps.collector.close(0).sample]
    rows = steps.base_answers(serving_detector(), EVERY)
    assert [row.frame for row in rows] == sample[SHADOW_EVERY - 1 :: SHADOW_EVERY]
    assert all(row.model_version == BASE_VERSION for row in rows)
    for row in rows:
        assert row.boxes == pytest.approx(np.array([[320, 160, 960, 480]]), abs=15)


def test_answers_of_the_golden_detector_are_kept_for_labels():
    """As many as are labelled, spread over the window, and each in pixels of the frame."""
    answers = {}

    def find_objects(image):
        boxes = np.array([[0, 0, 1280, image[0, 0, 0]]], np.float32)
        return answers.setdefault(int(image[0, 0, 0]), GoldenObjects(boxes, np.zeros(1, np.int64), NOWHERE))

    steps = steps_of(SimpleNamespace(find_objects=find_objects))
    for index in range(PER_WINDOW + 40):
        image = np.full((LONGEST_SIDE, 2 * LONGEST_SIDE, 3), index, np.uint8)
        shown = Frame(index, t_us(index), image, None)
        steps.collect(shown, steps.propose(shown))
        if index % 2 == 0:
            steps.ask_golden(shown, THIRD, BASE_VERSION)
    newest = steps.collector.recent_material(1, t_us(PER_WINDOW + 20)).sample  # too few alone
    assert [one.frame for one in newest if one.answer is not None] == [
        *range(PER_WINDOW + 20, PER_WINDOW + 40, 2)
    ]
    answered = steps.collector.close(0).sample
    assert len(answered) == settings(0).frames_per_window
    assert np.ptp(np.diff([one.frame for one in answered])) <= 4, "every second or fourth frame was kept"
    assert answered[-1].frame >= 0.9 * PER_WINDOW
    for one in answered:
        assert (one.answer.boxes == answers[one.frame].boxes).all()
        assert (one.size, one.picture.shape[1]) == ((2 * LONGEST_SIDE, LONGEST_SIDE), LONGEST_SIDE)


def test_boxes_are_followed_into_skipped_frames(following):
    (first, operations), (second, _) = (
        following.follow(textured(at, x), THIRD, ModelVersion(3)) for at, x in ((5, 23), (6, 26))
    )
    for row, x in ((first, 23), (second, 26)):
        assert row.boxes == pytest.approx(np.array([[x, 20, x + 40, 60]]), abs=1.0)
        assert (row.analysed, row.answered_by, row.every) == (False, row.frame, 3)
        assert (row.classes.tolist(), row.confidence.tolist()) == ([0], [1.0])
    assert operations == BoxFlow().count_operations((80, 160, 3), 1)
    assert following.skip(7, t_us(7), THIRD, ModelVersion(3)).answered_by == 6


def test_boxes_are_not_followed_into_a_picture_of_another_size(following):
    assert following.follow(textured(5, 23, size=(176, 96)), THIRD, BASE_VERSION) is None
    assert following.skip(5, t_us(5), THIRD, BASE_VERSION).answered_by == 4
    assert following.follow(textured(6, 26), THIRD, BASE_VERSION) is not None, "the old size again"


def golden_steps():
    """Steps whose golden detector finds bright rectangles."""
    return steps_of(detector_model(FLEET, BrightDetector(), 0.4, names_boxes=False))


def test_golden_detector_answers_with_its_sure_boxes():
    steps, config = golden_steps(), InferenceConfig(5, GOLDEN_RESOLUTION)
    row = steps.ask_golden(frame(5, CAR, (*PERSON[:5], 0.3)), config, ModelVersion(2))
    assert row.boxes == pytest.approx(np.array([CAR[:4]]))
    assert (row.classes.tolist(), row.confidence.tolist()) == ([0], [1.0])
    assert (row.analysed, row.answered_by, row.every, row.resolution) == (True, 5, 5, 0)
    assert steps.skip(6, t_us(6), config, ModelVersion(2)).answered_by == 5


def test_sure_boxes_of_the_golden_detector_are_followed():
    steps, config = golden_steps(), InferenceConfig(5, GOLDEN_RESOLUTION)
    steps.ask_golden(frame(5, CAR), config, BASE_VERSION)
    row, _ = steps.follow(frame(6, CAR), config, BASE_VERSION)
    assert row.boxes == pytest.approx(np.array([CAR[:4]]), abs=0.5)
    assert (row.analysed, row.answered_by, row.classes.tolist()) == (False, 6, [0])


def test_old_boxes_of_the_golden_detector_are_not_followed():
    """The edge model has answered in between: its boxes are newer, and stay in place."""
    steps, config = golden_steps(), InferenceConfig(5, GOLDEN_RESOLUTION)
    steps.ask_golden(frame(5, CAR), config, BASE_VERSION)
    rows_of(steps, [frame(6, PERSON)])
    assert steps.follow(frame(7, CAR), config, BASE_VERSION) is None


def test_serving_finds_or_classifies_as_the_model_does():
    detector = serving(build_edge_model(("kite", "person", "car"), 0, 3, FASTESTDET), FLEET)
    assert isinstance(detector, ServingDetector)
    detector.warm_up(SIDE, [64, SIDE])
    images = np.random.default_rng(1).integers(0, 256, (3, SIDE, SIDE, 3)).astype(np.uint8)
    answer = detector.predict(images, 64)
    assert len(answer) == 3
    for found in answer:
        assert isinstance(found, Found)
        assert set(found.classes.tolist()) <= {0, 1}
    assert isinstance(serving(build_edge_model(FLEET, 0, 3), FLEET), Classifier)


def test_judged_by_counts_hits_among_objects_and_found_boxes():
    """The model finds the car; it misses the person of the first frame and sees one in the second."""
    images = np.concatenate(
        [picture(CAR, size=(SIDE, SIDE))[None], picture(CAR, PERSON, size=(SIDE, SIDE))[None]]
    )
    car, person = np.array(CAR[:4], np.float32) / SIDE, np.array([0.1, 0.6, 0.3, 0.9], np.float32)
    objects = (
        FrameObjects(np.stack([car, person]), np.array([0, 1]), NOWHERE),
        FrameObjects(car[None], np.array([0]), NOWHERE),
    )
    order = np.arange(2, dtype=np.int64)
    judged = judged_by(
        serving_detector(),
        LabelledFrames(np.ascontiguousarray(images[..., ::-1]), objects, FLEET, order, order),
    )
    assert judged.correct.tolist() == [2, 2]
    assert judged.counted.tolist() == [3, 3]
    assert judged.accuracy(np.ones(2)) == pytest.approx(4 / 6)
