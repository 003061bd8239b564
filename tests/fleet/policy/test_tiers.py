"""Laws that every lending tier keeps."""

from math import ceil

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from loan_cases import HOME, NOW_US, all_links, all_offers, all_rooms, links, offer, room

from ekya.fleet.policy.brokering import key_of, worth
from ekya.fleet.policy.loans import beside, loan_cost
from ekya.fleet.policy.tiers import TIERS

FOUR = [room(site, [0.002, 0.005]) for site in "abcd"]


def every_tier():
    """Yields all tiers for one example, which is not drawn again for each; a failure tells which it was."""
    for name, tier in TIERS.items():
        note(name)
        yield tier


@given(all_offers, all_rooms, all_links)
def test_every_offer_has_one_loan_or_a_reason(offers, rooms, ways) -> None:
    for tier in every_tier():
        done = tier(NOW_US, offers, rooms, ways, 0)
        made = [key_of(loan.offer) for loan in done.loans]
        assert sorted([*made, *done.refused]) == sorted(map(key_of, offers))
        assert all(done.refused.values())
        assert all(loan.reason for loan in done.loans)


@given(all_offers, all_rooms, all_links)
def test_servers_lend_what_they_have_room_for_and_never_to_themselves(offers, rooms, ways) -> None:
    for tier in every_tier():
        lent = dict.fromkeys([one.site for one in rooms], 0)
        for loan in tier(NOW_US, offers, rooms, ways, 0).loans:
            assert loan.offer.site not in loan.hosts
            assert len(set(loan.hosts)) == len(loan.hosts)
            assert loan.server in loan.hosts
            assert sum(part.crops for part in loan.parts) == pytest.approx(1.0)
            for part in loan.parts:
                assert part.crops > 0
                assert part.share_milli > 0
                assert part.share_milli % 100 == 0
                lent[part.host] += part.share_milli
        assert all(lent[one.site] <= 100 * len(one.loss) for one in rooms)


@given(all_offers, all_rooms, all_links)
def test_every_loan_brings_more_than_it_costs_beside_those_before_it(offers, rooms, ways) -> None:
    for tier in every_tier():
        left = tuple(rooms)
        for loan in tier(NOW_US, offers, rooms, ways, 0).loans:
            assert loan.brings > loan_cost(loan, left) >= 0.0
            assert NOW_US <= loan.begins_us <= loan.ends_us <= loan.arrives_us < loan.offer.until_us
            left = beside(loan, left)


@given(all_offers, all_rooms, all_links)
def test_every_megabyte_has_a_way_and_a_reason(offers, rooms, ways) -> None:
    for tier in every_tier():
        for loan in tier(NOW_US, offers, rooms, ways, 0).loans:
            asked, batch = loan.offer, loan.offer.config.batch_size
            parts = {part.host: part for part in loan.parts}
            assert loan.sent_mb == {
                (asked.site, host): asked.sent_mb(host, part.crops, validates=host == loan.server)
                for host, part in parts.items()
            }
            for host, part in parts.items():
                if host != loan.server:
                    steps = ceil(round(part.crops * asked.crops) / batch)
                    there, back = loan.epoch_mb[host, loan.server], loan.epoch_mb[loan.server, host]
                    assert there == back == pytest.approx(steps * asked.trained_mb)
            assert len(loan.epoch_mb) == 2 * (len(parts) - 1)
            whole = sum(loan.sent_mb.values()) + asked.epochs * sum(loan.epoch_mb.values())
            snapshots = loan.came_home(loan.arrives_us)[1]
            moved = sum(loan.moved_mb(loan.arrives_us).values())
            assert moved == pytest.approx(whole + snapshots * asked.back_mb)
            home = 0
            for _ in range(snapshots):
                at_us, epochs = loan.next_home(home)
                assert (loan.came_home(at_us - 1)[0], loan.came_home(at_us)[0]) == (home, epochs)
                home = epochs
            assert (at_us, home) == (loan.arrives_us, asked.epochs)


@pytest.mark.parametrize("name", TIERS)
@given(all_offers, all_rooms, all_links, st.randoms())
def test_neither_the_order_of_offers_nor_that_of_rooms_matters(name, offers, rooms, ways, chance) -> None:
    done = TIERS[name](NOW_US, offers, rooms, ways, 7)
    shuffled = [chance.sample(some, len(some)) for some in (offers, rooms)]
    assert TIERS[name](NOW_US, *shuffled, ways, 7) == done


@pytest.mark.parametrize("name", TIERS)
def test_an_offer_that_brings_much_finds_the_room_that_costs_nothing(name) -> None:
    (loan,) = TIERS[name](NOW_US, [offer()], [room("a", [0.0] * 10)], links(), 0).loans
    assert loan.hosts == ("a",)


@pytest.mark.parametrize("name", TIERS)
def test_nobody_lends_to_who_brings_nothing(name) -> None:
    done = TIERS[name](NOW_US, [offer(gain=0.0), offer(stream="late", gpu_s=9e3)], FOUR, links(), 0)
    assert not done.loans
    assert set(done.refused) == {(HOME, "cam"), (HOME, "late")}


@pytest.mark.parametrize("name", TIERS)
def test_what_no_server_has_room_for_is_done_by_several_or_by_nobody(name) -> None:
    loans = TIERS[name](NOW_US, [offer(gpu_s=60.0)], FOUR, links(), 0).loans
    if name == "andreas":
        assert loans == ()
    else:
        assert len(loans[0].hosts) > 1


def test_ours_is_worth_at_least_what_each_other_is_for_one_offer() -> None:
    for gpu_s in (5.0, 20.0, 60.0):
        asked, best = [offer(gpu_s=gpu_s)], {}
        for name, tier in TIERS.items():
            best[name] = sum(worth(loan, FOUR) for loan in tier(NOW_US, asked, FOUR, links(), 0).loans)
        assert best["net"] == max(best.values()) > 0.0
