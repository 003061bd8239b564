"""Deep-Edge's boosted models: learned from some points, and judged on others."""

from dataclasses import replace

import pytest

from ekya.core.errors import UserError
from ekya.fleet.papers.deep_edge import laws
from ekya.fleet.papers.deep_edge.boosted import BoostedEstimates, reckoned, split
from ekya.fleet.papers.deep_edge.laws import NANO, SIFT, TX2
from ekya.fleet.papers.deep_edge.workload import profile_points
from ekya.fleet.policy.deep_edge.estimates import EdgeTraining
from ekya.fleet.policy.places import NodeState

TRAIN, TEST = split(profile_points(TX2, 300))


@pytest.fixture(scope="module")
def estimates():
    return BoostedEstimates(TRAIN, trees=60)


def test_models_are_near_the_laws_that_they_were_never_told(estimates) -> None:
    for state in (NodeState(0.3, 0.2, 0.2), NodeState(0.6, 0.6, 0.3)):
        asked = EdgeTraining(TX2, state, 16)
        assert estimates.compute_s(asked) == pytest.approx(laws.compute_s(asked), rel=0.1)
        after, true = estimates.state_after(asked), laws.state_after(asked)
        assert (after.cpu, after.gpu, after.mem) == pytest.approx((true.cpu, true.gpu, true.mem), rel=0.1)
        assert estimates.exec_s(TX2, SIFT, true) == pytest.approx(laws.exec_s(TX2, SIFT, true), rel=0.1)
        workers = [asked] * 3, NodeState(cpu=0.2)
        assert estimates.update_s(*workers)[0] == pytest.approx(laws.update_s(*workers)[0], rel=0.25)


def test_limits_reckon_with_what_the_models_miss(estimates) -> None:
    limits = reckoned(estimates, TEST, 0.16)
    assert 0 < limits.mem_error < 0.1
    assert 0 < limits.exec_error < 0.3
    shy = [replace(point, exec_s=1.5 * point.exec_s) for point in TEST]
    assert reckoned(estimates, shy, 0.16).exec_error == pytest.approx(1.5 * (1 + limits.exec_error) - 1)


def test_points_are_split_once_and_for_all() -> None:
    train, test = split(range(1650))
    assert (len(train), len(test)) == (1386, 264)
    assert sorted([*train, *test]) == [*range(1650)]
    assert split(range(450))[1] == split(range(450))[1]


def test_who_was_not_profiled_cannot_be_asked(estimates) -> None:
    with pytest.raises(UserError, match="EstComputeTime of a nano has never been measured"):
        estimates.compute_s(EdgeTraining(NANO, NodeState(), 8))
    with pytest.raises(UserError, match="EstExecTime of a tx2 beside chess has never"):
        estimates.exec_s(TX2, "chess", NodeState())
