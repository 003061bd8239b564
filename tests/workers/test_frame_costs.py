"""What a frame takes by now."""

import pytest

from ekya.core.configs import InferenceConfig
from ekya.workers.frame_costs import NEWEST_PART, FrameCosts

EVERY, SECOND, SMALL = InferenceConfig(1, 32), InferenceConfig(2, 32), InferenceConfig(1, 24)


def counted(costs, *configs):
    for config in configs:
        costs.count(config)
    return costs


def test_the_first_frames_say_what_one_takes():
    assert counted(FrameCosts(), *[EVERY] * 4).since_told(0.1) == (EVERY, 0.025)


def test_later_ones_change_it_a_little_at_a_time_and_skipping_some_changes_nothing():
    costs = counted(FrameCosts(), *[EVERY] * 4)
    costs.since_told(0.1)
    counted(costs, SECOND, SECOND)
    assert costs.since_told(0.1) == (SECOND, pytest.approx(0.025 + NEWEST_PART * 0.025))


def test_resolutions_are_kept_apart():
    costs = counted(FrameCosts(), EVERY)
    costs.since_told(0.1)
    assert counted(costs, SMALL).since_told(0.02) == (SMALL, 0.02)
    assert counted(costs, EVERY).since_told(0.1) == (EVERY, pytest.approx(0.1))


def test_nothing_is_said_of_no_frames_or_of_frames_of_several_kinds():
    costs = FrameCosts()
    assert costs.since_told(0.1) is None
    assert counted(costs, EVERY).since_told(0.0) is None
    assert counted(costs, EVERY, SMALL).since_told(0.1) is None
    assert counted(costs, EVERY).since_told(0.1) == (EVERY, 0.1)
