"""Accuracy from a sample of the frames: the draw, and an interval that holds the accuracy of all of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.records import PredictionColumns
from ekya.results.metrics.accuracy import WindowSample
from ekya.results.metrics.scored_sample import choose_frames, margin_of_mean
from tests.results.frame_rows import seen


def rows(windows, per_window):
    return PredictionColumns.from_rows(
        [seen(frame, [], window=frame // per_window) for frame in range(windows * per_window)]
    )


@given(st.integers(1, 4), st.integers(1, 40), st.integers(0, 30))
def test_each_window_gives_its_frames_and_no_labelled_one(windows, per_window, drawn):
    labelled = np.arange(0, windows * per_window, 3)
    chosen = choose_frames(rows(windows, per_window), labelled, drawn, (0, 1))
    assert np.array_equal(chosen, np.unique(chosen))
    assert not np.isin(chosen, labelled).any()
    for window in range(windows):
        free = np.setdiff1d(np.arange(window * per_window, (window + 1) * per_window), labelled)
        assert np.isin(chosen, free).sum() == min(drawn, len(free))


def test_the_draw_depends_on_its_seed_alone():
    one, same, other = (choose_frames(rows(2, 50), np.zeros(0), 5, seed) for seed in ((1, 2), (1, 2), (2, 2)))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_the_interval_holds_the_accuracy_of_all_frames_nearly_always():
    random = np.random.default_rng(0)
    counted = random.integers(1, 12, (3, 300))
    correct = random.binomial(counted, random.uniform(0.4, 0.9, (3, 300)))
    truth = np.mean(correct.sum(1) / counted.sum(1))
    held = 0
    for _ in range(400):
        chosen = [random.permutation(300)[:30] for _ in range(3)]
        samples = [WindowSample(counted[k][at], correct[k][at], 300) for k, at in enumerate(chosen)]
        estimate = np.mean([one.correct.sum() / one.counted.sum() for one in samples])
        held += abs(estimate - truth) <= margin_of_mean({"a": samples})
    assert 0.92 <= held / 400 <= 0.99


def test_more_frames_narrow_it_and_all_leave_nothing():
    def margin(frames):
        counted = np.full(frames, 4)
        return margin_of_mean({"a": [WindowSample(counted, np.arange(frames) % 5, 200)]})

    assert margin(10) > margin(50) > margin(199) > margin(200) == 0.0


def test_windows_without_objects_say_nothing():
    empty = WindowSample(np.zeros(5, int), np.zeros(5, int), 50)
    assert margin_of_mean({"a": [empty]}) is None
    assert margin_of_mean({"a": [WindowSample(np.array([2]), np.array([1]), 50)]}) is None
    assert margin_of_mean({"a": [WindowSample(np.array([2]), np.array([1]), 1)]}) == 0.0
    some = WindowSample(np.full(10, 4), np.arange(10) % 5, 100)
    assert margin_of_mean({"a": [some, empty]}) == pytest.approx(margin_of_mean({"a": [some]}))
