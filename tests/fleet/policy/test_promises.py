"""Promises: which part of them is expected to come, when weights serve, and how late trainings are."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loan_cases import HOME, NOW_US, S, links, market, offer, room

from ekya.fleet.policy.loans import loan_at
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.promises import LEAST, MOST, Lateness, Promises
from ekya.fleet.policy.registry import TIERS

A, B, C = map(SiteName, "abc")
loans = st.tuples(st.sampled_from([A, B]), st.floats(0.0, 50.0), st.floats(-5.0, 100.0))
some_loans = st.lists(loans, max_size=30)


def after(all_loans):
    promises = Promises()
    for site, promised, came in all_loans:
        promises.record_gain(site, promised, came, None)
    return promises


@given(some_loans)
def test_the_margin_stays_within_its_bounds_also_of_a_server_without_loans(all_loans) -> None:
    promises = after(all_loans)
    assert all(LEAST <= promises.kept_part(site) <= MOST for site in (A, B, C))


@given(some_loans.flatmap(lambda some: st.tuples(st.just(some), st.permutations(some))))
def test_the_order_of_loans_does_not_matter(both) -> None:
    one, other = map(after, both)
    assert [one.kept_part(site) for site in (A, B, C)] == [other.kept_part(site) for site in (A, B, C)]


@given(some_loans, loans, st.floats(0.0, 50.0))
def test_the_more_came_of_a_loan_the_more_is_expected_of_every_server(before, loan, more) -> None:
    site, promised, came = loan
    less_came, more_came = after([*before, loan]), after([*before, (site, promised, came + more)])
    for one in (A, B, C):
        assert less_came.kept_part(one) <= more_came.kept_part(one) + 1e-12


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.floats(0.0, 50.0)), max_size=30))
def test_promises_that_are_kept_need_no_margin(all_loans) -> None:
    promises = after([(site, promised, promised) for site, promised in all_loans])
    assert promises.kept_part(A) == pytest.approx(MOST)


def test_a_server_without_loans_is_expected_to_do_as_the_fleet_and_its_own_loans_count_ever_more() -> None:
    others = [(A, 10.0, 4.0)] * 8
    # Two kept promises beside eight of which four tenths came.
    fleet = (8 * 4.0 + 2 * 10.0) / (10 * 10.0)
    assert after(others).kept_part(B) == pytest.approx(fleet)
    # With a fleet that is mostly its own, one server of which nothing comes falls, loan by loan.
    margins = [after([*others, *[(B, 10.0, 0.0)] * count]).kept_part(B) for count in range(20)]
    assert margins == sorted(margins, reverse=True)
    assert (margins[1], margins[-1]) == (pytest.approx(52 / 110 * 2 / 3), LEAST)


def test_what_came_beyond_the_promise_makes_up_for_what_did_not_and_no_more() -> None:
    assert after([(A, 10.0, 30.0)] * 5).kept_part(A) == MOST
    assert after([(A, 10.0, 15.0), (A, 10.0, 5.0)]).kept_part(A) == MOST
    assert after([(B, 10.0, 30.0)] * 5 + [(A, 10.0, 0.0)] * 6).kept_part(A) == pytest.approx(0.25)


def test_only_the_newest_loans_count_so_that_a_server_is_tried_again() -> None:
    broken, kept = [(A, 10.0, 0.0)] * 30, [(B, 10.0, 10.0)]
    assert after(broken + kept).kept_part(A) == LEAST
    assert after(broken + kept * 100).kept_part(A) == MOST


def test_an_offer_is_scaled_once_and_says_by_how_much() -> None:
    promises = Promises()
    promises.record_gain(HOME, 10.0, 0.0, 2 * S)
    promises.record_gain(HOME, 10.0, 0.0, 1 * S)
    one = promises.with_expected_gain(offer(gain=0.2))
    assert (one.margin, one.gain) == (pytest.approx(0.25), pytest.approx(0.05))
    assert one.serves_after_us == 1_500_000
    # Due in 200 s: weights that arrive at 98.5 s serve for 100.
    assert one.gain_if_arrives(98_500_000) == pytest.approx(0.05 * 100.0)
    assert one.promised_if_arrives(98_500_000) == pytest.approx(0.2 * 100.0)
    assert one.gain_if_arrives(198_500_000) == one.gain_if_arrives(300 * S) == 0.0
    assert promises.serving.expected_delay_us(A) == 0


@pytest.mark.parametrize(("serves_after_us", "winner"), [(0, "better"), (60 * S, "sooner")])
def test_of_two_offers_for_one_share_the_time_until_weights_serve_decides(serves_after_us, winner) -> None:
    better = offer(stream="better", gain=0.11, gpu_s=2.0, serves_after_us=serves_after_us)
    sooner = offer(stream="sooner", gain=0.1, gpu_s=2.0)
    made = TIERS["net"].decide(market([better, sooner], [room("a", [0.001])])).loans
    assert [loan.offer.stream for loan in made] == [winner]


def by(host, late_us=0):
    return loan_at(NOW_US, offer(), replace(room(host, [0.0]), late_us=late_us), 1, links(), "")


def arrived(late, loan, at_us):
    late.record_delay(loan.host, loan.late_by(at_us))


def missed(late, loan, at_us):
    late.record_least_delay(loan.host, loan.late_by(at_us))


def test_nothing_is_late_where_all_end_as_was_foreseen() -> None:
    late = Lateness()
    arrived(late, by("a"), by("a").arrives_us)
    missed(late, by("a"), by("a").arrives_us - 5 * S)
    assert (late.expected_delay_us(A), late.expected_delay_us(B)) == (0, 0)


def test_the_first_training_tells_and_the_next_ones_count_for_half() -> None:
    late, loan = Lateness(), by("a")
    arrived(late, loan, loan.arrives_us + 6 * S)
    assert (late.expected_delay_us(A), late.expected_delay_us(B)) == (6 * S, 0)
    # The forecast now includes these six seconds, two too many.
    foreseen = by("a", late.expected_delay_us(A))
    assert foreseen.arrives_us - loan.arrives_us == 6 * S
    arrived(late, foreseen, foreseen.arrives_us - 2 * S)
    assert late.expected_delay_us(A) == 5 * S


def test_one_that_was_given_up_says_only_that_it_takes_longer() -> None:
    late, loan = Lateness(), by("a")
    missed(late, loan, loan.arrives_us + 9 * S)
    missed(late, loan, loan.arrives_us + 3 * S)
    assert late.expected_delay_us(A) == 9 * S


@given(st.lists(st.integers(-5 * S, 20 * S), min_size=12, max_size=20))
def test_what_is_foreseen_comes_to_what_is_never_below_nothing(wrong) -> None:
    late = Lateness()
    for by_us in wrong:
        loan = by("a", late.expected_delay_us(A))
        arrived(late, loan, loan.arrives_us - loan.late_us + by_us)
        assert 0 <= late.expected_delay_us(A) <= max(0, *wrong)
    for _ in range(40):
        loan = by("a", late.expected_delay_us(A))
        arrived(late, loan, loan.arrives_us - loan.late_us + 4 * S)
    assert abs(late.expected_delay_us(A) - 4 * S) <= 1
