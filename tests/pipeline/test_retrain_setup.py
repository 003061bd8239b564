"""Tests of the data of a joint retraining: what validates on a partner is measured on, and never learned."""

import numpy as np
import pytest

from ekya.core.units import StreamId
from ekya.core.weights import SceneOf
from ekya.models.edge.model import build_edge_model
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops
from ekya.pipeline.labels import LabelledPart, StreamLabels
from ekya.pipeline.pooling import LabelPool
from ekya.pipeline.retrain_setup import data_of
from ekya.pipeline.settings import PreparationSettings

A, B = StreamId("a"), StreamId("b")
FLEET = ("car", "bus", "truck")


def part(classes, first):
    """Returns different crops of one object each, numbered from ``first``."""
    count = len(classes)
    pictures = np.arange(first, first + count, dtype=np.uint8)[:, None, None, None] * np.ones(
        (4, 4, 3), np.uint8
    )
    crops = LabelledCrops(
        pictures, np.array(classes, np.int64), np.arange(count) + first, np.zeros(count, np.int64)
    )
    return LabelledPart(crops, np.zeros(count, np.int64), np.zeros((count, 4), np.float32))


@pytest.fixture(scope="module")
def model():
    return build_edge_model(FLEET[:2], 0, 3, "shufflenet_v2_x1_0")


@pytest.fixture
def labels():
    """Labels of both streams, those of ``a`` with those of ``b``, which alone validates on a truck."""
    pool = LabelPool()
    pool.add(A, StreamLabels(1, part([0, 0, 1], 10), part([0, 1], 20)))
    partner = StreamLabels(1, part([0, 1, 1], 30), part([1, 2], 40))
    pool.add(B, partner)
    both, _ = pool.beside(A, (SceneOf(A, 0), SceneOf(B, 0)))
    return both, partner


def shown(examples):
    return sorted(int(image[0, 0, 0]) for image in examples.images)


def data(model, labels, partners):
    return data_of(model, labels, ExemplarMemory(), PreparationSettings(FLEET, 4, 10.0, 40, 1), 2, partners)


def test_labels_of_a_stream_that_is_retrained_alone_are_all_learned(model, labels):
    alone = data(model, labels[0], ())
    assert shown(alone.pooled) == [30, 31, 32, 40, 41]
    assert alone.partners == ()


def test_joint_retraining_does_not_learn_what_validates_on_its_partner(model, labels):
    joint = data(model, *labels[:1], labels[1:])
    assert shown(joint.pooled) == [30, 31, 32]
    (measured,) = joint.partners
    assert shown(measured.validation) == [40, 41]
    assert (
        measured.weights.tolist()
        == labels[1].validation.examples.mix_weights(labels[1].training.examples).tolist()
    )
    assert measured.validation.classes.tolist() == [1, joint.classes.index("truck")]
