"""Tests of the steps of a frame around the model, with answers that are painted on the crops."""

import numpy as np
import pytest
import torch
from street import IMAGE, SIDE, WINDOW_US, settings, t_us
from torch import nn

from ekya.core.areas import Areas
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.records import NOT_ANSWERED
from ekya.core.units import ModelVersion, StreamId
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.architectures import EDGE_MODELS, Trunk
from ekya.models.edge.model import build_edge_model
from ekya.models.golden.detections import GoldenObjects, Proposals
from ekya.models.proposer import GivenBoxes, NoProposals
from ekya.pipeline.collector import WindowCollector
from ekya.pipeline.frame_admission import FrameWay, choose_way, is_due_after, is_due_in_order
from ekya.pipeline.inference import SHADOW_EVERY, Classifier, FrameSteps, Proposed, analyse
from ekya.planning.adaptation.drift import DriftMonitor
from ekya.streams.ingest.frame import Frame

FLEET = ("person", "car", "truck")
EVERY = InferenceConfig(1, SIDE)
SIZE = (IMAGE.shape[1], IMAGE.shape[0])


def tiny_trunk():
    conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False)
    blocks = {"first": nn.Sequential(conv, nn.BatchNorm2d(4), nn.ReLU()), "second": nn.Sequential()}
    return Trunk(blocks, 4)


@pytest.fixture
def steps():
    return FrameSteps(GivenBoxes(), WindowCollector(settings(0), WINDOW_US))


@pytest.fixture
def model_of(monkeypatch):
    """Returns a function that makes a tiny model of some classes."""
    monkeypatch.setitem(EDGE_MODELS, "tiny", tiny_trunk)
    return lambda classes=FLEET: build_edge_model(classes, 0, 1, "tiny")


class Painted:
    """Classifier that returns the number that a crop is painted with."""

    def predict(self, crops, resolution):
        classes = crops[:, 0, 0, 0].astype(np.int64)
        return classes, np.full(len(classes), resolution / 100, np.float32)


def answers(steps, classifier, frames):
    return steps.prediction_rows(frames, EVERY, ModelVersion(4), analyse(classifier, frames, SIDE))


def proposed(index, *answers):
    boxes = np.array([[answer, 0, answer + 5, 5] for answer in answers], np.float32).reshape(-1, 4)
    crops = np.array(answers, np.uint8).reshape(-1, 1, 1, 1) * np.ones((SIDE, SIDE, 3), np.uint8)
    return Proposed(index, t_us(index), boxes, crops, SIZE)


def test_answers_of_a_batch_are_rows_of_its_frames(steps):
    rows = answers(steps, Painted(), [proposed(120, 2, 0), proposed(121), proposed(122, 1)])
    assert [row.classes.tolist() for row in rows] == [[2, 0], [], [1]]
    assert [row.boxes[:, 0].tolist() for row in rows] == [[2.0, 0.0], [], [1.0]]
    assert [(row.frame, row.answered_by, row.window) for row in rows] == [
        (120, 120, 1),
        (121, 121, 1),
        (122, 122, 1),
    ]
    assert all(row.analysed and row.model_version == 4 and row.resolution == SIDE for row in rows)
    assert rows[0].confidence.tolist() == pytest.approx([0.08, 0.08])


def test_classifier_with_other_class_order_answers_in_the_fleets(steps, model_of):
    """The model always answers its first class, which is the fleet's last."""
    model = model_of(("truck", "person"))
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([3.0, 0.0]))
    (row,) = answers(steps, Classifier(model, FLEET), [proposed(5, 1, 1)])
    assert row.classes.tolist() == [2, 2]
    assert row.confidence.tolist() == pytest.approx([1 / (1 + np.exp(-3))] * 2)


def test_classifier_is_a_copy_of_its_model(steps, model_of):
    """A retraining that goes on must not change the serving weights."""
    model = model_of()
    classifier = Classifier(model, FLEET)
    (before,) = answers(steps, classifier, [proposed(5, 1, 60, 200)])
    with torch.no_grad():
        model.head.weight.add_(5.0)
    (after,) = answers(steps, classifier, [proposed(5, 1, 60, 200)])
    assert (after.confidence == before.confidence).all()


def test_skipped_frame_is_answered_by_the_newest_analysed(steps):
    first = steps.skip(3, t_us(3), EVERY, ModelVersion(0))
    assert first.answered_by == NOT_ANSWERED
    steps.answered(7)
    steps.answered(5)
    row = steps.skip(130, t_us(130), InferenceConfig(5, 4), ModelVersion(2))
    assert (row.answered_by, row.analysed, row.window, row.every, row.resolution) == (7, False, 1, 5, 4)
    assert row.model_version == 2
    assert row.boxes.shape == (0, 4)
    assert len(row.classes) == len(row.confidence) == 0


def test_cut_takes_the_objects_from_their_frame(steps):
    image = IMAGE.copy()
    image[10:20, 10:20] = (0, 0, 250)
    boxes = np.array([[11, 11, 19, 19], [30, 0, 40, 10]], np.float32)
    cut = steps.cut(Frame(9, t_us(9), image, boxes), boxes, SIDE)
    assert (cut.frame, cut.t_us, cut.size) == (9, t_us(9), SIZE)
    assert cut.images.shape == (2, SIDE, SIDE, 3)
    assert cut.images[0].reshape(-1, 3).mean(axis=0).tolist() == [250.0, 0.0, 0.0]
    assert cut.images[1].max() == 0


def test_base_answers_are_of_a_part_of_the_sampled_frames(steps):
    for index in range(100):
        frame = Frame(index, t_us(index), IMAGE, np.array([[0, 0, 10, 10]], np.float32))
        steps.collect(frame, Proposals(frame.boxes))
    sample = [frame.frame for frame in steps.collector.close(0).sample]
    rows = steps.base_answers(Painted(), EVERY)
    assert [row.frame for row in rows] == sample[SHADOW_EVERY - 1 :: SHADOW_EVERY]
    assert all(row.model_version == 0 for row in rows)


def test_service_keeps_no_sampled_frames_to_measure_the_base_model_on():
    steps = FrameSteps(GivenBoxes(), WindowCollector(settings(0), WINDOW_US), measures_base=False)
    for index in range(100):
        frame = Frame(index, t_us(index), IMAGE, np.array([[0, 0, 10, 10]], np.float32))
        steps.collect(frame, Proposals(frame.boxes))
    assert steps.base_answers(Painted(), EVERY) == []


def test_base_answers_without_frames_are_none(steps):
    assert steps.base_answers(Painted(), EVERY) == []


def test_frames_in_one_batch_are_answered_as_one_by_one(steps, model_of):
    rng = np.random.default_rng(3)
    crops = [rng.integers(0, 256, (count, SIDE, SIDE, 3)).astype(np.uint8) for count in (2, 0, 35, 1)]
    boxes = [np.zeros((len(cut), 4), np.float32) for cut in crops]
    frames = [Proposed(120 + at, t_us(120 + at), boxes[at], cut, SIZE) for at, cut in enumerate(crops)]
    classifier = Classifier(model_of(), FLEET)
    for frame, row in zip(frames, answers(steps, classifier, frames), strict=True):
        (alone,) = answers(steps, classifier, [frame])
        np.testing.assert_array_equal(row.classes, alone.classes)
        np.testing.assert_allclose(row.confidence, alone.confidence, atol=1e-5)


def watched(monitor):
    """Steps that notice drift; the street is grey, and white from 25 s on, when a window has begun."""
    steps = FrameSteps(GivenBoxes(), WindowCollector(settings(0), WINDOW_US), monitor=monitor)
    boxes = np.array([[0, 0, 10, 10]], np.float32)
    for index in range(0, 300, 2):
        grey = 90 if t_us(index) < 25_000_000 else 250
        cut = steps.cut(Frame(index, t_us(index), np.full_like(IMAGE, grey), boxes), boxes, SIDE)
        answers(steps, Sure(), [cut])
    return steps


class Sure:
    """Classifier that calls everything a person."""

    def predict(self, crops, resolution):
        return np.zeros(len(crops), np.int64), np.ones(len(crops), np.float32)


class Untouched:
    """Monitor that must see no frame."""

    def see(self, frame):
        raise AssertionError(frame)


def test_steps_changed_picture_is_drift_once():
    steps = watched(DriftMonitor(FLEET))
    drift = steps.take_drift(StreamId("gate"), 28_000_000)
    assert drift is not None
    assert (drift.t_us, drift.stream, drift.window) == (28_000_000, "gate", 2)
    assert 25_000_000 <= drift.since_us <= 25_600_000
    assert "picture" in drift.reason
    assert steps.take_drift(StreamId("gate"), 28_000_000) is None


def test_steps_without_monitor_notice_nothing():
    steps = watched(None)
    assert steps.take_drift(StreamId("gate"), 28_000_000) is None
    assert steps.cut(Frame(9, t_us(9), IMAGE, None), np.zeros((0, 4), np.float32), SIDE).described is None


def test_steps_answers_of_the_base_model_are_not_watched():
    steps = FrameSteps(GivenBoxes(), WindowCollector(settings(0), WINDOW_US), monitor=Untouched())
    for index in range(100):
        frame = Frame(index, t_us(index), IMAGE, np.array([[0, 0, 10, 10]], np.float32))
        steps.collect(frame, Proposals(frame.boxes))
    assert steps.base_answers(Painted(), EVERY)


class TwoCars:
    """Golden detector that finds a car on the left and one on the right."""

    def find_objects(self, image):
        boxes = np.array([[2, 2, 22, 22], [40, 2, 60, 22]], np.float32)
        return GoldenObjects(boxes, np.array([1, 1]), boxes[:0])


def test_golden_detector_answers_with_what_counts_and_boxes_are_followed_as_far():
    steps = FrameSteps(NoProposals(), WindowCollector(settings(0), WINDOW_US), Task.DETECT, TwoCars())
    image = np.random.default_rng(0).integers(0, 256, (40, 80, 3)).astype(np.uint8)
    left, right = (Areas(mask=(((x, 0.0), (x + 0.5, 0.0), (x + 0.5, 1.0), (x, 1.0)),)) for x in (0.0, 0.5))
    row = steps.ask_golden(Frame(0, 0, image, None, left), GOLDEN, ModelVersion(0))
    assert row.boxes.tolist() == [[40, 2, 60, 22]]
    for index, areas, count in ((1, left, 1), (2, right, 0)):
        row, _ = steps.follow(Frame(index, t_us(index), image, None, areas), GOLDEN, ModelVersion(0))
        assert len(row.boxes) == len(row.classes) == len(row.confidence) == count


# Which frames are analysed, followed or passed over


EDGE, GOLDEN = InferenceConfig(3, 32), InferenceConfig(3, GOLDEN_RESOLUTION)


def test_frames_that_are_all_offered_are_due_at_the_beginning_of_every_block():
    assert [frame for frame in range(10) if is_due_in_order(frame, 3)] == [0, 3, 6, 9]


@pytest.mark.parametrize(
    ("offered", "due"),
    [(range(10), [0, 3, 6, 9]), ([1, 2, 5, 6, 8, 12], [1, 5, 6, 12]), ([7, 8, 9], [7, 9])],
)
def test_newest_frames_are_due_once_in_every_block(offered, due):
    analysed, found = -1, []
    for frame in offered:
        if is_due_after(analysed, frame, 3):
            analysed = frame
            found.append(frame)
    assert found == due


@pytest.mark.parametrize(
    ("config", "due", "due_frame_waits", "way"),
    [
        (EDGE, True, False, FrameWay.ANALYSE),
        (EDGE, True, True, FrameWay.ANALYSE),
        (EDGE, False, False, FrameWay.PASS_OVER),
        (GOLDEN, True, True, FrameWay.ANALYSE),
        (GOLDEN, False, False, FrameWay.FOLLOW),
        (GOLDEN, False, True, FrameWay.PASS_OVER),
    ],
)
def test_frames_that_the_golden_detector_skips_are_followed_unless_late(config, due, due_frame_waits, way):
    assert choose_way(config, due, due_frame_waits) is way
