import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.learning.labelled import LabelledCrops, concatenate, no_crops, split_by_track_and_time


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
def test_validation_tracks_were_born_last(rows: list[tuple[int, int]]) -> None:
    labelled = labelled_with([track for track, _ in rows], [time for _, time in rows])
    training, validation = split_by_track_and_time(labelled)
    born = {track: min(time for t, time in rows if t == track) for track, _ in rows}
    if len(validation):
        assert max(born[t] for t in training.tracks) <= min(born[t] for t in validation.tracks)


def test_a_fifth_of_many_short_tracks_validates() -> None:
    training, validation = split_by_track_and_time(
        labelled_with([i // 2 for i in range(100)], list(range(100)))
    )
    assert (len(training), len(validation)) == (80, 20)
    assert validation.tracks.min() == 40


def test_columns_that_do_not_fit_are_refused() -> None:
    one = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="tracks"):
        LabelledCrops(np.zeros((1, 4, 4, 3), np.uint8), one, np.zeros(2, np.int64), one)
    with pytest.raises(ValueError, match="crops"):
        LabelledCrops(np.zeros((1, 4, 5, 3), np.uint8), one, one, one)


def test_concatenate_keeps_order() -> None:
    joined = concatenate([labelled_with([5], [1]), no_crops(2), labelled_with([3], [2])])
    assert joined.tracks.tolist() == [5, 3]
