"""What a model answered on validation labels: its confusion, and its most confident mistakes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ekya.core.configs import RetrainConfig
from ekya.core.weights import Mistake
from ekya.models.edge.detection.read_objects import Found
from ekya.models.edge.model import EdgeModel, to_input
from ekya.models.training.answered import (
    MOST_MISTAKES,
    NO_CLASS,
    answered_crops,
    answered_frames,
    validation_of,
)
from ekya.models.training.frames import FrameObjects
from ekya.models.training.trainer import Retraining, RetrainingData

NAMES = ("person", "car", "truck")
HEAD = RetrainConfig(epochs=3, batch_size=16, head_width=0, trainable_blocks=0, data_fraction=1.0)


def crops_answered(labels, answers, confidence):
    return answered_crops(NAMES, np.array(labels), np.array(answers), np.array(confidence, np.float32))


def objects_of(*each, doubtful=()):
    boxes = np.array([box for _, box in each], np.float32).reshape(-1, 4)
    regions = np.array(doubtful, np.float32).reshape(-1, 4)
    return FrameObjects(boxes, np.array([index for index, _ in each], np.int64), regions)


def found_of(*each):
    return Found(
        np.array([box for _, _, box in each], np.float32).reshape(-1, 4),
        np.array([index for index, _, _ in each], np.int64),
        np.array([confidence for _, confidence, _ in each], np.float32),
    )


def test_confusion_counts_objects_by_class_and_answer():
    before = crops_answered([0, 0, 1], [0, 1, 1], [0.9, 0.8, 0.7])
    after = crops_answered([0, 0, 1], [0, 0, 0], [0.9, 0.8, 0.7])
    facts, _ = validation_of(before, after, np.zeros((3, 8, 8, 3), np.uint8))
    assert facts.classes == ("person", "car"), "nothing was a truck, or taken for one"
    assert facts.before == ((1, 1), (0, 1))
    assert facts.after == ((2, 0), (1, 0))
    assert facts.mistakes == (Mistake("car", "person", 0.7),)


def test_mistakes_are_the_most_confident_ones_with_their_pictures():
    images = np.arange(12, dtype=np.uint8)[:, None, None, None] * np.ones((12, 8, 8, 3), np.uint8)
    sure = np.linspace(0.5, 0.95, 12)
    after = crops_answered([0] * 12, [1] * 11 + [0], sure)
    facts, pictures = validation_of(after, after, images)
    assert [one.confidence for one in facts.mistakes] == pytest.approx(sure[10:4:-1], abs=1e-3)
    assert len(pictures) == MOST_MISTAKES
    assert [int(picture.max()) for picture in pictures] == [10, 9, 8, 7, 6, 5]
    assert pictures[0].shape == (8, 8, 3)


def test_frames_tell_right_confused_missed_and_wrong_boxes():
    right, other, missed = [0, 0, 0.2, 0.2], [0.5, 0, 0.7, 0.2], [0, 0.5, 0.2, 0.7]
    nowhere, doubtful = [0.5, 0.5, 0.7, 0.7], [0.8, 0.8, 1, 1]
    objects = objects_of((0, right), (1, other), (2, missed), doubtful=[doubtful])
    found = found_of(
        (0, 0.9, right), (2, 0.8, other), (1, 0.7, nowhere), (1, 0.6, doubtful), (2, 0.3, missed)
    )
    answered = answered_frames(NAMES, [found], (objects,))
    rows = set(zip(answered.labels.tolist(), answered.answers.tolist(), strict=True))
    assert rows == {(0, 0), (1, 2), (NO_CLASS, 1), (2, NO_CLASS)}
    facts, pictures = validation_of(answered, answered, np.zeros((1, 100, 100, 3), np.uint8))
    assert facts.classes == ("person", "car", "truck", "")
    assert facts.after == ((1, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 1, 0, 0))
    assert [(one.label, one.answer) for one in facts.mistakes] == [
        ("car", "truck"), ("", "car"), ("truck", ""),
    ]  # fmt: skip
    assert pictures[1].shape[:2] == pytest.approx((32, 32), abs=1), "with some of what is around it"


def test_frames_without_objects_and_boxes_are_no_rows():
    answered = answered_frames(NAMES, [found_of(), found_of()], (objects_of(), objects_of((1, [0, 0, 1, 1]))))
    assert (answered.labels.tolist(), answered.answers.tolist()) == ([1], [NO_CLASS])
    assert answered.images.tolist() == [1]


def served_answers(model: EdgeModel, crops) -> list[int]:
    """Returns the classes that a model gives crops where it serves."""
    with torch.no_grad():
        return model.eval()(to_input(crops.images, "cpu")).argmax(dim=1).tolist()


@pytest.mark.parametrize("config", [HEAD, replace(HEAD, head_width=16)], ids=["its head", "another head"])
def test_retraining_tells_what_was_answered_before_and_after(
    tiny_model: EdgeModel, make_bars, config: RetrainConfig
) -> None:
    training, validation = make_bars(64, 1), make_bars(30, 2, first_track=500)
    retraining = Retraining(tiny_model, config, RetrainingData(training, validation, tiny_model.classes))
    retraining.prepare_training()
    before = retraining.answered_before()
    assert before.answers.tolist() == served_answers(tiny_model, validation)
    while not retraining.done:
        result = retraining.run_epoch()
    after = retraining.answered()
    assert after.answers.tolist() == served_answers(retraining.model(), validation)
    assert after.names == tiny_model.classes
    assert (after.labels == validation.classes).all()
    right = (after.labels == after.answers).mean()
    assert right == pytest.approx(result.validation_accuracy, abs=0.1), "but for the class mix"
    assert ((after.confidence > 0) & (after.confidence <= 1)).all()


def test_class_that_the_start_model_lacks_was_never_its_answer(tiny_model: EdgeModel, make_bars) -> None:
    training, validation = make_bars(64, 1, (0, 1, 2, 3)), make_bars(30, 2, (0, 1, 2, 3), first_track=500)
    classes = (*tiny_model.classes, "bus")
    retraining = Retraining(tiny_model, HEAD, RetrainingData(training, validation, classes))
    retraining.prepare_training()
    before = retraining.answered_before()
    assert before.names == classes
    assert 3 in before.labels
    assert 3 not in before.answers
    assert before.answers.tolist() == served_answers(tiny_model, validation)
