"""Whole groups of multiprocessors as whole thousandths, and what is ruled out when memory is too little."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.core.configs import RetrainConfig
from ekya.core.gpus import DidNotFit, GpuGroups
from ekya.core.profile import Family

SHARES = st.integers(0, 1000)
GPUS = st.sampled_from([GpuGroups(8, 132), GpuGroups(2, 132), GpuGroups(2, 108), GpuGroups(4, 144)])


def test_groups_of_h200_are_sixteen_of_60_5_milli():
    h200 = GpuGroups(8, 132)
    assert [h200.share_milli(groups) for groups in (1, 2, 3, 16)] == [61, 122, 182, 970]
    assert [h200.floor_share(share) for share in (0, 30, 60, 61, 230, 969, 1000)] == [
        0,
        30,
        60,
        61,
        182,
        910,
        970,
    ]
    assert [h200.ceil_share(share) for share in (0, 30, 61, 62, 230, 970, 971)] == [
        0,
        30,
        61,
        122,
        243,
        970,
        1031,
    ]


@given(GPUS, SHARES)
def test_groups_round_to_neighbours(gpu, share):
    down, up = gpu.floor_share(share), gpu.ceil_share(share)
    assert down <= share <= up
    assert gpu.floor_share(down) == gpu.ceil_share(down) == down
    assert gpu.floor_share(up) == up
    assert gpu.groups_for(down) == gpu.groups_for(share)
    assert gpu.groups_for(up) <= gpu.groups_for(share) + 1


@given(GPUS, SHARES, SHARES)
def test_groups_rounding_is_monotonic(gpu, one, other):
    less, more = sorted((one, other))
    assert gpu.floor_share(less) <= gpu.floor_share(more)
    assert gpu.ceil_share(less) <= gpu.ceil_share(more)


@given(GPUS, st.lists(st.integers(0, 400), max_size=20))
def test_groups_that_fit_pay_for_available_sms(gpu, asked):
    granted = []
    for share in asked:
        granted.append(gpu.floor_share(min(share, 1000 - sum(granted))))
    groups = [gpu.groups_for(share) for share in granted]
    assert sum(groups) * gpu.group_sms <= gpu.sms
    for share, own in zip(granted, groups, strict=True):
        if own:
            exact = Fraction(1000 * own * gpu.group_sms, gpu.sms)
            assert exact <= share < exact + 1


GAMMA = RetrainConfig(epochs=8, batch_size=16, head_width=64, trainable_blocks=2, data_fraction=0.5)

gammas = st.builds(
    RetrainConfig,
    st.integers(1, 3),
    st.sampled_from([8, 16, 32]),
    st.sampled_from([0, 64]),
    st.integers(0, 3),
    st.sampled_from([0.1, 0.5, 1.0]),
)


@pytest.mark.parametrize(
    ("change", "ruled_out"),
    [
        ({}, True),
        ({"epochs": 1}, True),
        ({"trainable_blocks": 3}, True),
        ({"trainable_blocks": 1}, False),
        ({"batch_size": 8}, False),
        ({"head_width": 0}, False),
        ({"data_fraction": 0.25}, False),
        ({"data_fraction": 0.25, "trainable_blocks": 3}, False),
    ],
)
def test_did_not_fit_rules_out_same_or_larger_gamma(change, ruled_out):
    assert DidNotFit.from_config(GAMMA).rules_out(replace(GAMMA, **change)) is ruled_out


def test_did_not_fit_of_profile_rules_out_family():
    tried = DidNotFit(Family(2, 64, 16), 0.0)
    assert tried.rules_out(replace(GAMMA, data_fraction=0.01))
    assert not tried.rules_out(replace(GAMMA, trainable_blocks=1))


@given(gammas, gammas, gammas)
def test_did_not_fit_is_transitive(small, middle, large):
    if DidNotFit.from_config(small).rules_out(middle) and DidNotFit.from_config(middle).rules_out(large):
        assert DidNotFit.from_config(small).rules_out(large)
