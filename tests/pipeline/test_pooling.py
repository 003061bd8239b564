"""Tests of the labels that are pooled: whose, since when, how many of the older ones."""

import numpy as np
import pytest

from ekya.core.units import US_PER_S, StreamId
from ekya.core.weights import SceneOf
from ekya.models.edge.model import build_edge_model
from ekya.models.training.frames import NOTHING, LabelledFrames
from ekya.models.training.labelled import LabelledCrops
from ekya.pipeline.labels import LabelledPart, LabelPool, StreamLabels
from ekya.planning.adaptation.label_pooling import LABELLINGS, MOST_POOLED

A, B = StreamId("a"), StreamId("b")
S = US_PER_S


def crops(tracks, t_us, of_class=0):
    count = len(tracks)
    pictures = np.full((count, 4, 4, 3), 9, np.uint8)
    classes = np.full(count, of_class, np.int64)
    return LabelledCrops(pictures, classes, np.array(tracks, np.int64), np.full(count, t_us, np.int64))


def part(examples):
    count = len(examples)
    return LabelledPart(examples, np.zeros(count, np.int64), np.zeros((count, 4), np.float32))


def labelled(tracks, t_s, of_class=0, window=1):
    """Labels of objects, the last of which validates."""
    return StreamLabels(
        window,
        part(crops(tracks[:-1], t_s * S, of_class)),
        part(crops(tracks[-1:], t_s * S, of_class)),
    )


def a_model():
    return build_edge_model(("car", "bus"), 0, 3)


@pytest.fixture
def pool():
    """The labels of ``a`` at 30 and 40 s, and of ``b`` at 35 s."""
    pool = LabelPool()
    pool.add(A, labelled([1, 2, 3, 4], 30))
    pool.add(B, labelled([1, 2, 5], 35, of_class=1))
    pool.add(A, labelled([4, 6, 7], 40))
    return pool


def test_beside_other_streams_scene_has_their_newest_labels(pool):
    both, streams = pool.join_labels(A, (SceneOf(A, 40 * S), SceneOf(B, 32 * S)))
    assert streams == (B,)
    assert both.pooled.classes.tolist() == [1, 1, 1]
    assert both.training.examples.tracks.tolist() == [4, 6]
    assert both.validation.examples.tracks.tolist() == [7]


def test_beside_gives_objects_of_others_their_own_numbers(pool):
    both, _ = pool.join_labels(A, (SceneOf(A, 0), SceneOf(B, 0)))
    assert len(np.unique(both.pooled.tracks)) == 6
    assert not set(both.pooled.tracks.tolist()) & set(both.examples.tracks.tolist())


def test_beside_own_scene_has_earlier_labels_of_other_objects(pool):
    both, streams = pool.join_labels(A, (SceneOf(A, 20 * S),))
    assert streams == (A,)
    assert both.pooled.t_us.tolist() == [30 * S] * 3, "object 4 is among the newest labels"


def test_beside_leaves_out_what_was_seen_before_the_scene(pool):
    both, streams = pool.join_labels(A, (SceneOf(A, 31 * S), SceneOf(B, 36 * S)))
    assert both.pooled is None
    assert streams == ()
    assert both.count == 3


def test_beside_takes_fewer_of_older_labels():
    pool = LabelPool()
    for age in range(7):
        pool.add(A, labelled(list(range(100 * age, 100 * age + 20)), age))
    both, _ = pool.join_labels(A, (SceneOf(A, 0),))
    times, counts = np.unique(both.pooled.t_us, return_counts=True)
    assert dict(zip((times // S).tolist(), counts.tolist(), strict=True)) == {5: 20, 4: 10, 3: 5}
    assert len(times) == LABELLINGS - 1


def frames(tracks, t_s):
    count = len(tracks)
    images = np.zeros((count, 4, 4, 3), np.uint8)
    t_us = np.full(count, t_s * S, np.int64)
    return part(LabelledFrames(images, (NOTHING,) * count, ("car",), np.array(tracks, np.int64), t_us))


def test_beside_pools_frames_of_other_streams():
    pool = LabelPool()
    pool.add(B, StreamLabels(1, frames([8, 9], 30), frames([10], 30)))
    pool.add(A, StreamLabels(1, frames([8, 9], 31), frames([10], 31)))
    both, streams = pool.join_labels(A, (SceneOf(A, 0), SceneOf(B, 0)))
    assert both.pooled.tracks.tolist() == [11, 12, 13]
    assert streams == (B,)


def test_beside_pools_own_frames_that_show_other_objects():
    """Frames have no objects' numbers, and those of one labelling repeat in the next."""
    pool = LabelPool()
    pool.add(A, StreamLabels(1, frames([8, 9], 20), frames([10], 27)))
    pool.add(A, StreamLabels(1, frames([8, 9], 30), frames([10], 31)))
    both, _ = pool.join_labels(A, (SceneOf(A, 0),))
    assert both.pooled.t_us.tolist() == [20 * S, 20 * S]


def test_beside_is_bounded_and_takes_the_first_scenes_first():
    pool = LabelPool()
    others = [StreamId(f"other-{at}") for at in range(9)]
    for at, other in enumerate(others):
        pool.add(other, labelled(list(range(20)), 35, of_class=at))
    pool.add(A, labelled(list(range(10)), 40))
    both, streams = pool.join_labels(A, (SceneOf(A, 0), *(SceneOf(other, 0) for other in others)))
    assert len(both.pooled) == MOST_POOLED * 10
    assert streams == tuple(others[:2])
    assert np.bincount(both.pooled.classes).tolist() == [20, 10]


def test_not_learnt_leaves_out_objects_of_earlier_labels(pool):
    """The model that serves may have learnt from these."""
    model = a_model()
    assert pool.not_learnt(A, labelled([3, 7, 8, 9], 50), model).tracks.tolist() == [8, 9]
    assert pool.not_learnt(StreamId("new"), labelled([3, 7], 50), model).tracks.tolist() == [3, 7]


def test_not_learnt_keeps_what_was_labelled_while_this_model_served(pool):
    model, newer = a_model(), a_model()
    pool.add(A, labelled([8, 10], 45), model)
    newest = labelled([3, 8, 9], 50)
    assert pool.not_learnt(A, newest, model).tracks.tolist() == [8, 9]
    assert pool.not_learnt(A, newest, newer).tracks.tolist() == [9]
    assert pool.not_learnt(A, newest, model, since_us=44 * S).tracks.tolist() == [8, 9, 8, 10]
    assert pool.not_learnt(A, newest, model, since_us=46 * S).tracks.tolist() == [8, 9]
    pool.add(A, labelled([11], 47))
    assert pool.not_learnt(A, newest, model).tracks.tolist() == [9], "it is not known who made the newest"
