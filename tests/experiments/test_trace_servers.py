"""Servers that lend each other shares on virtual time, without training."""

from itertools import pairwise
from math import ceil, inf

import pytest
import torch
from trace_servers import SIZES, TraceServer, _spec, _world, play_servers

from ekya.core.configs import RetrainConfig
from ekya.fleet.policy.assignment import Decision, JobAssignment, NodePart
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.one_node import OneNode
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.registry import TIERS, Tier
from ekya.fleet.run.coordinator import LoanCoordinator
from ekya.fleet.run.lending import ARRIVED, GIVEN_UP, LendingExecutor
from ekya.fleet.run.server import ServerTerms
from ekya.fleet.run.servers import AHEAD_US, ServerDeath, ServerFleet
from ekya.models.edge.model import EdgeModel
from ekya.planning.schedulers.registry import make_scheduler
from ekya.simulation.trace.generate import generate_trace
from ekya.simulation.trace.generator_parameters import GeneratorParameters
from ekya.simulation.trace.simulate import Conditions, simulate

BUSY, FULL, IDLE, THIRD = map(SiteName, ("busy", "full", "idle", "third"))
WINDOWS = 3
S = 1_000_000
LINKS = Links(usual_mb_s=12.5)


class Cheapest:
    """Places each job where it costs least among the places that meet its deadline, and leaves it there."""

    name, on_events, every_us = "cheapest", True, None

    def decide(self, view):
        placed, waiting = [], {}
        for state in view.jobs:
            job = state.job
            if state.assignment is not None:
                placed.append(state.assignment)
                continue
            found = min(self._fits(job, view), default=None)
            if found is None:
                waiting[job.name] = "nobody is in time"
            else:
                placed.append(
                    JobAssignment(job.name, (NodePart(found[1], gpus=found[2]),), "the cheapest in time")
                )
        return Decision(tuple(placed), waiting)

    def _fits(self, job, view):
        for name, node in view.places.nodes.items():
            for gpus in range(1, node.gpus + 1):
                takes_s = job.epoch_us.get((node.kind, gpus), inf) / 1e6
                if takes_s < job.waiting.due_s:
                    yield takes_s * view.places.cost_a_second(node, gpus), name, gpus


CHEAPEST = Tier(OneNode(Cheapest()))


def server(site, streams, gpus=1.0, seed=0, **changes):
    # Exact estimates, so that loans differ by what servers have and not by chance.
    conditions = Conditions(gpus=gpus, windows=WINDOWS, preparation_share_milli=300, error_sd=0.0)
    return TraceServer(
        ServerTerms(site, **{"samples_may_leave": "crops", **changes}),
        generate_trace(seed, streams, WINDOWS, GeneratorParameters(trial_part=0.2)),
        conditions,
    )


def servers(**changes):
    return [server(BUSY, 5, seed=200, **changes), server(IDLE, 1, gpus=2.0, seed=201)]


def play(which, tier=None, **options):
    return play_servers(which, make_scheduler("thief"), tier, LINKS, **options)


@pytest.fixture(scope="module")
def lent():
    return play(servers(), CHEAPEST)


def test_without_a_tier_every_server_is_by_itself() -> None:
    played = play(servers())
    for one in servers():
        alone = simulate(one.trace, make_scheduler("thief"), one.conditions)
        assert played.accuracy[one.terms.site] == alone.accuracy
    assert (played.loans, played.moved_mb) == ((), {})


def test_an_overloaded_server_is_helped_and_the_fleet_as_a_whole_gains(lent) -> None:
    assert lent.loans
    assert {made.loan.host for made in lent.loans} == {IDLE}
    assert lent.mean_accuracy > play(servers()).mean_accuracy


def test_every_byte_that_leaves_a_site_is_counted(lent) -> None:
    there = sum(made.loan.offer.sent_mb() for made in lent.loans)
    assert {made.outcome for made in lent.loans} == {ARRIVED}
    back = 0.0
    for loan in (made.loan for made in lent.loans):
        epoch_us = (loan.ends_us - loan.begins_us) / loan.offer.epochs
        # A snapshot is what γ trains and its momentum. Epochs shorter than its transfer share a snapshot.
        each = ceil((loan.arrives_us - loan.ends_us) / epoch_us)
        assert loan.offer.back_mb == 2 * SIZES.trained_mb(loan.offer.config)
        back += ceil(loan.offer.epochs / each) * loan.offer.back_mb
    assert lent.moved_mb == {(BUSY, IDLE): pytest.approx(there), (IDLE, BUSY): pytest.approx(back)}


def test_what_a_training_sends_is_what_a_resnet18_trains() -> None:
    with torch.device("meta"):
        model = EdgeModel("resnet18", ("class",) * SIZES.classes, head_width=64)
    for blocks in range(len(model.blocks) + 1):
        trained = [
            *model.head.parameters(),
            *(w for block in model.blocks[len(model.blocks) - blocks :] for w in block.parameters()),
        ]
        config = RetrainConfig(5, 16, 64, blocks, 1.0)
        assert SIZES.trained_mb(config) == pytest.approx(sum(4e-6 * weight.numel() for weight in trained))


def test_loans_keep_their_times_and_never_outlive_their_window(lent) -> None:
    for made in lent.loans:
        loan = made.loan
        assert loan.offer.now_us < loan.begins_us < loan.ends_us < loan.arrives_us < loan.offer.until_us
        assert loan.offer.gain_if_arrives(loan.arrives_us) > 0


def test_crops_that_may_not_leave_stay() -> None:
    assert play(servers(samples_may_leave="no"), CHEAPEST).loans == ()


def test_who_takes_no_guests_has_none() -> None:
    busy, _ = servers()
    assert play([busy, server(IDLE, 1, gpus=2.0, seed=201, takes_guests=False)], CHEAPEST).loans == ()


def test_what_a_dead_server_did_for_others_has_failed_where_nobody_else_has_room(lent) -> None:
    first = lent.loans[0].loan
    alone = play(servers(), CHEAPEST, failures=[ServerDeath(IDLE, (first.begins_us + first.ends_us) // 2)])
    assert {made.outcome for made in alone.loans} == {"idle died"}
    assert alone.accuracy[IDLE].keys() == lent.accuracy[IDLE].keys()
    assert all(windows[-1] == 0.0 for windows in alone.accuracy[IDLE].values())
    assert all(min(windows) > 0.0 for windows in alone.accuracy[BUSY].values())


def test_epochs_that_were_home_when_their_host_died_are_not_lost(lent) -> None:
    first = lent.loans[0].loan
    home_us = [first.next_home(epoch)[0] for epoch in (0, 2)]
    stream, window = first.offer.stream, first.offer.now_us // (first.offer.until_us // 2)
    before, after = (
        play(servers(), CHEAPEST, failures=[ServerDeath(IDLE, at_us)]).accuracy[BUSY][stream][window]
        for at_us in (home_us[0] - 1, home_us[1] + 1)
    )
    assert before < after < lent.accuracy[BUSY][stream][window]


def test_what_a_dead_server_did_for_others_goes_on_elsewhere_from_its_last_epoch() -> None:
    three = [*servers(), server(THIRD, 1, gpus=2.0, seed=202)]
    lives = play(three, CHEAPEST)
    first, second, *_ = (made.loan for made in lives.loans if made.loan.host == THIRD)
    dies = ServerDeath(THIRD, (second.begins_us + second.ends_us) // 2)
    died = play(three, CHEAPEST, failures=[dies])
    lost = [made.loan for made in died.loans if made.outcome == "third died"]
    again = [made for made in died.loans if made.loan.offer.now_us == dies.at_us]
    assert lost == [first, second]
    assert [made.loan.offer.stream for made in again] == [first.offer.stream, second.offer.stream]
    assert {(made.loan.host, made.outcome) for made in again} == {(IDLE, ARRIVED)}
    assert [loan.offer.epochs for loan in lost] == [5, 5]
    assert [made.loan.offer.epochs for made in again] == [2, 3]
    assert again[0].loan.offer.gpu_s == pytest.approx(first.offer.gpu_s * 2 / 5)


def test_a_run_that_is_left_early_leaves_no_loan_open_and_counts_what_was_moved(lent) -> None:
    first = lent.loans[0].loan
    half_us = (first.begins_us + first.ends_us) // 2

    class Impatient:
        """A scheduler during which the user presses Ctrl-C."""

        def __init__(self):
            self.inner = make_scheduler("thief")
            self.needs = self.inner.needs

        def plan(self, view):
            if view.now_us >= half_us:
                raise KeyboardInterrupt
            return self.inner.plan(view)

    coordinator = LoanCoordinator(CHEAPEST, LINKS)
    specs = [_spec(one, _world(one), Impatient(), SIZES) for one in servers()]
    fleet = ServerFleet(specs, coordinator)
    with pytest.raises(KeyboardInterrupt):
        fleet.run()
    assert [made.outcome for made in coordinator.loans].count("") > 0
    fleet.give_up_remote()
    assert {made.outcome for made in coordinator.loans} <= {ARRIVED, GIVEN_UP}
    assert coordinator.moved_mb[BUSY, IDLE] >= first.offer.sent_mb()


def test_it_comes_to_the_same_every_time(lent) -> None:
    again = play(servers(), CHEAPEST)
    assert (again.accuracy, again.moved_mb) == (lent.accuracy, lent.moved_mb)


def three(**changes):
    """Two overloaded servers, which compete for a third."""
    busy, idle = servers(**changes)
    return [busy, server(FULL, 5, seed=205, **changes), idle]


def held_milli(loans, at_us):
    """Returns the shares that each host has lent at a time, and until when a loan was made or ended."""
    held = {}
    for made in loans:
        if made.loan.begins_us <= at_us < min(made.loan.ends_us, made.over_us):
            held[made.loan.host] = held.get(made.loan.host, 0) + made.loan.share_milli
    return held


@pytest.fixture
def granted(monkeypatch):
    """Loans that the coordinator grants to servers that do not ask at that moment."""
    loans, grant = [], LendingExecutor.grant_loan

    def granting(self, loan):
        assert loan.offer.site == self.spare_room.__self__.site
        loans.append(loan)
        grant(self, loan)

    monkeypatch.setattr(LendingExecutor, "grant_loan", granting)
    return loans


def test_a_server_that_was_refused_is_granted_a_loan_when_another_ends_and_its_weights_arrive(
    granted,
) -> None:
    played = play(three(), TIERS["net"])
    outcomes = {made.number: made.outcome for made in played.loans}
    assert granted
    assert {outcomes[loan.number] for loan in granted} == {ARRIVED}
    ends_us = {made.over_us for made in played.loans}
    assert any(min(abs(loan.offer.now_us - at_us) for at_us in ends_us) <= AHEAD_US for loan in granted)


@pytest.mark.parametrize("tier", ["andreas", "net"])
def test_every_loan_ends_and_no_host_lends_more_than_it_has(tier) -> None:
    played = play(three(), TIERS[tier])
    assert ARRIVED in {made.outcome for made in played.loans}
    for made in played.loans:
        assert made.outcome == ARRIVED or made.outcome.startswith(("moved to ", "stopped: ")), made.outcome
        assert made.loan.offer.site != made.loan.host
        for at_us in (made.loan.begins_us, made.loan.ends_us - 1):
            assert max(held_milli(played.loans, at_us).values(), default=0) <= 1000


def test_what_is_moved_goes_on_at_once_elsewhere_with_what_is_not_home_yet() -> None:
    played = play(servers(), TIERS["andreas"])
    moved = [made for made in played.loans if made.outcome.startswith("moved to ")]
    assert moved
    for made in moved:
        stream = made.loan.offer.stream
        rest = next(
            one.loan
            for one in played.loans[made.number + 1 :]
            if one.loan.offer.stream == stream and one.loan.offer.now_us == made.over_us
        )
        assert made.outcome == f"moved to {rest.host}"
        home, _ = made.loan.came_home(made.over_us)
        assert rest.offer.epochs == made.loan.offer.epochs - home
        there = made.over_us >= made.loan.begins_us
        assert rest.offer.held_by == (IDLE if there else None)


def test_a_policy_that_wants_it_is_asked_again_as_time_passes() -> None:
    """Without such a wish it is asked only when something changes."""

    def asked_us(every_us):
        at_us = []

        def decide(market):
            at_us.append(market.now_us)
            return CHEAPEST.decide(market)

        play(servers(), Tier(decide, every_us))
        return at_us

    seldom, often = asked_us(None), asked_us(2 * S)
    loans = play(servers(), CHEAPEST).loans
    assert len(loans) > 1
    for made in loans:
        begins_us, ends_us = made.loan.offer.now_us, made.loan.ends_us
        assert longest_gap_us(seldom, begins_us, ends_us) > 3 * S
        assert longest_gap_us(often, begins_us, ends_us) <= 2 * S + AHEAD_US


def longest_gap_us(at_us, begins_us, ends_us):
    during = [now_us for now_us in at_us if begins_us <= now_us <= ends_us]
    return max(later - now for now, later in pairwise(during))
