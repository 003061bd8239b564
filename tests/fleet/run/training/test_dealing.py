import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.fleet.policy.assignment import JobAssignment, NodePart
from ekya.fleet.policy.places import JobName, NodeName, SiteName
from ekya.fleet.run.training.dealing import Lying, apportion, deal, deal_again
from ekya.fleet.run.training.workers import EpochPlan, PayloadKind, TrainingTraffic

A, B, C = NodeName("a"), NodeName("b"), NodeName("c")
SITES = {A: SiteName("east"), B: SiteName("east"), C: SiteName("west")}


def assigned(*parts, moves=None):
    return JobAssignment(JobName("job"), parts, "as it is", moves=moves or {})


def lying(*counts, exemplars=0, seed=1):
    origins = [node for node, count in zip((A, B, C), counts, strict=False) for _ in range(count)]
    return Lying(origins, exemplars, SITES, seed, 16)


def by_node(shards):
    counts = {}
    for worker, shard in shards.items():
        counts[worker.node] = counts.get(worker.node, 0) + len(shard.fresh)
    return counts


parts = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=3).map(
    lambda drawn: [
        NodePart(node, workers=workers, chunks=chunks)
        for node, (workers, chunks) in zip((A, B, C), drawn, strict=False)
    ]
)
counts = st.lists(st.integers(0, 12), min_size=1, max_size=3).filter(any)
moved = st.dictionaries(
    st.tuples(st.sampled_from(["east", "west"]), st.sampled_from(["east", "west"])), st.integers(0, 9)
)


@settings(max_examples=60)
@given(parts, counts, st.integers(0, 9), moved)
def test_every_crop_goes_to_exactly_one_worker(parts, counts, exemplars, moves):
    shards = deal(lying(*counts, exemplars=exemplars), assigned(*parts, moves=moves))
    fresh = np.concatenate([shard.fresh for shard in shards.values()])
    kept = np.concatenate([shard.exemplars for shard in shards.values()])
    assert sorted(fresh) == list(range(sum(counts)))
    assert sorted(kept) == list(range(sum(counts), sum(counts) + exemplars))
    assert len(shards) == sum(max(1, part.workers) for part in parts)


@given(parts.filter(lambda drawn: len(drawn) > 1), counts, st.integers(0, 9))
def test_what_a_node_leaves_behind_is_dealt_to_the_others_and_these_keep_what_they_have(
    parts, counts, exemplars
):
    assignment = assigned(*parts)
    before = deal(lying(*counts, exemplars=exemplars), assignment)
    after = deal_again(before, {A}, assignment)
    assert {worker.node for worker in after} == {part.node for part in parts} - {A}
    for worker, shard in after.items():
        assert set(before[worker].positions) <= set(shard.positions)
    everything = np.concatenate([shard.positions for shard in after.values()])
    assert sorted(everything) == list(range(sum(counts) + exemplars))


def test_nodes_get_what_the_assignment_says_and_their_own_crops_first():
    shards = deal(
        lying(30, 0, 10), assigned(NodePart(A, chunks=1), NodePart(B, chunks=1), NodePart(C, chunks=2))
    )
    assert by_node(shards) == {A: 10, B: 10, C: 20}
    (of_c,) = [shard for worker, shard in shards.items() if worker.node == C]
    assert set(range(30, 40)) <= set(of_c.fresh)


def test_what_moves_between_sites_is_what_the_policy_said():
    moves = {(SITES[A], SITES[A]): 10, (SITES[A], SITES[C]): 10, (SITES[C], SITES[A]): 10}
    shards = deal(lying(20, 0, 10), assigned(NodePart(A, chunks=2), NodePart(C, chunks=1), moves=moves))
    (of_c,) = [shard for worker, shard in shards.items() if worker.node == C]
    assert all(of_c.fresh < 20), "its own crops were wanted in the east"


def test_all_nodes_out_is_an_error():
    assignment = assigned(NodePart(A, chunks=1))
    with pytest.raises(ValueError, match="out"):
        deal_again(deal(lying(4), assignment), {A}, assignment)


@given(st.integers(0, 100), st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any))
def test_whole_numbers_add_up_and_are_nearly_in_proportion(total, weights):
    named = {NodeName(str(place)): float(weight) for place, weight in enumerate(weights)}
    counts = apportion(total, named)
    assert sum(counts.values()) == total
    for node, weight in named.items():
        assert abs(counts[node] - total * weight / sum(weights)) < 1.0


@given(counts, st.integers(0, 9), st.integers(0, 3), st.integers(2, 7))
def test_together_the_shards_steps_are_those_of_one_node(counts, exemplars, epoch, batch):
    assignment = assigned(NodePart(A, chunks=1), NodePart(B, workers=2, chunks=2))
    fresh = sum(counts)
    shards = deal(lying(*counts, exemplars=exemplars), assignment)
    plan = EpochPlan(True, fresh, exemplars, batch, seed=3)
    (whole,) = deal(lying(*counts, exemplars=exemplars), assigned(NodePart(A))).values()
    expected = [sorted(whole.positions[step]) for step in plan.steps(whole, 0, epoch)]
    steps = [
        [shard.positions[step] for step in plan.steps(shard, number, epoch)]
        for number, shard in enumerate(shards.values())
    ]
    assert [sorted(np.concatenate(parts)) for parts in zip(*steps, strict=True)] == expected


def test_alone_each_worker_goes_through_its_own_crops_in_its_own_order():
    shards = deal(lying(20, exemplars=4), assigned(NodePart(A, chunks=1, batch=4), NodePart(B, chunks=3)))
    plan = EpochPlan(False, 20, 4, 16, seed=3)
    for number, (worker, shard) in enumerate(shards.items()):
        steps = plan.steps(shard, number, epoch=2)
        seen = shard.positions[np.concatenate(steps)]
        assert sorted(position for position in seen if position < 20) == list(shard.fresh)
        assert max(map(len, steps)) <= (5 if worker.node == A else 17)


def test_bytes_that_stay_on_a_node_are_counted_and_have_not_crossed():
    traffic = (
        TrainingTraffic()
        .with_bytes(A, A, PayloadKind.PUSHED, 5)
        .with_bytes(A, B, PayloadKind.PUSHED, 7)
        .with_bytes(A, B, PayloadKind.PUSHED, 1)
    )
    traffic = traffic.with_bytes(B, A, PayloadKind.PULLED, 4)
    assert sum(traffic.sent.values()) == 17
    assert traffic.crossed_bytes() == 12
    assert traffic.crossed_bytes(PayloadKind.PUSHED) == 8
    assert traffic.left_bytes(B) == 4


def test_workers_are_held_to_the_shares_of_their_parts_also_when_others_are_gone() -> None:
    assignment = assigned(NodePart(A, workers=2, chunks=1, share_milli=400), NodePart(B, chunks=1))
    shards = deal(lying(4, 4), assignment)
    assert {worker.node: shard.share_milli for worker, shard in shards.items()} == {A: 400, B: 1000}
    again = deal_again(shards, {B}, assignment)
    assert {shard.share_milli for shard in again.values()} == {400}
