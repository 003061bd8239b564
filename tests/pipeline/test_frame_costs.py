"""Tests of a frame's measured cost as the share that λ needs: at 10 frames a second, 25 ms are 250."""

from math import ceil

import numpy as np
import pytest

from ekya.core.configs import InferenceConfig
from ekya.core.records import FramePrediction
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.pipeline.frame_costs import KEPT_PART, MOST_SHORTFALL, NEWEST_PART, FrameCosts

EVERY, SECOND, SMALL = InferenceConfig(1, 32), InferenceConfig(2, 32), InferenceConfig(1, 24)
FPS, HELD_MILLI = 10.0, 300


@pytest.fixture
def costs():
    return FrameCosts(FPS, LINEAR)


def row(config, frame, analysed):
    nothing = np.zeros(0, np.int16)
    boxes, sure = np.zeros((0, 4), np.float32), np.zeros(0, np.float32)
    return FramePrediction(
        frame, frame, 0, analysed, frame, 0, config.every, config.resolution, boxes, nothing, sure
    )


def counted(costs, *configs, dropped=0):
    """Adds frames that λ intends: analysed ones, then ``dropped`` ones of the last λ that are not."""
    for place, config in enumerate(configs):
        costs.add(row(config, place * config.every, analysed=True))
    for place in range(dropped):
        costs.add(row(configs[-1], place * configs[-1].every, analysed=False))
    return costs


def told(costs, used_us, held_milli=HELD_MILLI):
    return costs.since_told(used_us, held_milli)


def test_the_first_frames_say_what_one_takes(costs):
    assert told(counted(costs, *[EVERY] * 4), 100_000) == (EVERY, 250)


def test_later_ones_change_it_a_little_at_a_time_and_skipping_some_changes_nothing(costs):
    told(counted(costs, *[EVERY] * 4), 100_000)
    counted(costs, SECOND, SECOND)
    assert told(costs, 100_000) == (SECOND, ceil(125 + NEWEST_PART * 125))


def test_resolutions_are_kept_apart(costs):
    told(counted(costs, EVERY), 50_000)
    assert told(counted(costs, SMALL), 20_000) == (SMALL, 200)
    assert told(counted(costs, EVERY), 50_000) == (EVERY, 500)


def test_what_was_used_at_a_share_that_is_worth_more_is_worth_more():
    """A tenth of a GPU has a third of full speed: 10 ms of it are worth 33 ms, which a tenth can do."""
    costs = FrameCosts(FPS, SpeedCurve(((0, 0.0), (100, 1 / 3), (1000, 1.0))))
    assert told(counted(costs, EVERY), 10_000, held_milli=100) == (EVERY, 100)


def test_nothing_is_said_of_no_frames_or_of_frames_of_several_kinds(costs):
    assert told(costs, 100_000) is None
    assert told(counted(costs, EVERY), 0) is None
    assert told(counted(costs, EVERY, SMALL), 100_000) is None
    assert told(counted(costs, EVERY), 25_000) == (EVERY, 250)


def test_frames_that_were_kept_for_the_golden_model_only_make_the_others_no_dearer(costs):
    counted(costs, EVERY, EVERY)
    costs.count_found()
    costs.count_found()
    assert told(costs, 100_000) == (EVERY, 250)
    assert told(counted(costs, EVERY), 25_000) == (EVERY, 250)


def need(costs, dropped):
    """Returns the needed share after 20 analysed frames of 25 ms and ``dropped`` dropped ones."""
    _, share_milli = told(counted(costs, *[EVERY] * 20, dropped=dropped), 500_000)
    return share_milli


def test_where_frames_are_dropped_although_they_fit_they_count_as_dearer(costs):
    assert need(costs, dropped=1) == 250, f"{KEPT_PART} of them keep up"
    assert need(costs, dropped=5) == ceil(250 * 25 / 20)
    assert need(costs, dropped=100) == ceil(250 * MOST_SHORTFALL)


def test_they_become_cheaper_slowly_again(costs):
    needs = [need(costs, dropped=10), *(need(costs, dropped=0) for _ in range(30))]
    assert needs[1] == ceil(250 * (1 + (1 - NEWEST_PART) * 0.5))
    assert needs == sorted(needs, reverse=True)
    assert needs[-1] == pytest.approx(250, abs=1)
    assert need(costs, dropped=4) > needs[-1], "and dearer at once"
