"""Which kept models and labels of others are tried, which weights serve, and which are forgotten."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.units import US_PER_S, ModelVersion, StreamId
from ekya.core.weights import Compared, KeptModel, Scene, SceneOf
from ekya.planning.adaptation.kept_models import (
    KNOWN_OBJECTS,
    LABELS_OF_AN_OBJECT,
    MOST_CANDIDATES,
    OF_ANOTHER_SCENE,
    expected_accuracies,
    mark_used,
    nearest_candidates,
    numbers_to_forget,
    prior_accuracy,
    should_try,
    why_offered,
)
from ekya.planning.adaptation.label_pooling import TOGETHER_US, same_scene
from ekya.planning.adaptation.shadow_gate import (
    LEAST_OBJECTS,
    why_back,
    why_not,
)

A, B = StreamId("a"), StreamId("b")
DAY, DUSK, NIGHT = (120, 130), (90, 80), (20, 10)
ENOUGH = KNOWN_OBJECTS * LABELS_OF_AN_OBJECT

part = st.integers(0, 20).map(lambda twentieths: twentieths / 20)


def kept(number, stream=A, picture=DAY, accuracy=0.9, labels=ENOUGH):
    return KeptModel(number, stream, ModelVersion(number), number, accuracy, Scene(picture, (), labels))


ZOO = (kept(1, A, NIGHT), kept(2, B, DUSK), kept(3, B, DAY), kept(4, A, (121, 130)), kept(5, A, DUSK))


def test_candidates_are_the_nearest_scenes_of_all_streams_the_most_recently_used_first():
    assert nearest_candidates(ZOO, DAY, None) == (3, 4, 5)
    assert nearest_candidates(ZOO, DUSK, None) == (5, 2, 3)
    assert len(nearest_candidates(ZOO, NIGHT, None)) == MOST_CANDIDATES


def test_candidates_leave_out_the_model_that_serves():
    assert nearest_candidates(ZOO, DAY, 3) == (4, 5, 2)


def test_candidates_without_a_picture_or_with_another_description_are_none():
    assert nearest_candidates(ZOO, (), None) == ()
    assert nearest_candidates(ZOO, (1, 2, 3), None) == ()


def test_superseded_are_earlier_models_of_the_same_stream_and_scene():
    assert numbers_to_forget(ZOO, kept(6, A, (120, 132)), 9) == (4,)
    assert numbers_to_forget(ZOO, kept(6, StreamId("c"), DAY), 9) == ()


@given(st.permutations(ZOO), st.integers(1, 7))
def test_superseded_leaves_room_and_takes_the_least_recently_used(zoo, most):
    forget = numbers_to_forget(zoo, kept(6, StreamId("c")), most)
    left = [model.number for model in zoo if model.number not in forget]
    assert left == [model.number for model in zoo][-(most - 1) :][: most - 1]


def test_used_model_becomes_the_newest():
    assert [model.number for model in mark_used(ZOO, 2)] == [1, 3, 4, 5, 2]
    assert mark_used(ZOO, 9) == ZOO


def test_tries_where_the_scene_is_new_or_the_model_is_in_need():
    assert should_try(1.0, 7)
    assert should_try(0.9, None)
    assert not should_try(0.95, None)


def test_known_is_the_accuracy_in_the_same_scene_as_far_as_labels_showed_it():
    assert prior_accuracy(kept(1, accuracy=0.9), DAY) == pytest.approx(0.9)
    assert prior_accuracy(kept(1, accuracy=0.9, labels=ENOUGH // 2), DAY) == pytest.approx(0.7)
    assert prior_accuracy(kept(1, accuracy=0.9), NIGHT) == prior_accuracy(None, DAY) == OF_ANOTHER_SCENE


def offered(compared, new_known, old_known):
    return why_offered(compared, expected_accuracies(compared, new_known, old_known)) is not None


def test_why_offered_prefers_a_model_of_the_scene_to_one_that_is_as_good_on_few_objects():
    as_good = Compared(1.0, 1.0, 3)
    assert offered(as_good, prior_accuracy(kept(1), DAY), prior_accuracy(None, DAY))
    assert not offered(as_good, prior_accuracy(kept(1), NIGHT), prior_accuracy(None, NIGHT))


def test_why_offered_believes_many_objects_more_than_what_was_known():
    assert not offered(Compared(0.5, 0.8, 60), 0.95, OF_ANOTHER_SCENE)


@given(part, part, st.integers(1, 40))
def test_why_offered_without_knowledge_needs_a_better_model(new, old, objects):
    compared = Compared(new, old, objects)
    if offered(compared, OF_ANOTHER_SCENE, OF_ANOTHER_SCENE):
        assert new > old
        better = replace(compared, new=min(new + 0.05, 1.0))
        assert offered(better, OF_ANOTHER_SCENE, OF_ANOTHER_SCENE)


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
