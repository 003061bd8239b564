"""Loans that a fleet policy places, and their value."""

from dataclasses import replace

import pytest
from loan_cases import HOME, NOW_US, S, links, market, offer, room

from ekya.fleet.policy.andreas.greedy import Andreas
from ekya.fleet.policy.assignment import Decision, JobAssignment, NodePart
from ekya.fleet.policy.loans import Loan, beside, loan_at, loan_cost
from ekya.fleet.policy.market import settled, worth, worth_it
from ekya.fleet.policy.one_node import OneNode
from ekya.fleet.policy.places import NodeName, SiteName

A, B = SiteName("a"), SiteName("b")


class Watching:
    """Gives the first job one unit of its first allowed node, and records the view."""

    name, on_events, every_us = "watching", True, None

    def decide(self, view):
        self.view = view
        first, *others = (state.job for state in view.jobs)
        part = NodePart(min(NodeName(kind) for kind, _ in first.epoch_us), gpus=1)
        waiting = {job.name: "the first one comes first" for job in others}
        return Decision((JobAssignment(first.name, (part,), "it is first"),), waiting)


def test_a_policy_sees_servers_as_nodes_and_the_window_s_end_as_due_date() -> None:
    policy = Watching()
    rooms = [room("b", [0.01, 0.03]), room("a", [0.0])]
    offers = [offer(stream="cam-2"), offer(stream="cam-1", at_home=0.001)]
    done = OneNode(policy)(market(offers, rooms))
    nodes, (first, _) = policy.view.places.nodes, policy.view.jobs
    assert [(name, node.gpus) for name, node in nodes.items()] == [("a", 1), ("b", 2)]
    assert policy.view.places.cost_a_second(nodes[NodeName("b")], 2) == pytest.approx(0.03)
    assert first.job.waiting.due_s == pytest.approx(190.0)
    # Upload, training at a fifth of a GPU, and download.
    assert first.job.epoch_us["b", 2] == pytest.approx((46.2 / 12.5 + 100.0 + 45.0 / 12.5) * S)
    assert [loan.offer.stream for loan in done.loans] == []
    assert done.refused == {
        (HOME, "cam-1"): "a would lose 0 for the -0.19 that it brings",
        (HOME, "cam-2"): "the first one comes first",
    }


def test_a_policy_sees_what_runs_where_it_runs_and_how_long_it_still_takes() -> None:
    policy, rooms = Watching(), [room("a", [0.0] * 4), room("b", [0.0] * 2)]
    runs = loan_at(NOW_US, offer(stream="old"), rooms[0], 2, links(), "")
    now_us = (runs.begins_us + runs.ends_us) // 2
    waits = replace(offer(stream="new"), now_us=now_us)
    OneNode(policy)(market([waits], rooms, running=[runs], now_us=now_us))
    new, old = policy.view.jobs
    assert (new.job.name, new.assignment) == ("home/new", None)
    assert old.assignment.parts == (NodePart(NodeName("a"), gpus=2),)
    assert policy.view.places.nodes[NodeName("a")].gpus == 4
    assert old.job.epoch_us["a", 2] == runs.arrives_us - now_us
    # The host has the crops and the model; half of the epochs are left.
    back_us = runs.arrives_us - runs.ends_us
    assert old.job.epoch_us["a", 4] == pytest.approx(6 * 5 * S + back_us, rel=0.01)
    assert old.job.epoch_us["b", 2] > old.job.epoch_us["a", 2]


def test_nobody_is_asked_to_lend_to_itself() -> None:
    done = OneNode(Andreas())(market([offer(site=A)], [room("a", [0.0] * 10)]))
    assert done.refused == {(A, "cam"): "no other server has room"}
    (loan,) = OneNode(Andreas())(market([offer(site=A), offer()], [room("a", [0.0] * 10)])).loans
    assert (loan.offer.site, loan.host) == (HOME, A)


def test_what_runs_is_left_alone_where_touching_it_brings_nothing() -> None:
    rooms = [room("a", [0.0]), room("b", [0.0])]
    runs = loan_at(NOW_US, offer(stream="old", gpu_s=5.0), rooms[0], 1, links(), "")
    drawn = market([], rooms, running=[runs], now_us=NOW_US + 20 * S)
    (one,) = drawn.running
    elsewhere = loan_at(drawn.now_us, one.offer_of_rest(drawn.now_us), rooms[1], 1, drawn.links, "a whim")
    deal = settled(drawn, {(HOME, "old"): elsewhere}, [], {})
    assert (deal.loans, deal.moves, deal.stops) == ((), {}, {})
    assert settled(drawn, {}, [], {(HOME, "old"): "a whim"}).stops == {}


def test_a_loan_takes_the_way_there_the_training_and_the_way_back() -> None:
    loan = loan_at(NOW_US, offer(), room("a", [0.0] * 5), 5, links(home_a=10.0), "because")
    assert loan.begins_us == NOW_US + 4_620_000
    assert loan.ends_us == loan.begins_us + 40 * S
    assert loan.arrives_us == loan.ends_us + 4_500_000
    assert loan.brings == pytest.approx(0.1 * (190.0 - 4.62 - 40.0 - 4.5))
    assert loan.moved_mb(loan.begins_us)[HOME, A] == pytest.approx(46.2)
    assert loan.where == "50% of a GPU of a"


def test_where_crops_lie_a_loan_begins_earlier() -> None:
    cold, warm = (
        loan_at(NOW_US, offer(crops_mb=25.0, held_by=held_by), room("a", [0.0]), 1, links(), "")
        for held_by in (None, A)
    )
    # 25 MB of crops, and the model.
    assert cold.begins_us - warm.begins_us == 5_600_000
    assert warm.moved_mb(NOW_US)[HOME, A] == 0.0
    asked = offer(crops_mb=45.0, model_mb=1.2, held_by=B, gpu_s=17.0)
    near = OneNode(Andreas())(market([asked], [room("a", [0.0]), room("b", [0.0])], links(3.0)))
    assert [loan.host for loan in near.loans] == [B]


def test_what_costs_more_beside_another_loan_is_not_made() -> None:
    rooms = [room("a", [0.0, 0.2])]
    better, worse = (
        loan_at(NOW_US, offer(stream=name, gain=gain, gpu_s=10.0), rooms[0], 1, links(), "")
        for name, gain in (("cam-1", 0.2), ("cam-2", 0.1))
    )
    assert worth(worse, rooms) > 0
    loans, refused = worth_it([worse, better], rooms, {})
    assert loans == (better,)
    assert list(refused) == [(HOME, "cam-2")]
    left = beside(better, rooms)
    assert loan_cost(worse, left) == pytest.approx(0.2 * 100.0)
    assert beside(worse, left) == ()


def test_a_loan_costs_what_its_host_loses_and_sends_snapshots_as_the_link_takes_them() -> None:
    rooms = [room("a", [0.01]), room("b", [0.02, 0.05])]
    loan = Loan(offer(), B, 200, NOW_US, NOW_US + 30 * S, NOW_US + 40 * S, "")
    assert loan_cost(loan, rooms) == pytest.approx(30.0 * 0.05)
    assert loan.where == "20% of a GPU of b"
    # Ten epochs of 3 s; a snapshot takes 10 s to transfer, so every fourth epoch sends one. None has arrived.
    assert loan.moved_mb(NOW_US + 12 * S) == {(HOME, B): pytest.approx(46.2), (B, HOME): 0.0}
    assert loan.came_home(NOW_US + 25 * S) == (4, 1)
    assert loan.came_home(NOW_US + 40 * S) == (10, 3)
