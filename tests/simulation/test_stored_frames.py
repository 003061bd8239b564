"""Tests of the kept frames of a stream, and of scoring answers to them."""

import numpy as np
import pytest
from bars import FPS, FRAMES, NAMES, SIDE, WINDOW_US, class_at, frames

from ekya.models.proposer import GivenBoxes
from ekya.pipeline.collector import WindowCollector
from ekya.pipeline.settings import PreparationSettings
from ekya.simulation.emulated.model_inputs import CropInput
from ekya.simulation.emulated.stored_frames import iterate_windows

SETTINGS = PreparationSettings(NAMES, SIDE, FPS, 40, 5)
SIGHT = CropInput(SIDE)


def watched(count, windows=None):
    collector = WindowCollector(SETTINGS, WINDOW_US)
    return list(iterate_windows(frames(count), GivenBoxes(), collector, None, SIGHT, WINDOW_US, windows))


def score(window, classes, *sampling):
    """Scores the answers that give each box of a window one of these classes."""
    answers = SIGHT.answer_frames(window, (classes, np.ones(len(classes), np.float32)))
    return window.score(answers, len(NAMES), *sampling)


@pytest.fixture(scope="module")
def window():
    return watched(2 * FRAMES)[1].frames


def test_watch_yields_whole_windows_in_order():
    seen = watched(2 * FRAMES)
    assert [of.frames.window for of in seen] == [0, 1]
    assert [of.material.window for of in seen] == [0, 1]
    assert seen[1].frames.frame.tolist() == list(range(FRAMES, 2 * FRAMES))
    assert len(seen[1].material.sample) > 20
    assert len(watched(3 * FRAMES, windows=2)) == 2


def test_watch_window_without_frames_is_empty():
    there = [one for one in frames(5 * FRAMES) if one[0].index // FRAMES not in {0, 2, 3}]
    collector = WindowCollector(SETTINGS, WINDOW_US)
    seen = list(iterate_windows(iter(there), GivenBoxes(), collector, None, SIGHT, WINDOW_US, 4))
    assert [of.frames.window for of in seen] == [of.material.window for of in seen] == [0, 1, 2, 3]
    assert [len(of.frames.frame) for of in seen] == [0, FRAMES, 0, 0]
    assert [bool(of.material.sample) for of in seen] == [False, True, False, False]
    assert seen[0].frames.images[SIDE].shape == (0, SIDE, SIDE, 3)


@pytest.mark.parametrize(
    ("more", "part"), [(5, 4 / FRAMES), (FRAMES // 2, 0.5 - 1 / FRAMES), (FRAMES - 1, 1.0)]
)
def test_watch_last_window_ends_with_the_stream(more, part):
    *whole, last = watched(2 * FRAMES + more)
    assert [of.part for of in whole] == [1.0, 1.0]
    assert last.part == pytest.approx(part)
    assert last.frames.frame.tolist() == list(range(2 * FRAMES, 2 * FRAMES + more))


def test_seen_score_right_answers_one_wrong_zero(window):
    truth = window.reference.classes.astype(np.int64)
    assert score(window, truth)[0].accuracy == 1.0
    assert score(window, (truth + 1) % 3)[0].accuracy == 0.0
    half = np.where(np.arange(len(truth)) % 2, truth, (truth + 1) % 3)
    scored, series = score(window, half)
    assert scored.accuracy == pytest.approx(0.5, abs=0.01)
    assert series.counted.sum() == scored.counted == len(truth)
    assert series.correct.sum() == scored.correct


def test_seen_score_leaves_out_tracks(window):
    truth = window.reference.classes.astype(np.int64)
    one = window.reference.tracks[0]
    counted = score(window.without(np.array([one])), truth)[0].counted
    assert counted == len(truth) - np.count_nonzero(window.reference.tracks == one) < len(truth)


def test_seen_score_skipped_frames_use_last_analysed_answer(window):
    """Objects stand for a few frames: an old answer is right as long as the same class is there."""
    truth = window.reference.classes.astype(np.int64)
    for every in (2, 5):
        scored, _ = score(window, truth, every)
        first = -(-FRAMES // every) * every
        counted, right = counted_and_right(range(first, 2 * FRAMES), every)
        assert (scored.counted, scored.correct) == (counted, right)
        assert score(window, truth, 1, every)[0].counted == counted


def counted_and_right(frames_of, every):
    """Returns objects in these frames, and those whose class an answer to every k-th frame still names."""
    right = counted = 0
    for index in frames_of:
        answering = index - index % every
        for place in range(4):
            if index % 4 != 3:
                counted += 1
                right += answering % 4 != 3 and class_at(place, index) == class_at(place, answering)
    return counted, right


def test_seen_thinned_keeps_every_kth_frame(window):
    thin = window.thinned(3)
    assert thin.frame.tolist() == [index for index in range(FRAMES, 2 * FRAMES) if index % 3 == 0]
    assert len(thin.boxes) == len(thin.images[SIDE]) == len(thin.reference.classes)
    np.testing.assert_array_equal(thin.boxes, thin.reference.boxes)
    np.testing.assert_array_equal(thin.images[SIDE], window.images[SIDE][window.rows_of_every(3)])
    assert thin.mean_objects == pytest.approx(len(thin.boxes) / len(thin.frame))


def test_seen_in_bursts_keeps_consecutive_frames(window):
    parted = window.in_bursts(6, 2)
    assert parted.frame.tolist() == [*range(36, 42), *range(48, 54)]
    np.testing.assert_array_equal(parted.boxes, parted.reference.boxes)
    assert window.in_bursts(6, 1) is window


def test_seen_in_bursts_no_answer_holds_beyond_its_burst(window):
    parted = window.in_bursts(6, 2)
    truth = parted.reference.classes.astype(np.int64)
    for every in (1, 2, 3):
        scored, _ = score(parted, truth, every)
        assert (scored.counted, scored.correct) == counted_and_right(parted.frame.tolist(), every)


def test_seen_score_empty_window_counts_nothing(window):
    nothing = window.thinned(10_000)
    assert nothing.mean_objects == 0.0
    assert nothing.score(nothing.unanswered(), len(NAMES))[0].accuracy is None
