"""Training on separate multiprocessors is granted whole groups of them, under any packing of shares."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core.gpus import GpuGroups
from ekya.planning.placement.homes import AtHome
from ekya.planning.placement.pack import Packing, free_milli_by_gpu, pack_shares
from ekya.planning.placement.rounding import Steps

GPUS = st.sampled_from([GpuGroups(8, 132), GpuGroups(2, 132), GpuGroups(2, 108)])
ASKED = st.dictionaries(st.integers(0, 15), st.integers(0, 1200), max_size=10)
"""Jobs with even numbers train, the others do not."""

every_packing = pytest.mark.parametrize("packing", list(Packing))
few = settings(max_examples=50)


def steps(gpu):
    return Steps(1, lambda job: gpu if job % 2 == 0 else None)


def assert_whole_groups(gpu, grants, asked):
    assert all(
        grants.share_milli(job) == gpu.floor_share(grants.share_milli(job)) for job in asked if job % 2 == 0
    )


@every_packing
@few
@given(GPUS, ASKED, st.integers(0, 2500), st.lists(st.integers(1, 800), max_size=2))
def test_grants_of_groups_are_whole_and_fit(packing, gpu, asked, capacity_milli, held):
    grants = pack_shares(packing, asked, capacity_milli=capacity_milli, held_milli=held, steps=steps(gpu))
    assert_whole_groups(gpu, grants, asked)
    assert all(0 <= grants.share_milli(job) <= asked[job] for job in asked)
    assert sum(grants.share_milli(job) for job in asked) + grants.spare_milli <= capacity_milli
    for place, room in enumerate(free_milli_by_gpu(capacity_milli, held)):
        there = [job for job, where in grants.gpus.items() if where == place]
        assert sum(grants.share_milli(job) for job in there) <= room
        # They pay for no more multiprocessors than the GPU has.
        groups = sum(gpu.groups_for(grants.share_milli(job)) for job in there if job % 2 == 0)
        assert groups * gpu.group_sms <= gpu.sms


@every_packing
@few
@given(GPUS, ASKED, st.integers(1, 1000))
def test_grants_of_groups_grow_by_whole_groups(packing, gpu, asked, wanted):
    grants = AtHome(packing, asked, lambda job: job % 3 % 2, (1000, 600), steps(gpu))
    for job in asked:
        share = grants.fitting_milli(job, wanted)
        if share is None or share <= grants.share_milli(job):
            continue
        grants.grow_job(job, share)
        assert grants.share_milli(job) == share >= wanted
        assert_whole_groups(gpu, grants, asked)
        assert sum(grants.share_milli(one) for one in asked) + grants.spare_milli <= 1600


def test_grants_of_groups_leave_rest_to_others():
    grants = pack_shares(
        Packing.BEST_FIT, {0: 230, 1: 300}, capacity_milli=1000, held_milli=(), steps=steps(GpuGroups(8, 132))
    )
    assert [grants.share_milli(job) for job in (0, 1)] == [182, 300]
    assert grants.spare_milli == 518
    assert grants.fitting_milli(0, 183) == 243
    assert grants.fitting_milli(0, 668) is None
