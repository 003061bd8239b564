import numpy as np
import pytest

from ekya.models.training.label_weights import (
    few_of_each,
    independent_crops,
    weights_by_object,
    weights_now,
)
from ekya.models.training.labelled import LabelledCrops


def test_weights_by_object_count_objects_of_a_class_equally() -> None:
    classes = np.array([0, 0, 0, 0, 1, 1, 2], np.int64)
    tracks = np.array([5, 5, 5, 6, 7, 8, 9], np.int64)
    weights = weights_by_object(classes, tracks, background=2)
    assert weights == pytest.approx(np.array([1 / 9, 1 / 9, 1 / 9, 1 / 3, 1 / 6, 1 / 6, 0.0]))
    assert weights_by_object(classes, tracks, None).sum() == pytest.approx(1.0)
    assert not weights_by_object(classes[-1:], tracks[-1:], background=2).any()


def test_weights_by_object_of_few_crops_stand_for_all() -> None:
    classes = np.array([0, 0, 0, 0, 1, 0, 1, 0, 0], np.int64)
    tracks = np.array([5, 5, 5, 5, 5, 6, 7, 5, 6], np.int64)
    few = few_of_each(classes, tracks, 3)
    assert few.tolist() == [0, 2, 4, 5, 6, 7, 8]
    assert few_of_each(classes, tracks, 1).tolist() == [4, 6, 7, 8]
    weights = weights_by_object(classes, tracks, None, few)
    every = weights_by_object(classes, tracks, None)
    for of in set(zip(classes.tolist(), tracks.tolist(), strict=True)):
        one, all_of_one = (
            (classes[rows] == of[0]) & (tracks[rows] == of[1]) for rows in (few, np.arange(len(classes)))
        )
        assert weights[one].sum() == pytest.approx(every[all_of_one].sum())


def of_objects(classes: list[int], crops: int) -> LabelledCrops:
    """Returns ``crops`` crops of each object, object by object."""
    count = len(classes) * crops
    return LabelledCrops(
        np.zeros((count, 8, 8, 3), np.uint8),
        np.repeat(np.array(classes, np.int64), crops),
        np.repeat(np.arange(len(classes)), crops),
        np.arange(count, dtype=np.int64),
    )


def test_weights_now_of_changed_scene_favour_the_later_half() -> None:
    labelled = of_objects([0, 1] * 20, 2)
    tried = np.arange(len(labelled))
    later = labelled.t_us > np.median(labelled.t_us)
    same = weights_now(labelled, tried, labelled.tracks % 4 == 0, None)
    changed = weights_now(labelled, tried, ~later, None)
    assert same == pytest.approx(weights_by_object(labelled.classes, labelled.tracks, None))
    assert same.sum() == pytest.approx(1.0)
    assert changed.sum() == pytest.approx(1.0)
    assert changed[later].sum() > 0.95
    assert independent_crops(changed, labelled.tracks) < independent_crops(same, labelled.tracks) == 40


def test_weights_now_of_few_objects_favour_no_half() -> None:
    labelled = of_objects([0, 1, 0, 1], 4)
    right = labelled.tracks != 3
    few = few_of_each(labelled.classes, labelled.tracks, 2)
    weights = weights_now(labelled, few, right[few], None)
    assert 0.5 < weights[labelled.t_us[few] > np.median(labelled.t_us)].sum() < 0.8


def test_weights_now_with_empty_half_favour_no_half() -> None:
    labelled = of_objects([0, 0, 1, 1], 2)
    tried = np.arange(len(labelled))
    weights = weights_now(labelled, tried, labelled.tracks > 1, background=0)
    assert weights == pytest.approx(weights_by_object(labelled.classes, labelled.tracks, 0))
