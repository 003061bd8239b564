"""Laws of labelled frames: their parts, their split, and what they count for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.objects import SAME_OBJECT_IOU, iou_matrix
from ekya.models.training.frames import (
    NOTHING,
    FrameObjects,
    LabelledFrames,
    distinct_objects,
    split_by_time,
)
from ekya.models.training.goals import Judged
from ekya.models.training.label_weights import tried_of, weighed_now
from ekya.models.training.labelled import concatenate

FLEET = ("car", "person", "bus")


def objects_of(*objects: tuple[int, int], doubtful: int = 0) -> FrameObjects:
    """Returns objects of (class, place): places are apart from each other."""
    boxes = np.array([[0.1 * place, 0.0, 0.1 * place + 0.08, 0.5] for _, place in objects], np.float32)
    return FrameObjects(
        boxes.reshape(-1, 4),
        np.array([index for index, _ in objects], np.int64),
        np.full((doubtful, 4), 0.5, np.float32),
    )


def frames_of(*objects: FrameObjects, tracks: list[int] | None = None, first: int = 0) -> LabelledFrames:
    """Returns frames a second apart, whose first pixel is their number."""
    count = len(objects)
    images = np.zeros((count, 4, 4, 3), np.uint8)
    images[:, 0, 0, 0] = first + np.arange(count)
    own = np.arange(first, first + count) if tracks is None else np.array(tracks, np.int64)
    return LabelledFrames(images, objects, FLEET, own, (first + np.arange(count)) * 1_000_000)


def numbers(frames: LabelledFrames) -> list[int]:
    return frames.images[:, 0, 0, 0].tolist()


@st.composite
def drawn(draw: st.DrawFn, least: int = 0) -> LabelledFrames:
    """Frames in the order of time, in tracks of one or more; some are empty."""
    one = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=4, unique_by=lambda of: of[1])
    shown = draw(st.lists(one, min_size=least, max_size=12))
    objects = [objects_of(*of, doubtful=draw(st.integers(0, 2))) for of in shown]
    steps = draw(st.lists(st.integers(0, 1), min_size=len(objects), max_size=len(objects)))
    return frames_of(*objects, tracks=np.cumsum(steps, dtype=np.int64).tolist())


@given(drawn(), st.data())
def test_taken_frames_keep_their_objects(frames: LabelledFrames, data: st.DataObject) -> None:
    places = np.array(data.draw(st.permutations(range(len(frames)))), np.int64)
    taken = frames.select_rows(places)
    assert numbers(taken) == places.tolist()
    assert all(taken.objects[row] is frames.objects[at] for row, at in enumerate(places.tolist()))
    assert taken.tracks.tolist() == frames.tracks[places].tolist()
    assert taken.objects_in_each().tolist() == frames.objects_in_each()[places].tolist()
    assert numbers(taken.select_rows(np.argsort(places))) == numbers(frames)


@given(drawn(), st.integers(0, 12))
def test_joined_frames_are_the_parts_in_order(frames: LabelledFrames, cut: int) -> None:
    every = np.arange(len(frames))
    parts = [frames.select_rows(every[:cut]), frames.select_rows(every[cut:])]
    joined = concatenate(parts)
    assert numbers(joined) == numbers(frames)
    assert joined.objects == frames.objects
    assert joined.t_us.tolist() == frames.t_us.tolist()
    assert joined.tracks.tolist() == frames.tracks.tolist()
    assert sum(part.nbytes for part in parts) == joined.nbytes == frames.nbytes
    assert joined.labels().tolist() == [index for part in parts for index in part.labels().tolist()]


@given(drawn())
def test_frames_by_class_are_those_with_an_object_of_it(frames: LabelledFrames) -> None:
    groups = frames.by_class()
    assert len(groups) == len(set(frames.labels().tolist()))
    for index, group in zip(sorted(set(frames.labels().tolist())), groups, strict=True):
        assert group.tolist() == [at for at, of in enumerate(frames.objects) if index in of.classes]
    assert frames.objects_in_each().sum() == len(frames.labels())
    assert frames.mix_weights(frames.select_rows(np.arange(0))).tolist() == [1.0] * len(frames)


def test_frames_with_wrong_columns_are_refused() -> None:
    one = np.zeros(1, np.int64)
    square = np.zeros((1, 4, 4, 3), np.uint8)
    for images in (np.zeros((1, 4, 5, 3), np.uint8), square.astype(np.float32), square[0], square[..., :1]):
        with pytest.raises(ValueError, match=r"\(N, S, S, 3\) uint8"):
            LabelledFrames(images, (NOTHING,), FLEET, one, one)
    for objects, tracks, t_us in (((), one, one), ((NOTHING,), one[:0], one), ((NOTHING,), one, one[:0])):
        with pytest.raises(ValueError, match="its objects, its track and its time"):
            LabelledFrames(square, objects, FLEET, tracks, t_us)


fractions = st.floats(0.05, 0.6)


@given(drawn(), fractions)
def test_split_is_complete_and_keeps_tracks_whole(frames: LabelledFrames, fraction: float) -> None:
    training, validation = split_by_time(frames, fraction)
    assert numbers(training) == sorted(numbers(training))
    assert sorted(numbers(training) + numbers(validation)) == numbers(frames)
    assert not set(training.tracks.tolist()) & set(validation.tracks.tolist())


@given(drawn(), fractions)
def test_split_validates_on_what_came_last(frames: LabelledFrames, fraction: float) -> None:
    training, validation = split_by_time(frames, fraction)
    assert numbers(training) + numbers(validation) == numbers(frames)
    tracks_with_objects = set(frames.tracks[frames.objects_in_each() > 0].tolist())
    shown = [part.objects_in_each().sum() for part in (training, validation)]
    if len(tracks_with_objects) < 2:
        assert len(validation) == 0
    else:
        assert min(shown) > 0
        assert validation.objects_in_each()[validation.tracks == validation.tracks[0]].any()


@given(drawn(), fractions)
def test_split_comes_nearest_to_the_fraction(frames: LabelledFrames, fraction: float) -> None:
    _, validation = split_by_time(frames, fraction)
    counts = frames.objects_in_each()
    tracks = sorted(set(frames.tracks[counts > 0].tolist()))
    if len(tracks) > 1:
        wanted = fraction * counts.sum()
        reached = abs(validation.objects_in_each().sum() - wanted)
        others = [abs(counts[frames.tracks >= first].sum() - wanted) for first in tracks[1:]]
        assert reached == min(others)


def test_split_leaves_earlier_empty_frames_to_training() -> None:
    car = objects_of((0, 1))
    frames = frames_of(car, NOTHING, car, car, NOTHING, car, NOTHING)
    training, validation = split_by_time(frames, 0.5)
    assert (numbers(training), numbers(validation)) == ([0, 1, 2], [3, 4, 5, 6])


@given(drawn())
def test_distinct_objects_are_those_new_since_the_frame_before(frames: LabelledFrames) -> None:
    expected = 0
    for at, of in enumerate(frames.objects):
        before = frames.objects[at - 1] if at else NOTHING
        for box, index in zip(of.boxes, of.classes, strict=True):
            expected += not any(
                index == other and iou_matrix(box[None], there[None])[0, 0] >= SAME_OBJECT_IOU
                for there, other in zip(before.boxes, before.classes, strict=True)
            )
    assert distinct_objects(frames) == expected


@given(drawn())
def test_distinct_objects_that_stay_count_once(frames: LabelledFrames) -> None:
    twice = frames.select_rows(np.repeat(np.arange(len(frames)), 2))
    assert distinct_objects(twice) == distinct_objects(frames) <= frames.objects_in_each().sum()
    apart = frames_of(*(one for of in frames.objects for one in (of, NOTHING)))
    assert distinct_objects(apart) == frames.objects_in_each().sum()


def test_distinct_objects_of_other_classes_are_others() -> None:
    assert distinct_objects(frames_of(objects_of((0, 1)), objects_of((1, 1)), objects_of((1, 1)))) == 2
    assert distinct_objects(frames_of(objects_of((0, 1)), objects_of((0, 1), (0, 3)))) == 2


@given(drawn(least=1))
def test_every_frame_is_measured_on(frames: LabelledFrames) -> None:
    assert tried_of(frames).tolist() == list(range(len(frames)))


@st.composite
def judged_frames(draw: st.DrawFn) -> tuple[LabelledFrames, Judged]:
    """Frames, and counts that a model could have on them."""
    frames = draw(drawn(least=1))
    objects = frames.objects_in_each()
    hits = np.array([draw(st.integers(0, int(count))) for count in objects])
    wrong = np.array([draw(st.integers(0, 2)) for _ in objects])
    return frames, Judged(2.0 * hits, (objects + hits + wrong).astype(np.float64))


@given(judged_frames())
def test_weights_of_frames_favour_the_later_half_at_most(case: tuple[LabelledFrames, Judged]) -> None:
    frames, judged = case
    weighed = weighed_now(frames, tried_of(frames), judged, None)
    later = frames.t_us > np.median(frames.t_us)
    assert (weighed[later] == 1.0).all()
    earlier = weighed[~later]
    assert ((earlier >= 0.0) & (earlier <= 1.0)).all()
    assert len(set(earlier.tolist())) == 1
    assert 0.0 <= judged.accuracy(weighed) <= 1.0


@given(drawn(least=2), st.sampled_from([0.0, 1.0]))
def test_weights_of_an_unchanged_scene_are_equal(frames: LabelledFrames, right: float) -> None:
    counts = frames.objects_in_each().astype(np.float64)
    judged = Judged(2 * right * counts, (1 + right) * counts)
    weighed = weighed_now(frames, tried_of(frames), judged, None)
    assert weighed.tolist() == [1.0] * len(frames)


def test_weights_of_a_changed_scene_are_those_of_the_later_half() -> None:
    """Twenty frames of four objects each, all found until the middle and none after it."""
    places = [[(0, (at % 2) * 4 + of) for of in range(4)] for at in range(20)]
    frames = frames_of(*(objects_of(*of) for of in places))
    hits = np.where(np.arange(20) < 10, 4.0, 0.0)
    weighed = weighed_now(frames, tried_of(frames), Judged(2 * hits, 4 + hits), None)
    assert (weighed[:10] < 0.05).all()
    assert weighed[10:].tolist() == [1.0] * 10
    few = frames.select_rows(np.array([0, 19]))
    unsure = weighed_now(few, tried_of(few), Judged(2 * hits[[0, 19]], 4 + hits[[0, 19]]), None)
    assert 0.05 < unsure[0] < 1.0, "two frames tell less"
