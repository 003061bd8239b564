"""Deep-Edge's tier with models of profiled hosts: what they change, and where they change nothing."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loan_cases import (
    BUSY,
    FITTED,
    FULL,
    IDLE,
    Models,
    S,
    all_links,
    all_offers,
    all_rooms,
    links,
    market,
    offer,
    room,
    served,
)

from ekya.fleet.fitting.boosted import BoostedEstimates
from ekya.fleet.papers.deep_edge import laws
from ekya.fleet.papers.deep_edge.laws import NANO, SIFT
from ekya.fleet.papers.deep_edge.workload import profile_points
from ekya.fleet.policy.deep_edge.estimates import INFERENCE, EdgeLimits, EdgeTraining
from ekya.fleet.policy.market import key_of
from ekya.fleet.policy.places import NodeState
from ekya.fleet.policy.registry import TIERS, tiers_with
from ekya.fleet.policy.splitting import FittedHosts
from ekya.fleet.policy.spreading import late_streams

NAME = "deep-edge"
QUICK = links(1e6)


def host(site, kind="quick", state=IDLE, units=1, **about):
    return room(site, [0.0] * units, machine=(kind, state), **about)


def asked(**changes):
    return offer(**{"until_us": 900 * S} | changes)


def lent(rooms, fitted=FITTED, **changes):
    """Returns the loan for an offer of 4000 crops that takes 20 s on a whole GPU at home."""
    tiers = TIERS if fitted is None else tiers_with(fitted)
    (loan,) = tiers[NAME].decide(market([asked(**changes)], rooms, QUICK)).loans
    return loan


def with_limits(**limits):
    return replace(FITTED, limits=replace(FITTED.limits, **limits))


def test_a_host_whose_inference_would_be_late_by_the_models_is_not_chosen() -> None:
    rooms = [host("a", state=BUSY, inference=served(900)), host("b", inference=served(900))]
    assert lent(rooms, fitted=None).hosts == ("a", "b")
    assert lent(rooms).hosts == ("b",)
    assert lent([replace(one, inference=served(900, limit_s=1.0)) for one in rooms]).hosts == ("a", "b")
    tier, only = tiers_with(FITTED)[NAME], market([asked()], rooms[:1], QUICK)
    assert TIERS[NAME].decide(only).loans
    assert not tier.decide(only).loans


def test_the_errors_of_the_models_count_against_the_host() -> None:
    rooms, wrong = [host("b", inference=served(900))], with_limits(exec_error=0.3)
    assert lent(rooms).hosts == ("b",)
    assert not tiers_with(wrong)[NAME].decide(market([asked()], rooms, QUICK)).loans


def test_models_never_allow_what_the_host_s_shares_do_not() -> None:
    """With 300 of 1000 lent, inference that needs 800 has too little, however quick a frame is."""
    seen = FITTED.room_by_models(host("a", units=3, inference=served(800)), offer())
    assert max(seen.slowdown) < 1.25
    assert [bool(late_streams(seen, lent_milli)) for lent_milli in (100, 200, 300)] == [False, False, True]


def test_a_host_without_memory_for_the_batch_is_not_chosen() -> None:
    rooms = [host("a", state=FULL), host("b")]
    assert lent(rooms).hosts == ("b",)
    assert lent(rooms, batch_size=4).hosts == ("a", "b")
    wrong = with_limits(mem_error=0.1)
    assert lent(rooms, fitted=wrong, batch_size=4).hosts == ("b",)


@pytest.mark.parametrize(("kind", "sample_s"), [("quick", 0.005), ("slow", 0.02)])
def test_a_training_takes_what_it_was_profiled_to_take_on_that_kind_in_that_state(kind, sample_s) -> None:
    for state in (IDLE, BUSY):
        loan = lent([host("a", kind, state, units=5)], epochs=2, crops=100)
        assert loan.parts[0].share_milli == 500
        assert (loan.ends_us - loan.begins_us) / S == pytest.approx(
            2 * 100 * sample_s * (1 + state.cpu) / 0.5
        )


def test_exemplars_are_trained_too() -> None:
    rooms, few = [host("a", units=5)], {"epochs": 2, "crops": 100}
    plain, mixed = (lent(rooms, **few, replayed=part) for part in (0.0, 0.5))
    assert mixed.ends_us - mixed.begins_us == pytest.approx(1.5 * (plain.ends_us - plain.begins_us))


def test_who_was_profiled_to_be_quicker_gets_more_crops() -> None:
    rooms = [host("a"), host("b", "slow")]
    told = {"epochs": 2, "crops": 400, "gpu_s": 4.0, "trained_mb": 0.0}
    guessed, known = lent(rooms, None, **told), lent(rooms, **told)
    assert max(part.crops for part in guessed.parts) < 0.6
    assert {part.host: part.crops for part in known.parts}["a"] > 0.7


def test_a_profile_without_small_shares_promises_no_more_than_the_host_s_curve() -> None:
    unthrottled = SimpleNamespace(
        compute_s=lambda worker: Models().compute_s(replace(worker, share_milli=1000)),
        state_after=Models().state_after,
        exec_s=Models().exec_s,
    )
    seen = FittedHosts(unthrottled, FITTED.limits, FITTED.blocks).room_by_models(
        host("a", state=BUSY, units=5), offer()
    )
    # A sample takes 0.0095 s unthrottled, and 0.005 s on an idle machine, which has it all.
    assert [seen.takes_s(20.0 / 4000, share) for share in (100, 500, 1000)] == pytest.approx(
        [0.05, 0.01, 0.0095]
    )


def test_a_host_is_seen_as_the_points_of_its_kind_were_measured() -> None:
    """Points of the testbed, whose laws the models were not told."""
    points = [replace(point, app=INFERENCE) for point in profile_points(NANO, 200)]
    fitted = FittedHosts(BoostedEstimates(points, trees=60), EdgeLimits(), {NANO: 0})
    slower = []
    for state in (NodeState(0.2, 0.2, 0.3), NodeState(0.6, 0.2, 0.3)):
        seen = fitted.room_by_models(host("a", NANO, state, units=10), offer())
        assert seen.takes_s(20.0 / 4000, 1000) == pytest.approx(
            laws.compute_s(EdgeTraining(NANO, state, 16)), rel=0.1
        )
        slower.append(seen.slowdown[-1])
    after = laws.state_after(EdgeTraining(NANO, state, 16))
    truly = laws.exec_s(NANO, SIFT, after) / laws.exec_s(NANO, SIFT, state)
    assert 1.0 < slower[0] < slower[1] == pytest.approx(truly, rel=0.1)


def test_what_was_not_profiled_is_not_known() -> None:
    assert FITTED.room_by_models(host("a"), offer()) is not None
    assert FITTED.room_by_models(room("a", [0.0]), offer()) is None
    assert FITTED.room_by_models(host("a", "other"), offer()) is None
    assert FITTED.room_by_models(host("a"), offer(batch_size=32)) is None
    assert replace(FITTED, blocks={"quick": 1}).room_by_models(host("a"), offer()) is None


@given(all_offers, all_rooms, all_links, st.sampled_from([None, ("other", IDLE)]))
def test_hosts_that_were_not_profiled_are_seen_as_without_models(offers, rooms, ways, machine) -> None:
    drawn = market(offers, [replace(one, machine=machine) for one in rooms], ways)
    before, after = TIERS[NAME].decide(drawn), tiers_with(FITTED)[NAME].decide(drawn)
    for loan in after.loans:
        told = f"; nothing like it was profiled on {' and '.join(sorted(loan.hosts))}"
        assert loan.reason.endswith(told)
    said = {key_of(one.offer): one.reason for one in before.loans}
    loans = tuple(replace(one, reason=said[key_of(one.offer)]) for one in after.loans)
    assert replace(after, loans=loans) == before


def test_a_reason_names_only_the_hosts_that_were_not_profiled() -> None:
    loan = lent([host("a"), host("b", "other")])
    assert loan.hosts == ("a", "b")
    assert loan.reason.endswith("; nothing like it was profiled on b")
    assert "profiled" not in lent([host("a"), host("b")]).reason
