"""Deep-Edge's Algorithm 1, baselines and our solver, on drawn clusters and by hand; its Accuracy Monitor."""

from dataclasses import replace

import pytest
from deep_edge_search import Force
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.fleet.papers.registry import Fair
from ekya.fleet.policy.assignment import whole
from ekya.fleet.policy.deep_edge.estimates import EdgeLimits, EdgeTraining
from ekya.fleet.policy.deep_edge.heuristic import Heuristic
from ekya.fleet.policy.deep_edge.joint import Joint, WholeSteps
from ekya.fleet.policy.deep_edge.stopping import Outlook, outlook
from ekya.fleet.policy.deep_edge.task import EdgeTask
from ekya.fleet.policy.places import BackgroundApp, Node, NodeName, NodeState, SiteName

LIMITS = EdgeLimits(2, 32, 1.0)
APP = BackgroundApp("app", 0.2)


class Hand:
    """Estimates that can be computed by hand.

    A kind is its seconds per sample at an idle CPU; an update takes 0.1 s per worker. A training adds 0.4 to
    the CPU in use, an application takes 0.2 s times the CPU then in use, and a sample takes 1% of the memory.
    """

    def __init__(self, update_s=0.1):
        self.each_s = update_s

    def compute_s(self, worker):
        return float(worker.kind) * (1 + worker.state.cpu) / (worker.share_milli / 1000)

    def update_s(self, workers, parameter_server):
        return [self.each_s * len(workers) * (1 + parameter_server.cpu)] * len(workers)

    def state_after(self, worker):
        cpu = worker.state.cpu + 0.4 * worker.share_milli / 1000
        return NodeState(cpu, 1.0, worker.state.mem + worker.batch / 100)

    def exec_s(self, kind, app, state):
        return 0.2 * state.cpu


def node(name, kind, cpu=0.0, mem=0.0, apps=(APP,)):
    return Node(NodeName(name), SiteName("here"), str(kind), state=NodeState(cpu, 0.0, mem), apps=apps)


def task(*nodes, samples=1000, update_s=0.1, limits=LIMITS):
    return EdgeTask(nodes, NodeState(), samples, Hand(update_s), limits)


def shards(plan):
    return {part.node: part.chunks for part in plan.parts}


def test_memory_bounds_a_batch() -> None:
    used = replace(node("a", 1.0), state=NodeState(mem=0.85))
    assert task(used).max_batch(used) == 15
    assert task().max_batch(node("a", 1.0)) == 32
    assert task().max_batch(replace(used, state=NodeState(mem=0.99))) == 0
    assert task(limits=replace(LIMITS, mem_error=0.1)).max_batch(used) == 5


def test_a_fast_worker_gets_more_so_that_all_end_together() -> None:
    plan = Heuristic()(task(node("a", 0.1), node("b", 0.3), samples=400, update_s=0.0))
    assert shards(plan) == {"a": 300, "b": 100}
    assert plan.epoch_s == pytest.approx(30)
    assert not plan.left_out


def test_who_would_be_late_is_left_out_by_the_paper_and_held_back_by_ours() -> None:
    late = task(node("a", 0.1), node("b", 0.1, cpu=0.8), update_s=0.0)
    paper, ours = Heuristic()(late), Joint()(late)
    assert shards(paper) == {"a": 1000}
    assert paper.left_out == {"b": "app would take 240 of its 200 ms there"}
    assert {part.node: part.share_milli for part in ours.parts} == {"a": 1000, "b": 500}
    assert ours.epoch_s < paper.epoch_s
    assert shards(Fair()(late)) == {"a": 500, "b": 500}
    assert shards(Fair(keeps_deadlines=True)(late)) == {"a": 1000}


def test_how_sure_the_models_are_is_kept_from_the_deadline() -> None:
    near = task(node("a", 0.1, cpu=0.55))
    assert shards(Heuristic()(near)) == {"a": 1000}
    unsure = Heuristic()(replace(near, limits=replace(LIMITS, exec_error=0.1)))
    assert not unsure.parts


def test_a_worker_that_only_makes_updates_longer_is_removed() -> None:
    crowded = task(node("a", 0.1), node("b", 0.1), node("slow", 4.0), samples=300, update_s=3.0)
    plan = Heuristic()(crowded)
    assert set(shards(plan)) == {"a", "b"}
    assert plan.left_out == {"slow": "without it an epoch is shorter"}


def test_the_paper_only_ever_removes_the_slowest_and_ours_looks_at_each() -> None:
    """A worker with little memory pushes often, which costs the others more than it contributes."""

    class Pushy(Hand):
        def update_s(self, workers, parameter_server):
            pushes = sum(1 / worker.batch for worker in workers)
            return [15.0 * pushes] * len(workers)

    cluster = (node("slow", 2.0), node("pushy", 0.1, mem=0.97), node("fast", 0.3))
    crowded = EdgeTask(cluster, NodeState(), 1000, Pushy(), LIMITS)
    paper, ours = Heuristic()(crowded), Joint()(crowded)
    assert ours.epoch_s < 0.9 * paper.epoch_s
    assert "pushy" not in shards(ours)


def test_no_memory_no_worker() -> None:
    full = task(node("a", 0.1, mem=0.99), node("b", 0.2))
    for solver in (Heuristic(), Fair(), Joint(), Force()):
        plan = solver(full)
        assert shards(plan) == {"b": 1000}
        assert "a" in plan.left_out


def test_with_nobody_there_nothing_is_given_out() -> None:
    for solver in (Heuristic(), Fair(), Joint(), Force()):
        assert solver(task()).parts == ()
        assert solver(task(node("a", 0.1, mem=1.0))).parts == ()


def test_whole_samples() -> None:
    assert whole({"a": 1.5, "b": 1.5, "c": 1.0}, 4) == {"a": 2, "b": 1, "c": 1}


kinds = st.sampled_from([0.05, 0.1, 0.3, 1.0])
machines = st.builds(
    lambda kind, cpu, mem, has: (kind, cpu, mem, (APP,) if has else ()),
    kinds,
    st.floats(0, 0.99),
    st.floats(0, 1.0),
    st.booleans(),
)
clusters = st.lists(machines, min_size=1, max_size=4).map(
    lambda drawn: tuple(node(f"n{place}", *one) for place, one in enumerate(drawn))
)
tasks = st.builds(
    lambda nodes, samples, update_s: task(*nodes, samples=samples, update_s=update_s),
    clusters,
    st.integers(40, 4000),
    st.floats(0.0, 3.0),
)
SOLVERS = {
    "paper": Heuristic(),
    "fair": Fair(),
    "fair-kept": Fair(True),
    "joint": Joint(),
    "force": Force((8,)),
}


@pytest.mark.parametrize("name", SOLVERS)
@settings(max_examples=40, deadline=None)
@given(tasks)
def test_all_samples_are_given_out_within_the_limits_and_everybody_has_a_reason(name, drawn) -> None:
    plan = SOLVERS[name](drawn)
    assert plan == SOLVERS[name](drawn)
    nodes = {node.name: node for node in drawn.workers}
    assert {part.node for part in plan.parts} | plan.left_out.keys() == nodes.keys()
    if plan.parts:
        assert sum(part.chunks for part in plan.parts) == drawn.samples
    for part in plan.parts:
        node = nodes[part.node]
        assert part.chunks > 0
        assert LIMITS.batch_min <= part.batch <= drawn.max_batch(node, part.share_milli)
        assert name == "fair" or drawn.pressure(node, part.batch, part.share_milli) is None


def test_a_single_worker_gets_everything_however_times_are_rounded() -> None:
    """Seven whole steps: by rounding, their time divided by one step's is slightly below seven."""
    alone = task(node("n0", 0.05, cpu=0.125, apps=()), samples=224, update_s=1.1784442384924843)
    assert shards(Joint()(alone)) == {"n0": 224}


@settings(max_examples=40, deadline=None)
@given(tasks)
def test_nobody_beats_exhaustive_search(drawn) -> None:
    shares = (1000, 600, 200)
    few = replace(drawn, workers=drawn.workers[:3])
    best, free = Force((), shares)(few), Force(())(few)
    assert best.epoch_s <= Joint(shares)(few).epoch_s * (1 + 1e-9)
    assert best.epoch_s <= free.epoch_s * (1 + 1e-9)
    assert free.epoch_s <= Joint((1000,))(few).epoch_s * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(tasks)
def test_whole_steps_are_the_best_shards_for_the_workers_that_the_paper_chose(drawn) -> None:
    paper = Heuristic()(drawn)
    if paper.parts:
        steps, nodes = WholeSteps(drawn), {node.name: node for node in drawn.workers}
        chosen = [(nodes[part.node], part.batch, part.share_milli) for part in paper.parts]
        _, epoch_s = steps.shortest_epoch(chosen)
        updates_s = [
            batch * (each_s - Hand().compute_s(EdgeTraining(node.kind, node.state, batch)))
            for (node, batch, _), each_s in zip(chosen, drawn.sample_s(chosen), strict=True)
        ]
        took_s = [
            part.chunks
            * Hand().compute_s(EdgeTraining(nodes[part.node].kind, nodes[part.node].state, part.batch))
            + -(-part.chunks // part.batch) * update_s
            for part, update_s in zip(paper.parts, updates_s, strict=True)
        ]
        assert epoch_s <= max(took_s) * (1 + 1e-9)
        assert epoch_s >= 0.999 * paper.epoch_s - max(took_s) / 1e3


def rising(epochs, ceiling=0.8, rate=1.0):
    return [ceiling - 0.4 / (1 + rate * epoch) for epoch in range(epochs + 1)]


def test_the_users_number_holds_until_enough_is_seen() -> None:
    assert outlook([0.4], 30) == Outlook(30, 0.4, "0 of 30 epochs are done")
    assert outlook(rising(2), 30).epochs == 30


def test_a_curve_that_is_flat_ends_at_once() -> None:
    flat = outlook([0.4, 0.7, 0.7, 0.7, 0.7], 30)
    assert flat.epochs == 4
    assert "no further epoch" in flat.reason


def test_a_curve_that_rises_goes_on_but_not_for_ever() -> None:
    steep = outlook(rising(4, rate=0.2), 200)
    assert 4 < steep.epochs < 200
    assert steep.accuracy > rising(4, rate=0.2)[-1]
    assert outlook(rising(4, rate=0.2), 5).epochs == 5


def test_a_first_accuracy_is_needed() -> None:
    with pytest.raises(ValueError, match="before the first epoch"):
        outlook([], 30)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(1, 40))
def test_never_more_than_planned_and_never_fewer_than_done(accuracies, planned) -> None:
    done = len(accuracies) - 1
    found = outlook(accuracies, planned)
    assert min(done, planned) <= found.epochs <= planned
    assert 0 <= found.accuracy <= 1
