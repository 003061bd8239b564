"""Tests of which streams show one scene, and of whether their labels are learned from."""

from hypothesis import given
from hypothesis import strategies as st

from ekya.core.units import US_PER_S, StreamId
from ekya.core.weights import SceneOf
from ekya.planning.adaptation.label_pooling import TOGETHER_US, pooling_pays, same_scene

A, B, C = StreamId("a"), StreamId("b"), StreamId("c")
S = US_PER_S

drifts = st.dictionaries(
    st.sampled_from([A, B, C, StreamId("d")]), st.none() | st.integers(0, 60).map(lambda s: s * S), min_size=1
)
accuracies = st.floats(0.0, 1.0)


def test_same_scene_is_of_streams_that_drifted_together():
    scenes = {A: 26 * S, B: 27 * S, C: 26 * S + TOGETHER_US + 1}
    assert same_scene(A, scenes) == (SceneOf(A, 26 * S), SceneOf(B, 27 * S))


def test_same_scene_of_a_stream_that_never_drifted_is_its_own_since_the_begin():
    assert same_scene(A, {A: None, B: None, C: 3 * S}) == (SceneOf(A, 0),)


def test_same_scene_ends_when_one_drifts_again():
    assert same_scene(A, {A: 26 * S, B: 75 * S}) == (SceneOf(A, 26 * S),)


def test_same_scene_has_the_nearest_drift_first():
    scenes = {A: 26 * S, B: 20 * S, C: 27 * S}
    assert [scene.stream for scene in same_scene(A, scenes)] == [A, C, B]


@given(drifts)
def test_same_scene_has_the_stream_first_and_is_mutual(scenes):
    for stream in scenes:
        shared = same_scene(stream, scenes)
        assert shared[0] == SceneOf(stream, scenes[stream] or 0)
        others = [scene.stream for scene in shared[1:]]
        assert stream not in others
        for other in others:
            assert stream in [scene.stream for scene in same_scene(other, scenes)]


@given(accuracies, accuracies, st.integers(0, 200))
def test_pays_unless_worse_beyond_chance(accuracy, alone, objects):
    if accuracy >= alone:
        assert pooling_pays(accuracy, alone, objects)
    if pooling_pays(accuracy, alone, objects + 1):
        assert pooling_pays(accuracy, alone, objects), (
            "more objects never make the same difference acceptable"
        )


def test_pays_refuses_a_clear_loss():
    assert pooling_pays(0.6, 0.9, 4), "four objects tell nothing"
    assert not pooling_pays(0.6, 0.9, 16)
