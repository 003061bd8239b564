"""Lateness of past trainings in the forecasts of the next ones."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from loan_cases import NOW_US, S, links, offer, room

from ekya.fleet.policy.loans import alone
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.prices import Hosts, Prices
from ekya.fleet.policy.promises import Lateness
from ekya.fleet.policy.splitting import spread_of, spreads

A, B = SiteName("a"), SiteName("b")


def by(host, late_us=0):
    return alone(NOW_US, offer(), replace(room(host, [0.0]), late_us=late_us), 1, links(), "")


def arrived(late, loan, at_us):
    late.record_delay(loan.hosts, loan.late_by(at_us))


def missed(late, loan, at_us):
    late.record_least_delay(loan.hosts, loan.late_by(at_us))


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


def test_several_hosts_wait_for_the_latest() -> None:
    ways, crops = links(1000.0), {A: 200, B: 200}
    prompt, late = room("a", [0.0] * 3), replace(room("b", [0.0] * 3), late_us=7 * S)

    def ends_us(*rooms):
        prices = Prices(offer(), Hosts.from_rooms(rooms, ways))
        by_a = spread_of(prices, 0, next(spreads(NOW_US, prices, 0))[1])
        return by_a.loan(NOW_US, crops, "").ends_us

    assert ends_us(prompt, late) - ends_us(prompt, replace(late, late_us=0)) == 7 * S
