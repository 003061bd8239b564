import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.models.training.labelled import (
    LabelledCrops,
    class_mix_weights,
    concatenate,
    no_crops,
    split_by_track_and_time,
)


def labelled_with(tracks: list[int], times: list[int]) -> LabelledCrops:
    count = len(tracks)
    crops = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 3), np.uint8)
    return LabelledCrops(
        crops, np.zeros(count, np.int64), np.array(tracks, np.int64), np.array(times, np.int64)
    )


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=60), st.floats(0.05, 0.6))
def test_split_is_complete_and_keeps_tracks_whole(rows: list[tuple[int, int]], fraction: float) -> None:
    labelled = labelled_with([track for track, _ in rows], [time for _, time in rows])
    training, validation = split_by_track_and_time(labelled, fraction)
    both = np.concatenate([training.crops[:, 0, 0, 0], validation.crops[:, 0, 0, 0]])
    assert sorted(both) == list(range(len(rows)))
    assert not set(training.tracks) & set(validation.tracks)
    if len(set(labelled.tracks)) >= 2:
        assert len(training) > 0
        assert len(validation) > 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), min_size=2, max_size=60))
def test_split_validates_on_the_youngest_tracks(rows: list[tuple[int, int]]) -> None:
    labelled = labelled_with([track for track, _ in rows], [time for _, time in rows])
    training, validation = split_by_track_and_time(labelled)
    born = {track: min(time for t, time in rows if t == track) for track, _ in rows}
    if len(validation):
        assert max(born[t] for t in training.tracks) <= min(born[t] for t in validation.tracks)


def test_split_of_many_tracks_validates_on_a_fifth() -> None:
    training, validation = split_by_track_and_time(
        labelled_with([i // 2 for i in range(100)], list(range(100)))
    )
    assert (len(training), len(validation)) == (80, 20)
    assert validation.tracks.min() == 40


def test_labelled_crops_with_wrong_columns_are_refused() -> None:
    one = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="tracks"):
        LabelledCrops(np.zeros((1, 4, 4, 3), np.uint8), one, np.zeros(2, np.int64), one)
    with pytest.raises(ValueError, match="crops"):
        LabelledCrops(np.zeros((1, 4, 5, 3), np.uint8), one, one, one)


def test_concatenate_keeps_order() -> None:
    joined = concatenate([labelled_with([5], [1]), no_crops(2), labelled_with([3], [2])])
    assert joined.tracks.tolist() == [5, 3]


def of_classes(*rows: tuple[int, int, int]) -> LabelledCrops:
    """Returns crops by (class, track, time)."""
    labelled = labelled_with([track for _, track, _ in rows], [time for _, _, time in rows])
    return LabelledCrops(
        labelled.crops, np.array([index for index, _, _ in rows], np.int64), labelled.tracks, labelled.t_us
    )


def test_split_validates_on_every_class() -> None:
    """Cars come first and a bus last: without regard to classes, validation would hold buses only."""
    cars = [(1, track, track) for track in range(20)]
    buses = [(3, 100 + track, 50 + track) for track in range(5)]
    training, validation = split_by_track_and_time(of_classes(*cars, *buses))
    assert np.bincount(training.classes).tolist() == [0, 16, 0, 4]
    assert validation.tracks.tolist() == [16, 17, 18, 19, 104]


def test_split_class_of_one_track_trains() -> None:
    training, validation = split_by_track_and_time(of_classes((0, 1, 0), (0, 2, 1), (4, 3, 2), (4, 3, 3)))
    assert (training.tracks.tolist(), validation.tracks.tolist()) == ([1, 3, 3], [2])


def test_split_of_single_tracks_validates_on_the_youngest() -> None:
    training, validation = split_by_track_and_time(of_classes((0, 1, 0), (4, 3, 2), (2, 7, 1)))
    assert (sorted(training.tracks), validation.tracks.tolist()) == ([1, 7], [3])


def test_split_track_has_its_majority_class() -> None:
    rows = [(0, 1, 0), (0, 2, 1), (0, 3, 2), (5, 3, 3), (0, 3, 4)]
    _, validation = split_by_track_and_time(of_classes(*rows))
    assert validation.tracks.tolist() in ([2], [3, 3, 3])
    assert set(validation.tracks) == {3}


def test_class_mix_weights_count_classes_as_seen() -> None:
    """Nine of ten cars and one of two buses train: unweighted, buses would be half of the measure."""
    training, validation = np.array([1] * 9 + [3]), np.array([1, 3])
    assert class_mix_weights(training, validation).tolist() == [10 / 6, 2 / 6]
    assert class_mix_weights(np.array([1, 1, 5]), np.array([1, 1])).tolist() == [1.0, 1.0]
    assert class_mix_weights(np.array([-1, 0]), np.zeros(0, np.int64)).tolist() == []


@given(st.lists(st.integers(-1, 5), max_size=40), st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_class_mix_weights_restore_the_mix_of_classes(seen: list[int], held: list[int]) -> None:
    training, validation = np.array(seen, np.int64), np.array(held, np.int64)
    weights = class_mix_weights(training, validation)
    assert weights.mean() == pytest.approx(1.0)
    everything = [index for index in (*seen, *held) if index in set(held)]
    for index in set(held):
        share = weights[validation == index].sum() / weights.sum()
        assert share == pytest.approx(everything.count(index) / len(everything))
