"""Tests of what the ANDREAS recipes compare."""

import andreas_played as played

from ekya.fleet.papers.andreas.workload import FOUR_GPUS


def test_no_policy_saves_more_than_the_bound() -> None:
    rows = [played.play(policy, FOUR_GPUS, 3, 101) for policy in played.policies(played.FREE)]
    most = played.most_below_first_principles(rows)
    assert 0 < most < 1
    assert all(played.below_first_principles(rows, name) <= most for name in played.COLOURS)
