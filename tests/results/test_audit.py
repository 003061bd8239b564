"""Tests of the accuracy that audits show: its value, and how often its interval holds the truth."""

import tracemalloc

import numpy as np
import pytest

from ekya.core.preparation_events import AccuracyAudited
from ekya.core.units import US_PER_S, StreamId
from ekya.results.metrics.audit import (
    FEWEST_AUDITS,
    FEWEST_FRAMES,
    MOST_AUDITS,
    RECENT_US,
    AuditTrail,
    estimate_accuracy,
)

CAM = StreamId("cam")


def an_audit(correct, counted, arrived=1000, t_us=0):
    return AccuracyAudited(t_us, CAM, 0, arrived, tuple(correct), tuple(counted), 0.1)


def test_accuracy_is_the_ratio_of_totals_over_the_frames_that_arrived():
    """A window with three times the frames counts three times as much, however many of it were audited."""
    few, many = an_audit([1] * 4, [2] * 4, 1000), an_audit([3] * 2, [3] * 2, 3000)
    got = estimate_accuracy([few, many])
    assert got.accuracy == pytest.approx((1000 * 1 + 3000 * 3) / (1000 * 2 + 3000 * 3))
    assert got.frames == 6


def test_frames_without_objects_change_nothing_but_their_number():
    frames = [2, 1, 3, 0, 2, 2], [3, 3, 3, 1, 2, 2]
    some = estimate_accuracy([an_audit(*frames)])
    more = estimate_accuracy([an_audit([*frames[0], 0, 0, 0], [*frames[1], 0, 0, 0])])
    assert more.accuracy == pytest.approx(some.accuracy)
    assert (more.low, more.high) == pytest.approx((some.low, some.high), abs=0.01)


def test_too_few_frames_with_objects_say_nothing():
    most = FEWEST_FRAMES - 1
    assert estimate_accuracy([]) is None
    assert estimate_accuracy([an_audit([1] * most + [0] * 9, [1] * most + [0] * 9)]) is None
    assert estimate_accuracy([an_audit([1] * FEWEST_FRAMES, [1] * FEWEST_FRAMES)]) is not None


@pytest.mark.parametrize(("right", "bounds"), [(6, (0.75, 1.0)), (0, (0.0, 0.25))])
def test_interval_is_not_empty_where_all_answers_are_alike(right, bounds):
    got = estimate_accuracy([an_audit([right] * 4, [6] * 4)] * 6)
    assert got.accuracy == right / 6
    low, high = bounds
    assert low <= got.low < got.high <= high


def test_objects_of_a_frame_count_as_less_than_independent_ones():
    """The same objects, once spread over frames evenly, once all right or all wrong in a frame."""
    spread = estimate_accuracy([an_audit([3] * 20, [6] * 20)])
    alike = estimate_accuracy([an_audit([6, 0] * 10, [6] * 20)])
    assert spread.accuracy == alike.accuracy == 0.5
    assert alike.high - alike.low > 2 * (spread.high - spread.low)


def drawn_audits(rng, accuracy, alike, objects, windows):
    """Returns audits of windows of unequal length, and the accuracy over all of their frames.

    Args:
        rng: draws frames and objects.
        accuracy: mean over the windows, which differ.
        alike: correlation of the objects of a frame.
        objects: mean number in a frame.
        windows: number of windows, of four audited frames each.
    """
    audits, right, total = [], 0, 0
    for window in range(windows):
        frames, here = (900, 300)[window % 2], min(accuracy + 0.05 * np.sin(window), 0.99)
        counted = rng.poisson(objects, frames)
        of_frame = rng.beta(here * (1 / alike - 1), (1 - here) * (1 / alike - 1), frames)
        correct = rng.binomial(counted, of_frame)
        right, total = right + int(correct.sum()), total + int(counted.sum())
        at = rng.choice(frames, 4, replace=False)
        audits.append(an_audit(correct[at].tolist(), counted[at].tolist(), frames))
    return audits, right / total


@pytest.mark.parametrize(
    ("accuracy", "alike", "objects", "windows"),
    [(0.6, 0.3, 6, 18), (0.85, 0.02, 6, 18), (0.85, 0.5, 2, 18), (0.95, 0.3, 2, 18), (0.85, 0.3, 6, 4)],
)
def test_interval_holds_the_accuracy_of_all_frames_about_as_often_as_it_says(
    accuracy, alike, objects, windows
):
    """By simulation: 400 draws, so chance alone gives 92.3% to 97.7% at 95%, and the estimate has no bias."""
    rng = np.random.default_rng(7)
    drawn = [drawn_audits(rng, accuracy, alike, objects, windows) for _ in range(400)]
    known = [(got, truth) for audits, truth in drawn if (got := estimate_accuracy(audits)) is not None]
    assert len(known) == len(drawn)
    held = np.mean([got.low <= truth <= got.high for got, truth in known])
    assert held >= 0.92
    errors = np.array([got.accuracy - truth for got, truth in known])
    assert abs(errors.mean()) < 3 * errors.std() / np.sqrt(len(errors))


def test_trail_keeps_an_hour_or_the_last_twelve():
    trail = AuditTrail()
    for at in range(100):
        trail.add_audit(an_audit([1, 1], [2, 2], t_us=at * RECENT_US // 20))
    assert trail.estimate.frames == 2 * 20
    assert trail.estimate.until_us - trail.estimate.since_us < RECENT_US
    slow = AuditTrail()
    for at in range(100):
        slow.add_audit(an_audit([1, 1], [2, 2], t_us=at * RECENT_US))
    assert slow.estimate.frames == 2 * FEWEST_AUDITS
    assert slow.estimate.until_us == 99 * RECENT_US


def test_trail_is_bounded_however_short_windows_are():
    trail = AuditTrail()
    for at in range(MOST_AUDITS):
        trail.add_audit(an_audit([1], [2], t_us=at * US_PER_S))
    tracemalloc.start()
    for at in range(MOST_AUDITS, 2 * MOST_AUDITS):
        trail.add_audit(an_audit([1], [2], t_us=at * US_PER_S))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert trail.estimate.frames == MOST_AUDITS
    assert grown < 400 * MOST_AUDITS + 20_000
