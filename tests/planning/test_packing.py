"""Laws that every packing of shares on GPUs keeps, also where jobs cannot move."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.planning.placement.homes import (
    PREPARATION_GPU,
    AtHome,
    assign_home_gpus,
    guests_gpu,
    pools_of_nodes,
)
from ekya.planning.placement.pack import (
    LAST_LEVEL,
    BestFit,
    Halves,
    Packing,
    free_milli_by_gpu,
    pack_shares,
    share_of_level,
)
from ekya.planning.placement.rounding import ShareSteps, round_down

every_packing = pytest.mark.parametrize("packing", list(Packing))
shares = st.dictionaries(st.integers(0, 20), st.integers(0, 1200), max_size=12)
steps = st.sampled_from([1, 10, 50, 125])
capacities = st.integers(0, 4500)
helds = st.lists(st.integers(1, 1500), max_size=2)
few = settings(max_examples=60)


def packed(packing, asked, capacity=2000, held=(), step=1):
    return pack_shares(packing, asked, capacity_milli=capacity, held_milli=held, steps=ShareSteps(step))


def assert_in_place(grants, packing, asked, capacity, held, step):
    granted = {job: grants.share_milli(job) for job in asked}
    assert all(0 <= share <= 1000 and share % step == 0 for share in granted.values())
    assert sum(granted.values()) <= max(capacity - sum(held), 0)
    if packing is Packing.POOL:
        assert grants.gpus == {}
        return
    assert set(grants.gpus) == {job for job, share in granted.items() if share > 0}
    for gpu, room in enumerate(free_milli_by_gpu(capacity, held)):
        assert sum(granted[job] for job, where in grants.gpus.items() if where == gpu) <= room
    assert sum(granted.values()) + grants.spare_milli <= capacity
    if packing is Packing.QUANTISED:
        assert all(
            share in {0, *(share_of_level(k) // step * step for k in range(10))} for share in granted.values()
        )


def each_grown(grants, asked, wanted_milli):
    """Grows the first jobs, one by one, where they fit; yields each that grew, and took from no other."""
    for job in list(asked)[:4]:
        wanted = wanted_milli()
        share = grants.fitting_milli(job, wanted)
        if share is None or share <= grants.share_milli(job):
            continue
        others = {other: grants.share_milli(other) for other in asked if other != job}
        grants.grow_job(job, share)
        assert grants.share_milli(job) == share >= wanted
        assert others == {other: grants.share_milli(other) for other in others}
        yield job


@every_packing
@few
@given(asked=shares, step=steps, capacity=capacities, held=helds)
def test_pack_grants_no_more_than_asked_or_free(packing, asked, step, capacity, held):
    grants = packed(packing, asked, capacity, held, step)
    assert all(grants.share_milli(job) <= asked[job] for job in asked)
    assert_in_place(grants, packing, asked, capacity, held, step)
    again = packed(packing, asked, capacity, held, step)
    assert [again.share_milli(job) for job in asked] == [grants.share_milli(job) for job in asked]
    assert again.gpus == grants.gpus


@every_packing
@few
@given(asked=shares, step=steps, capacity=capacities, held=helds, wishes=st.data())
def test_grow_keeps_other_shares_in_place(packing, asked, step, capacity, held, wishes):
    grants = packed(packing, asked, capacity, held, step)
    for _ in each_grown(grants, asked, lambda: wishes.draw(st.integers(1, 1000))):
        assert_in_place(grants, packing, asked, capacity, held, step)


@every_packing
@few
@given(asked=shares, step=steps)
def test_pack_of_granted_shares_repeats_them(packing, asked, step):
    first = packed(packing, asked, 12_000, (), step)
    granted = {job: first.share_milli(job) for job in asked}
    second = packed(packing, granted, 12_000, (), step)
    assert {job: second.share_milli(job) for job in asked} == granted


@few
@given(
    levels=st.lists(st.integers(0, LAST_LEVEL), max_size=40),
    rooms=st.lists(st.integers(0, 1000), min_size=1, max_size=5),
)
def test_halves_lose_only_what_no_packing_fits(levels, rooms):
    """First fit in descending order is perfect: see the proof in `pack`."""
    asked = {index: share_of_level(level) for index, level in enumerate(levels)}
    halves = Halves(asked, rooms, ShareSteps(1))
    slots = [room * 2**LAST_LEVEL // 1000 for room in rooms]
    possible = all(
        sum(2 ** (LAST_LEVEL - level) for level in levels if level <= least)
        <= sum(slot >> (LAST_LEVEL - least) << (LAST_LEVEL - least) for slot in slots)
        for least in range(LAST_LEVEL + 1)
    )
    kept = all(halves.share_milli(job) == share for job, share in asked.items())
    assert kept == possible
    used = [0] * len(rooms)
    for job, gpu in halves.gpus.items():
        used[gpu] += halves.share_milli(job)
    assert all(one <= room for one, room in zip(used, rooms, strict=True))


@few
@given(levels=st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_halves_fill_gpus_completely(levels):
    sixteenths = sum(16 >> level for level in levels)
    gpus = -(-sixteenths // 16)
    asked = {index: share_of_level(level) for index, level in enumerate(levels)}
    halves = Halves(asked, [1000] * gpus, ShareSteps(1))
    assert all(halves.share_milli(job) == share for job, share in asked.items())
    assert set(halves.gpus.values()) == set(range(gpus))


def test_halves_round_down_to_inverse_powers():
    halves = Halves({"a": 1000, "b": 999, "c": 300, "d": 62, "e": 0}, [1000, 1000], ShareSteps(1))
    assert [halves.share_milli(job) for job in "abcde"] == [1000, 500, 250, 62, 0]
    assert halves.gpus == {"a": 0, "b": 1, "c": 1, "d": 1}
    assert halves.spare_milli == 187


def test_halves_double_where_others_fit():
    halves = Halves({"a": 500, "b": 500, "c": 250}, [1000, 1000], ShareSteps(1))
    assert halves.fitting_milli("c", 251) == 500
    assert halves.fitting_milli("c", 501) == 1000
    halves.grow_job("c", 1000)
    assert halves.gpus == {"c": 0, "a": 1, "b": 1}
    assert halves.fitting_milli("a", 501) is None
    assert halves.spare_milli == 0


def test_halves_reduce_largest_and_last_first():
    halves = Halves({"a": 1000, "b": 1000, "c": 100}, [1000, 1000], ShareSteps(1))
    assert [halves.share_milli(job) for job in "abc"] == [1000, 500, 62]


def test_best_fit_keeps_emptiest_gpu_free():
    packed_ = BestFit({"small": 300, "large": 700, "middle": 600}, [1000, 1000], ShareSteps(1))
    assert packed_.gpus == {"large": 0, "middle": 1, "small": 0}
    assert packed_.fitting_milli("middle", 900) == 900
    assert packed_.fitting_milli("small", 301) == 301


def test_best_fit_moves_a_job_only_to_grow():
    packed_ = BestFit({"a": 700, "b": 300, "c": 400}, [1000, 1000], ShareSteps(1))
    assert packed_.gpus == {"a": 0, "c": 1, "b": 0}
    packed_.grow_job("b", 500)
    assert packed_.gpus["b"] == 1
    assert packed_.fitting_milli("c", 700) is None
    assert packed_.spare_milli == 400


def test_best_fit_puts_no_job_on_two_gpus():
    packed_ = BestFit({"a": 700, "b": 700, "c": 600}, [1000, 1000], ShareSteps(1))
    assert [packed_.share_milli(job) for job in "abc"] == [700, 700, 300]
    assert packed_.spare_milli == 300


def test_held_share_leaves_other_gpus_whole():
    assert free_milli_by_gpu(2500, (400,)) == (1000, 1000, 100)
    assert free_milli_by_gpu(2500, (600,)) == (1000, 400, 500)
    assert free_milli_by_gpu(2000, (1500, 200)) == (300, 0)
    assert free_milli_by_gpu(500, (900,)) == (0,)


def test_round_down_reduces_the_largest():
    assert round_down({"a": 250, "b": 500}, ShareSteps(125), 1000) == {"a": 250, "b": 500}
    assert round_down({"a": 800, "b": 100}, ShareSteps(100), 500) == {"a": 400, "b": 100}


@pytest.mark.parametrize(
    ("asked", "step", "capacity"), [({"a": -1}, 10, 1000), ({}, 0, 1000), ({}, 1001, 1000), ({}, 10, -1)]
)
def test_negative_share_raises(asked, step, capacity):
    with pytest.raises(ValueError, match=r"step|negative"):
        round_down(asked, ShareSteps(step), capacity)
    with pytest.raises(ValueError, match="negative"):
        Halves({"a": -1}, [1000], ShareSteps(1))


JOBS = st.dictionaries(st.integers(0, 12), st.integers(0, 1200), max_size=8)
ROOMS = st.lists(st.integers(0, 3000), min_size=1, max_size=3)


def at_home(packing, asked, rooms, step=1):
    return AtHome(packing, asked, lambda job: job % len(rooms), rooms, ShareSteps(step))


def assert_at_home(grants, asked, rooms, step):
    for gpu, room in enumerate(rooms):
        there = [grants.share_milli(job) for job in asked if job % len(rooms) == gpu]
        assert sum(there) <= room
        assert all(share % step == 0 for share in there)
    held = {job for job in asked if grants.share_milli(job) > 0}
    assert grants.gpus == {job: job % len(rooms) for job in held}
    assert sum(grants.share_milli(job) for job in asked) + grants.spare_milli <= sum(rooms)


@every_packing
@few
@given(asked=JOBS, rooms=ROOMS, wanted=st.integers(1, 1000))
def test_at_home_share_grows_without_loss_of_others(packing, asked, rooms, wanted):
    grants = at_home(packing, asked, rooms)
    for _ in each_grown(grants, asked, lambda: wanted):
        assert_at_home(grants, asked, rooms, 1)


@every_packing
@few
@given(asked=JOBS, rooms=ROOMS, step=st.sampled_from([1, 10, 125]))
def test_at_home_grants_as_each_gpu_would_alone(packing, asked, rooms, step):
    grants = at_home(packing, asked, rooms, step)
    assert_at_home(grants, asked, rooms, step)
    for gpu, room in enumerate(rooms):
        own = {job: share for job, share in asked.items() if job % len(rooms) == gpu}
        alone = pack_shares(packing, own, capacity_milli=room, held_milli=(), steps=ShareSteps(step))
        assert {job: grants.share_milli(job) for job in own} == {job: alone.share_milli(job) for job in own}


def test_at_home_ignores_spare_on_other_gpus():
    grants = at_home(Packing.POOL, {0: 800, 2: 800, 1: 100}, [1000, 1000])
    assert grants.share_milli(0) + grants.share_milli(2) == 1000
    assert grants.fitting_milli(0, 900) is None
    assert grants.fitting_milli(1, 1000) == 1000
    assert grants.spare_milli == 900


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


def test_nodes_have_their_cores_in_a_pool_each_and_one_node_has_none():
    nodes = ("here", "here", "there", "there")
    assert pools_of_nodes(4000, nodes) == (2000, 2000)
    assert pools_of_nodes(2600, nodes) == (2000, 600)
    assert pools_of_nodes(2000, nodes) == pools_of_nodes(4000, ("here",) * 4) == pools_of_nodes(500, ()) == ()
