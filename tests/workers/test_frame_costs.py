"""What a frame takes by now, told as the share that λ would use: at 10 frames a second, 25 ms are 250."""

from math import ceil

import pytest

from ekya.core.configs import InferenceConfig
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.workers.frame_costs import NEWEST_PART, FrameCosts

EVERY, SECOND, SMALL = InferenceConfig(1, 32), InferenceConfig(2, 32), InferenceConfig(1, 24)
FPS, HELD_MILLI = 10.0, 300


@pytest.fixture
def costs():
    return FrameCosts(FPS, LINEAR)


def counted(costs, *configs):
    for config in configs:
        costs.count(config)
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
    """A tenth of a GPU at a third of full speed: 10 ms of the GPU are 33, for which a tenth is enough."""
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
