"""Tests of the data of a retraining that learns from other streams' labels as well."""

import numpy as np
import pytest

from ekya.core.units import StreamId
from ekya.core.weights import SceneOf
from ekya.models.edge.model import build_edge_model
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops
from ekya.pipeline.labels import LabelledPart, LabelPool, StreamLabels
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import data_of

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
    """Labels of ``a`` with those of ``b``, which alone validates on a truck."""
    pool = LabelPool()
    pool.add(A, StreamLabels(1, part([0, 0, 1], 10), part([0, 1], 20)))
    pool.add(B, StreamLabels(1, part([0, 1, 1], 30), part([1, 2], 40)))
    both, _ = pool.beside(A, (SceneOf(A, 0), SceneOf(B, 0)))
    return both


def shown(examples):
    return sorted(int(image[0, 0, 0]) for image in examples.images)


def test_a_retraining_learns_all_pooled_labels_of_other_streams(model, labels):
    data = data_of(model, labels, ExemplarMemory(), PreparationSettings(FLEET, 4, 10.0, 40, 1), 2)
    assert shown(data.pooled) == [30, 31, 32, 40, 41]
