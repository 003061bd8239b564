"""One retraining split over several servers: hosts, shares and duration."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loan_cases import (
    HOME,
    NOW_US,
    QUICK_WHEN_SMALL,
    S,
    all_links,
    all_offers,
    all_rooms,
    links,
    losses,
    offer,
    room,
)

from ekya.fleet.policy.deep_edge.estimates import EdgeTraining
from ekya.fleet.policy.deep_edge.heuristic import Heuristic
from ekya.fleet.policy.loans import left_behind
from ekya.fleet.policy.market import worth
from ekya.fleet.policy.places import NodeState, SiteName
from ekya.fleet.policy.prices import Hosts, Prices, worth_lending
from ekya.fleet.policy.splitting import Splitter, best_alone, promising, spread_of, spreads
from ekya.fleet.policy.spreading import Spread

A, B, C, D = map(SiteName, "abcd")
FOUR = [room(site, [0.002, 0.005]) for site in "abcd"]
HEAD_MB, BLOCK_MB = 0.13, 33.6
REST = NodeState()


def spread(units, server=A, ways=None, **changes):
    rooms = {site: room(site, [0.0] * 10) for site in units}
    return Spread(offer(**changes), ways or links(), rooms, units, server)


def updates_s(of, hosts, batch=16):
    return of.update_s([EdgeTraining(host, REST, batch) for host in hosts], REST)


rows = st.lists(st.tuples(st.floats(0.0, 0.1), st.floats(0.001, 0.1)), min_size=1, max_size=3)


@given(st.lists(rows, min_size=1, max_size=4), st.floats(0.0, 0.5))
def test_no_other_shares_have_a_better_price(table, gain) -> None:
    def price_of(units):
        chosen = [row[count - 1] for row, count in zip(table, units, strict=True) if count]
        return (gain + sum(loss for loss, _ in chosen)) / sum(rate for _, rate in chosen)

    padded = [row + [(np.inf, 1.0)] * (3 - len(row)) for row in table]
    loss, rate = np.array(padded).transpose(2, 1, 0)
    servers, may = np.array([0]), np.ones((len(table), 1), dtype=np.bool_)
    found, price = worth_lending(gain, loss, rate[:, :, None], servers, may)
    everything = product(*(range(place == 0, len(row) + 1) for place, row in enumerate(table)))
    assert found[0, 0] > 0
    assert price_of(found[:, 0]) == pytest.approx(price[0], rel=1e-9)
    assert price[0] == pytest.approx(min(map(price_of, everything)), rel=1e-9)


@given(st.lists(losses, min_size=2, max_size=3), st.sampled_from([0.02, 0.1, 0.4]))
def test_beside_all_shares_and_hosts_that_there_are_it_loses_little(found, gain) -> None:
    rooms = [room(site, loss) for site, loss in zip("abc", found, strict=False)]
    asked, ways = offer(gain=gain, gpu_s=10.0, crops=4000, back_mb=0.0), links(1000.0)
    best = max(0.0, worth(best_alone(NOW_US, asked, Hosts.from_rooms(rooms, ways)), rooms))
    for units in product(*(range(len(one.loss) + 1) for one in rooms)):
        taken = {one.site: count for one, count in zip(rooms, units, strict=True) if count}
        if len(taken) < 2:
            continue
        for server in taken:
            way = Spread(asked, ways, {one.site: one for one in rooms}, taken, server)
            weights = {site: 1.0 / way.crop_s(site, count) for site, count in taken.items()}
            whole = sum(weights.values())
            crops = {site: round(asked.crops * weight / whole) for site, weight in weights.items()}
            crops[server] += asked.crops - sum(crops.values())
            best = max(best, worth(way.loan(NOW_US, crops, ""), rooms))
    alone = max(0.0, worth(best_alone(NOW_US, asked, Hosts.from_rooms(rooms, ways)), rooms))
    several = Splitter()(NOW_US, asked, Hosts.from_rooms(rooms, ways), alone)
    reached = alone if several is None else worth(several, rooms)
    assert reached >= 0.99 * best - 1e-9


def test_a_head_is_split_over_thin_links_and_a_block_is_not() -> None:
    def split(trained_mb, usual_mb_s):
        asked, ways = offer(trained_mb=trained_mb), links(usual_mb_s)
        alone = worth(best_alone(NOW_US, asked, Hosts.from_rooms(FOUR, ways)), FOUR)
        return Splitter()(NOW_US, asked, Hosts.from_rooms(FOUR, ways), alone) is not None

    assert split(HEAD_MB, 12.5)
    assert not split(BLOCK_MB, 12.5)
    assert split(BLOCK_MB, 1000.0)


def test_the_paper_s_solver_deals_the_crops_as_well() -> None:
    ours, paper = (
        split(NOW_US, offer(), Hosts.from_rooms(FOUR, links()))
        for split in (Splitter(), Splitter(Heuristic()))
    )
    assert len(paper.hosts) > 1
    assert worth(ours, FOUR) >= worth(paper, FOUR)


def test_who_has_twice_the_share_goes_through_twice_the_crops() -> None:
    rooms = [room("a", [0.0]), room("b", [0.0, 0.0])]
    loan = Splitter()(
        NOW_US, offer(trained_mb=0.0, crops=4000, batch_size=2), Hosts.from_rooms(rooms, links())
    )
    crops = {part.host: part.crops for part in loan.parts}
    # The parameter server takes a fifth of its host's lent share.
    assert loan.parameter_server == A
    assert crops[B] / crops[A] == pytest.approx(2 / 0.8, rel=0.01)


def test_the_parameter_server_takes_its_part_of_its_host_s_share() -> None:
    way = spread({A: 5, B: 5})
    assert way.crop_s(A, 5) == pytest.approx(way.crop_s(B, 5) / 0.8)
    assert way.crop_s(B, 5) == pytest.approx(20.0 / 4000 / 0.5)


def test_an_exchange_goes_there_and_back_and_nowhere_on_the_server_s_own_host() -> None:
    way = spread({A: 1, B: 1, C: 1}, ways=links(12.5, a_c=1.0), trained_mb=2.5)
    assert [way.exchange_s(host) for host in (A, B, C)] == [0.0, pytest.approx(0.4), pytest.approx(5.0)]
    assert updates_s(way, [B]) == [pytest.approx(0.4)]
    assert updates_s(way, [A, B]) == [0.0, pytest.approx(0.4)]


def test_workers_wait_for_each_other_longer_the_more_there_are_and_the_oftener_they_come() -> None:
    way = spread(dict.fromkeys([A, B, C, D], 5), trained_mb=2.5)
    two, three = updates_s(way, [B, C])[0], updates_s(way, [B, C, D])[0]
    assert 0.4 < two < three < 1.2
    assert updates_s(way, [B, C, D], batch=2)[0] > three


def test_it_is_over_when_the_last_of_them_is_through_with_all_epochs() -> None:
    way = spread({A: 5, B: 5}, trained_mb=2.5)
    loan = way.loan(NOW_US, {A: 300, B: 100}, "because")
    epoch_s = max(300 * way.crop_s(A, 5), 100 * way.crop_s(B, 5) + 7 * 0.4)
    assert (loan.ends_us - loan.begins_us) / S == pytest.approx(10 * epoch_s)
    assert loan.epoch_mb == {(B, A): 17.5, (A, B): 17.5}
    # The model and most crops are sent to a.
    assert loan.begins_us == NOW_US + links().takes_us(HOME, A, 45.0 + 0.9)


def test_a_faraway_server_is_not_waited_for() -> None:
    loan = Splitter()(NOW_US, offer(), Hosts.from_rooms(FOUR, links(12.5, home_d=0.25)))
    assert set(loan.hosts) == {A, B, C}
    near = Splitter()(NOW_US, offer(), Hosts.from_rooms(FOUR, links(12.5, home_d=12.5)))
    assert D in near.hosts


def test_shares_that_cost_more_than_they_speed_up_are_not_lent() -> None:
    rooms = [room("a", [0.0, 0.5]), room("b", [0.0, 0.5]), room("c", [0.4, 0.5])]
    loan = Splitter()(NOW_US, offer(gain=0.05), Hosts.from_rooms(rooms, links()))
    assert {part.host: part.share_milli for part in loan.parts} == {A: 100, B: 100}


def test_small_shares_of_many_are_worth_more_where_these_are_quick() -> None:
    alone = [room("a", [0.004 * units for units in range(1, 11)], QUICK_WHEN_SMALL)]
    many = [*alone, *(room(site, [0.004], QUICK_WHEN_SMALL) for site in "bcd")]
    loan = Splitter()(NOW_US, offer(), Hosts.from_rooms(many, links()))
    assert len(loan.hosts) > 2
    assert worth(loan, many) > worth(best_alone(NOW_US, offer(), Hosts.from_rooms(alone, links())), alone)


def spreads_of(asked, rooms, ways):
    prices = Prices(asked, Hosts.from_rooms(rooms, ways))
    servers = np.flatnonzero(prices.hosts.other_than_home(asked))
    return [
        spread_of(prices, server, units) for server in servers for _, units in spreads(NOW_US, prices, server)
    ]


def test_every_way_of_spreading_begins_when_its_slowest_host_is_ready() -> None:
    ways = links(12.5, home_d=0.25)
    found = spreads_of(offer(), [*FOUR, room("home", [0.0])], ways)
    assert {one.parameter_server for one in found} == {A, B, C, D}
    assert {frozenset(one.units) for one in found} == {frozenset([A, B, C]), frozenset([A, B, C, D])}
    assert all(D in one.units for one in found if one.parameter_server == D)


@given(all_offers, all_rooms, all_links, st.sampled_from([0.0, 5.0]))
def test_what_is_left_out_because_its_bound_is_low_is_no_better(offers, rooms, ways, least) -> None:
    for asked in offers:
        hosts = Hosts.from_rooms(rooms, ways)
        prices = Prices(asked, hosts)
        every = [
            (-most, server, place)
            for server in np.flatnonzero(hosts.other_than_home(asked))
            for place, (most, _) in enumerate(spreads(NOW_US, prices, server))
            if most > least
        ]
        found = [most for most, _ in promising(NOW_US, prices, least) if most > least]
        assert found == [-cost for cost, _, _ in sorted(every)[:3]]


def test_when_a_host_is_gone_the_others_have_their_crops() -> None:
    loan = Splitter()(
        NOW_US, offer(), Hosts.from_rooms([room("a", [0.0, 0.0]), room("b", [0.0, 0.0])], links())
    )
    parts = {part.host: part.crops for part in loan.parts}
    assert left_behind(loan, A) == {B: pytest.approx(1.2 * parts[B])}
    assert left_behind(loan, SiteName("none")).keys() == parts.keys()
