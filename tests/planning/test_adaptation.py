"""Which labels of others are pooled, and which weights serve."""

from hypothesis import given
from hypothesis import strategies as st

from ekya.core.units import US_PER_S, StreamId
from ekya.core.weights import Compared, SceneOf
from ekya.planning.adaptation.label_pooling import TOGETHER_US, same_scene
from ekya.planning.adaptation.shadow_gate import (
    LEAST_OBJECTS,
    why_back,
    why_not,
)

A, B = StreamId("a"), StreamId("b")

part = st.integers(0, 20).map(lambda twentieths: twentieths / 20)


@given(part, part, part)
def test_why_not_beyond_margin_refuses(new: float, old: float, margin: float) -> None:
    kept_back = why_not(new, old, margin) is not None
    assert kept_back == (new == 0.0 or new < old - margin)


def test_why_not_names_accuracies_and_margin() -> None:
    assert why_not(0.5, 0.75, 0.0) == (
        "the new weights get 50.0% of the newest labels right, and those that serve 75.0%"
    )
    assert (why_not(0.5, 0.75, 0.1) or "").endswith("which is more than 10.0% worse")
    assert "nothing" in (why_not(0.0, 0.0, 0.5) or "")


@given(part, part, part, st.integers(0, 20))
def test_why_back_needs_enough_objects_and_margin(
    new: float, old: float, margin: float, objects: int
) -> None:
    goes_back = why_back(Compared(new, old, objects), margin) is not None
    assert goes_back == (objects >= LEAST_OBJECTS and new < old - margin)


def test_why_back_names_objects_and_accuracies() -> None:
    assert why_back(Compared(0.25, 0.75, 16), 0.1) == (
        "of 16 objects labelled since, the new weights get 25.0% right, and those before them 75.0%"
    )


C = StreamId("c")
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
