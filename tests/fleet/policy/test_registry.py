"""Names of policies, and what they are made from."""

import pytest

from ekya.fleet.papers.registry import PLAYED, THROTTLING, Terms
from ekya.fleet.policy.deep_edge.joint import Joint
from ekya.fleet.policy.okita.framework import Okita

S = 1_000_000
MADE = {name: make(Terms(estimates=object())) for name, make in PLAYED.items()}


def test_a_policy_has_the_name_under_which_it_is_found() -> None:
    assert {name: policy.name for name, policy in MADE.items()} == {name: name for name in PLAYED}


def called(policy):
    return policy.on_events, policy.every_us


def test_when_each_paper_s_policies_are_called() -> None:
    assert called(MADE["andreas"]) == (True, 600 * S)
    assert [called(MADE[name]) for name in ("worth", "deep-edge", "deep-edge-joint")] == [(True, None)] * 3
    assert called(PLAYED["okita"](Terms(slot_us=20 * S))) == (False, 20 * S)


def test_only_ours_throttles_and_only_to_what_was_measured() -> None:
    throttles = {
        name for name, policy in MADE.items() if getattr(getattr(policy, "solver", 0), "shares_milli", ())
    }
    assert throttles == THROTTLING
    assert MADE["deep-edge-joint"].solver == Joint()
    measured = PLAYED["deep-edge-joint"](Terms(estimates=object(), shares_milli=(300, 600)))
    assert measured.solver.shares_milli == (1000, 600, 300)


def test_a_policy_gets_what_its_paper_uses() -> None:
    assert PLAYED["okita"](Terms(20 * S, 90 * S)) == Okita(20 * S, until_us=90 * S)
    assert PLAYED["worth"](Terms(restart_us=5 * S)).moving_s == 5
    free = PLAYED["worth"](Terms(restart_us=None))
    assert (free.moving_s, free.lost_epochs) == (0, 0)
    with pytest.raises(ValueError, match="deep-edge needs estimates"):
        PLAYED["deep-edge"](Terms())
