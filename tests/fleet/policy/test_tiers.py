"""Laws that every tier keeps."""

from dataclasses import replace

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from loan_cases import HOME, NOW_US, S, all_links, all_offers, all_rooms, crowded, market, offer, room

from ekya.fleet.policy.andreas.greedy import Andreas
from ekya.fleet.policy.loans import beside, loan_cost
from ekya.fleet.policy.market import key_of, worth
from ekya.fleet.policy.registry import TIERS

FOUR = [room(site, [0.002, 0.005]) for site in "abcd"]


def every_tier():
    """Yields all tiers for one example, which is not drawn again for each; a failure tells which it was."""
    for name, tier in TIERS.items():
        note(name)
        yield tier.decide


@given(all_offers, all_rooms, all_links)
def test_every_offer_has_one_loan_or_a_reason(offers, rooms, ways) -> None:
    for tier in every_tier():
        done = tier(market(offers, rooms, ways))
        made = [key_of(loan.offer) for loan in done.loans]
        assert sorted([*made, *done.refused]) == sorted(map(key_of, offers))
        assert all(done.refused.values())
        assert all(loan.reason for loan in done.loans)


@given(all_offers, all_rooms, all_links)
def test_servers_lend_what_they_have_room_for_and_never_to_themselves(offers, rooms, ways) -> None:
    for tier in every_tier():
        lent = dict.fromkeys([one.site for one in rooms], 0)
        for loan in tier(market(offers, rooms, ways)).loans:
            assert loan.offer.site != loan.host
            assert loan.share_milli > 0
            assert loan.share_milli % 100 == 0
            lent[loan.host] += loan.share_milli
        assert all(lent[one.site] <= 100 * len(one.loss) for one in rooms)


@given(all_offers, all_rooms, all_links)
def test_every_loan_brings_more_than_it_costs_beside_those_before_it(offers, rooms, ways) -> None:
    for tier in every_tier():
        left = tuple(rooms)
        for loan in tier(market(offers, rooms, ways)).loans:
            assert loan.brings > loan_cost(loan, left) >= 0.0
            assert NOW_US <= loan.begins_us <= loan.ends_us <= loan.arrives_us < loan.offer.until_us
            left = beside(loan, left)


@given(all_offers, all_rooms, all_links)
def test_every_megabyte_has_a_way_and_a_reason(offers, rooms, ways) -> None:
    for tier in every_tier():
        for loan in tier(market(offers, rooms, ways)).loans:
            asked = loan.offer
            snapshots = loan.came_home(loan.arrives_us)[1]
            moved = sum(loan.moved_mb(loan.arrives_us).values())
            assert moved == pytest.approx(asked.sent_mb(loan.host) + snapshots * asked.back_mb)
            home = 0
            for _ in range(snapshots):
                at_us, epochs = loan.next_home(home)
                assert (loan.came_home(at_us - 1)[0], loan.came_home(at_us)[0]) == (home, epochs)
                home = epochs
            assert (at_us, home) == (loan.arrives_us, asked.epochs)


@pytest.mark.parametrize("name", TIERS)
@given(all_offers, all_rooms, all_links, st.randoms())
def test_neither_the_order_of_offers_nor_that_of_rooms_matters(name, offers, rooms, ways, chance) -> None:
    done = TIERS[name].decide(market(offers, rooms, ways, seed=7))
    shuffled = [chance.sample(some, len(some)) for some in (offers, rooms)]
    assert TIERS[name].decide(market(*shuffled, ways, seed=7)) == done


@pytest.mark.parametrize("name", TIERS)
def test_an_offer_that_brings_much_finds_the_room_that_costs_nothing(name) -> None:
    (loan,) = TIERS[name].decide(market([offer()], [room("a", [0.0] * 10)])).loans
    assert loan.host == "a"


@pytest.mark.parametrize("name", TIERS)
def test_nobody_lends_to_who_brings_nothing(name) -> None:
    done = TIERS[name].decide(market([offer(gain=0.0), offer(stream="late", gpu_s=9e3)], FOUR))
    assert not done.loans
    assert set(done.refused) == {(HOME, "cam"), (HOME, "late")}


def test_ours_is_worth_at_least_what_each_other_is_for_one_offer() -> None:
    for gpu_s in (5.0, 20.0):
        asked, best = [offer(gpu_s=gpu_s)], {}
        for name, tier in TIERS.items():
            best[name] = sum(worth(loan, FOUR) for loan in tier.decide(market(asked, FOUR)).loans)
        assert best["net"] == max(best.values()) > 0.0


@st.composite
def markets_under_way(draw):
    """Draws a market in which some of the offers have got loans by some tier, a while ago."""
    offers, rooms, ways = draw(all_offers), draw(all_rooms), draw(all_links)
    begun = TIERS[draw(st.sampled_from(sorted(TIERS)))].decide(market(offers, rooms, ways)).loans
    running = [replace(loan, number=number) for number, loan in enumerate(begun)]
    ends_us = min((loan.ends_us for loan in running), default=NOW_US + S)
    now_us = NOW_US + round(draw(st.sampled_from([0.0, 0.3, 0.9])) * (ends_us - NOW_US))
    others = [one for one in draw(all_offers) if key_of(one) not in {key_of(loan.offer) for loan in running}]
    return market([replace(one, now_us=now_us) for one in others], rooms, ways, running, now_us=now_us)


@given(markets_under_way())
def test_what_runs_goes_on_moves_or_stops_and_never_takes_more_than_there_is(drawn) -> None:
    for tier in every_tier():
        deal = tier(drawn)
        by_number = {one.number: one for one in drawn.running}
        assert deal.moves.keys().isdisjoint(deal.stops)
        assert {*deal.moves, *deal.stops} <= by_number.keys()
        assert all(deal.stops.values())
        for number, loan in deal.moves.items():
            assert key_of(loan.offer) == key_of(by_number[number].offer)
            assert loan.offer == by_number[number].offer_of_rest(drawn.now_us)
        lent = {one.site: 0 for one in drawn.rooms}
        stays = [loan for number, loan in by_number.items() if number not in {*deal.moves, *deal.stops}]
        for loan in (*stays, *deal.moves.values(), *deal.loans):
            assert loan.offer.site != loan.host
            lent[loan.host] += loan.share_milli
        assert all(lent[one.site] <= 100 * len(one.loss) for one in drawn.rooms)
        answered = [*(key_of(loan.offer) for loan in deal.loans), *deal.refused]
        assert sorted(answered) == sorted(map(key_of, drawn.offers))


def _worth_of_all(deal, drawn):
    gone = {*deal.moves, *deal.stops}
    runs = [one.going_on(drawn.now_us) for one in drawn.running if one.number not in gone]
    total, left = 0.0, tuple(drawn.rooms)
    for loan in (*runs, *deal.moves.values(), *deal.loans):
        total += worth(loan, left)
        left = beside(loan, left)
    return total


@given(markets_under_way())
def test_whoever_touches_what_runs_gains_by_it(drawn) -> None:
    for tier in every_tier():
        deal = tier(drawn)
        if deal.moves or deal.stops:
            untouched = replace(deal, loans=(), moves={}, stops={})
            assert _worth_of_all(deal, drawn) > _worth_of_all(untouched, drawn)


def test_a_job_that_is_worth_more_takes_the_place_of_one_that_runs() -> None:
    """The server has room for one retraining; asked about the second alone, a policy could only refuse."""
    rooms = [room("a", [0.0] * 3)]
    waited_us = NOW_US - 20 * S
    (small,) = (
        TIERS["andreas"].decide(market([offer(stream="small", gain=0.01, opened_us=waited_us)], rooms)).loans
    )
    full = [room("a", [0.0] * (small.share_milli // 100))]
    urgent = offer(stream="urgent", gain=0.5, until_us=NOW_US + 120 * S, opened_us=waited_us)
    deal = TIERS["andreas"].decide(market([urgent], full, running=[small]))
    assert [loan.offer.stream for loan in deal.loans] == ["urgent"]
    assert list(deal.stops) == [0]
    alone = TIERS["net"].decide(market([urgent], full, running=[small]))
    assert (alone.loans, alone.stops) == ((), {})


def test_andreas_is_asked_about_everything_at_once(monkeypatch) -> None:
    """Over ten open offers of three servers and two running loans."""
    seen, rooms = [], [room(site, [0.001] * 10) for site in "abc"]
    first = [offer(site=room("a", []).site, stream="one"), offer(site=room("b", []).site, stream="two")]
    running = TIERS["andreas"].decide(market(first, rooms)).loans

    def decide(self, view):
        seen.append(view)
        return asked(self, view)

    asked = Andreas.decide
    monkeypatch.setattr(Andreas, "decide", decide)
    offers = [offer(site=room(site, []).site, stream=f"cam-{n}") for site in "abc" for n in range(4)]
    TIERS["andreas"].decide(market(offers, rooms, running=running))
    (view,) = seen
    assert len(view.jobs) == 12 + len(running) >= 13
    assert sum(state.assignment is not None for state in view.jobs) == len(running)


@pytest.mark.parametrize("seed", range(3))
def test_in_a_crowded_market_no_other_tier_s_loans_are_worth_more_together_than_ours(seed) -> None:
    drawn = crowded(40, 10, seed=seed)
    reached = {name: _worth_of_all(tier.decide(drawn), drawn) for name, tier in TIERS.items()}
    assert reached["net"] == max(reached.values())
    assert reached["net"] > 1.5 * max(worth for name, worth in reached.items() if name != "net")
