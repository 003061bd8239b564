"""Whole groups of multiprocessors as whole thousandths: never more than the GPU has."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from ekya.core.gpus import GpuGroups

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
