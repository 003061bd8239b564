"""Jobs that cannot move: each GPU grants its own jobs what it has, and no more."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.planning.placement.homes import PREPARATION_GPU, AtHome, assign_home_gpus, guests_gpu
from ekya.planning.placement.pack import Packing, pack_shares
from ekya.planning.placement.rounding import ShareSteps

JOBS = st.dictionaries(st.integers(0, 12), st.integers(0, 1200), max_size=8)
ROOMS = st.lists(st.integers(0, 1000), min_size=1, max_size=3)
few = settings(max_examples=60)


def at_home(packing, asked, rooms, step=1):
    return AtHome(packing, asked, lambda job: job % len(rooms), rooms, ShareSteps(step))


def assert_in_place(grants, asked, rooms, step):
    for gpu, room in enumerate(rooms):
        there = [grants.share_milli(job) for job in asked if job % len(rooms) == gpu]
        assert sum(there) <= room
        assert all(share % step == 0 for share in there)
    held = {job for job in asked if grants.share_milli(job) > 0}
    assert grants.gpus == {job: job % len(rooms) for job in held}
    assert sum(grants.share_milli(job) for job in asked) + grants.spare_milli <= sum(rooms)


@pytest.mark.parametrize("packing", list(Packing))
@few
@given(asked=JOBS, rooms=ROOMS, step=st.sampled_from([1, 10, 125]))
def test_at_home_grants_as_each_gpu_would_alone(packing, asked, rooms, step):
    grants = at_home(packing, asked, rooms, step)
    assert_in_place(grants, asked, rooms, step)
    for gpu, room in enumerate(rooms):
        own = {job: share for job, share in asked.items() if job % len(rooms) == gpu}
        alone = pack_shares(packing, own, capacity_milli=room, held_milli=(), steps=ShareSteps(step))
        assert {job: grants.share_milli(job) for job in own} == {job: alone.share_milli(job) for job in own}


@pytest.mark.parametrize("packing", list(Packing))
@few
@given(asked=JOBS, rooms=ROOMS, wanted=st.integers(1, 1000))
def test_at_home_share_grows_without_loss_of_others(packing, asked, rooms, wanted):
    grants = at_home(packing, asked, rooms)
    for job in list(asked)[:4]:
        share = grants.fitting_milli(job, wanted)
        if share is None or share <= grants.share_milli(job):
            continue
        others = {other: grants.share_milli(other) for other in asked if other != job}
        grants.grow_job(job, share)
        assert grants.share_milli(job) == share >= wanted
        assert others == {other: grants.share_milli(other) for other in others}
        assert_in_place(grants, asked, rooms, 1)


def test_at_home_ignores_spare_on_other_gpus():
    grants = at_home(Packing.POOL, {0: 800, 2: 800, 1: 100}, [1000, 1000])
    assert grants.share_milli(0) + grants.share_milli(2) == 1000
    assert grants.fitting_milli(0, 900) is None
    assert grants.fitting_milli(1, 1000) == 1000
    assert grants.spare_milli == 900


def test_at_home_gpu_above_1000_raises():
    with pytest.raises(ValueError, match="more than 1000"):
        at_home(Packing.POOL, {}, [2000])


@few
@given(streams=st.integers(0, 30), capacity=st.integers(0, 4000))
def test_deal_balances_streams_over_gpus(streams, capacity):
    homes = assign_home_gpus(streams, capacity)
    assert len(homes) == streams
    rooms = [1000] * (capacity // 1000) + [capacity % 1000] * (capacity % 1000 > 0) or [1]
    living = [homes.count(gpu) for gpu in range(len(rooms))]
    assert sum(living) == streams
    for gpu, count in enumerate(living):
        if count > 0:
            assert all(
                rooms[gpu] / count >= rooms[other] / (living[other] + 1) for other in range(len(rooms))
            )


def test_deal_alternates_and_favours_whole_gpus():
    assert assign_home_gpus(5, 2000) == (0, 1, 0, 1, 0)
    assert assign_home_gpus(6, 1500) == (0, 0, 1, 0, 0, 1)


def test_guests_gpu_is_the_last_of_the_largest():
    assert [guests_gpu(capacity) for capacity in (0, 350, 1000, 1500, 2000, 2500, 3000)] == [
        0,
        0,
        0,
        0,
        1,
        1,
        2,
    ]
    assert guests_gpu(2000) != PREPARATION_GPU
