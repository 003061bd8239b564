"""Tests of a frame's measured cost as the share that λ needs: at 10 frames a second, 25 ms are 250."""

from math import ceil

import pytest
from street import row

from ekya.core.configs import InferenceConfig
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.pipeline.frame_costs import KEPT_PART, MOST_SHORTFALL, NEWEST_PART, FrameCosts, FrameTally
from ekya.results.metrics.health import FrameCount

EVERY, SECOND, SMALL = InferenceConfig(1, 32), InferenceConfig(2, 32), InferenceConfig(1, 24)
FPS, HELD_MILLI = 10.0, 300


@pytest.fixture
def costs():
    return FrameCosts(FPS, LINEAR)


def counted(costs, *configs, dropped=0):
    """Adds frames that λ intends: analysed ones, then ``dropped`` ones of the last λ that are not."""
    for place, config in enumerate(configs):
        costs.add(row(place * config.every, analysed=True, config=config))
    for place in range(dropped):
        costs.add(row(place * configs[-1].every, analysed=False, config=configs[-1]))
    return costs


def measured(costs, used_us, held_milli=HELD_MILLI):
    return costs.measure(used_us, held_milli)


def test_first_frames_give_the_cost_of_one(costs):
    assert measured(counted(costs, *[EVERY] * 4), 100_000) == (EVERY, 250)


def test_later_frames_change_the_cost_gradually(costs):
    measured(counted(costs, *[EVERY] * 4), 100_000)
    counted(costs, SECOND, SECOND)
    assert measured(costs, 100_000) == (SECOND, ceil(125 + NEWEST_PART * 125))


def test_costs_are_measured_per_resolution(costs):
    measured(counted(costs, EVERY), 50_000)
    assert measured(counted(costs, SMALL), 20_000) == (SMALL, 200)
    assert measured(counted(costs, EVERY), 50_000) == (EVERY, 500)


def test_use_at_a_faster_share_counts_as_more():
    """A tenth of a GPU has a third of full speed: 10 ms of it are worth 33 ms, which a tenth can do."""
    costs = FrameCosts(FPS, SpeedCurve(((0, 0.0), (100, 1 / 3), (1000, 1.0))))
    assert measured(counted(costs, EVERY), 10_000, held_milli=100) == (EVERY, 100)


def test_no_frames_or_several_resolutions_give_no_cost(costs):
    assert measured(costs, 100_000) is None
    assert measured(counted(costs, EVERY), 0) is None
    assert measured(counted(costs, EVERY, SMALL), 100_000) is None
    assert measured(counted(costs, EVERY), 25_000) == (EVERY, 250)


def test_frames_proposed_only_do_not_raise_the_cost(costs):
    counted(costs, EVERY, EVERY)
    costs.count_found()
    costs.count_found()
    assert measured(costs, 100_000) == (EVERY, 250)
    assert measured(counted(costs, EVERY), 25_000) == (EVERY, 250)


def need(costs, dropped):
    """Returns the needed share after 20 analysed frames of 25 ms and ``dropped`` dropped ones."""
    _, share_milli = measured(counted(costs, *[EVERY] * 20, dropped=dropped), 500_000)
    return share_milli


def test_dropped_frames_raise_the_cost(costs):
    assert need(costs, dropped=1) == 250, f"{KEPT_PART} of them keep up"
    assert need(costs, dropped=5) == ceil(250 * 25 / 20)
    assert need(costs, dropped=100) == ceil(250 * MOST_SHORTFALL)


def test_raised_cost_falls_slowly(costs):
    needs = [need(costs, dropped=10), *(need(costs, dropped=0) for _ in range(30))]
    assert needs[1] == ceil(250 * (1 + (1 - NEWEST_PART) * 0.5))
    assert needs == sorted(needs, reverse=True)
    assert needs[-1] == pytest.approx(250, abs=1)
    assert need(costs, dropped=4) > needs[-1], "and dearer at once"


def test_frames_are_reported_once_and_window_by_window():
    tally = FrameTally()
    assert tally.drain_counts() is None
    assert [tally.add(row(frame, frame % 2 == 0, window=0)) for frame in range(4)] == [None] * 4
    assert tally.drain_counts() == (0, FrameCount(4, 2))
    assert tally.drain_counts() is None
    assert tally.add(row(4, True, window=0)) is None
    assert tally.add(row(5, False, window=1)) == (0, FrameCount(1, 1))
    assert tally.add(row(6, True, window=1, config=InferenceConfig(3, 32))) is None
    assert tally.add(row(7, False, window=1, config=InferenceConfig(3, 32))) is None
    assert tally.drain_counts() == (1, FrameCount(2, 1))


def test_costs_of_the_golden_detector_are_its_own(costs):
    """Boxes are followed between its frames, so its λ differ in cost."""
    fifth, ninth = InferenceConfig(5, 0), InferenceConfig(9, 0)
    assert measured(counted(costs, EVERY), 50_000) == (EVERY, 500)
    assert measured(counted(costs, fifth), 100_000) == (fifth, 200)
    assert measured(counted(costs, ninth), 180_000) == (ninth, 200)
    assert measured(counted(costs, fifth, ninth), 180_000) is None


def test_late_frames_make_cores_dearer_but_not_a_gpu(costs):
    on_gpu = FrameCosts(FPS, LINEAR, on_cores=False)
    assert measured(counted(costs, *[EVERY] * 2, dropped=2), 50_000) == (EVERY, 250 * MOST_SHORTFALL)
    assert measured(counted(on_gpu, *[EVERY] * 2, dropped=2), 50_000) == (EVERY, 250)


def test_due_frames_that_the_gpu_was_late_for_are_counted():
    tally = FrameTally()
    for frame, analysed, late in ((0, True, True), (1, False, True), (2, False, True), (4, False, False)):
        tally.add(row(frame, analysed, window=0, config=InferenceConfig(2, 32)), late)
    assert tally.drain_counts() == (0, FrameCount(due=3, analysed=1, late_gpu=1))
