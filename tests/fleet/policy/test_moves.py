"""Moves of inference: what a server offers of it, and which moves are made."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loan_cases import NOW_US, S, all_rooms, links, room

from ekya.core.configs import InferenceConfig
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, StreamView, WindowView
from ekya.fleet.policy import moves as policy
from ekya.fleet.policy.moves import LINK_PART, Choice, Move, MoveOffer, best_moves, move_offers
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import Sizes
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.registry import make_scheduler

HOME, A, B = map(SiteName, ("home", "a", "b"))
UNTIL_US = NOW_US + 100 * S
SIZES = Sizes(0.01, 45.0, (34.0,), 512, 6, 120)
EVERY, HALF, COARSE = InferenceConfig(1, 32), InferenceConfig(2, 32), InferenceConfig(5, 32)
LAMBDAS = (
    InferenceOption(EVERY, 1.0, 520, 100_000),
    InferenceOption(HALF, 0.8, 260, 200_000),
    InferenceOption(COARSE, 0.6, 110, 500_000),
)


def offer(site=HOME, stream="cam", gains=(0.05, 0.3, 0.3), mb_s=0.5, spare_us=None, model_mb=45.0):
    choices = [Choice(100 * units, gain, mb_s, spare_us) for units, gain in enumerate(gains, 1)]
    return MoveOffer(site, StreamId(stream), UNTIL_US, 0.06, model_mb, tuple(choices))


def view(capacity_milli, streams=2, **changes):
    made = (
        StreamView(StreamId(f"cam-{number}"), 0.5, (), LAMBDAS, **changes) for number in range(1, streams + 1)
    )
    return WindowView(NOW_US, UNTIL_US, capacity_milli, 50, 100, 0.0, tuple(made), LINEAR)


def offered(of, fps=None):
    fps = {stream.stream: 10.0 for stream in of.streams} if fps is None else fps
    return list(move_offers(HOME, of, make_scheduler("thief").plan, fps, SIZES, 100))


def test_only_a_server_that_cannot_give_its_streams_their_best_offers_them() -> None:
    assert offered(view(1200)) == []
    assert {one.stream for one in offered(view(400))} == {"cam-1", "cam-2"}
    assert offered(view(400), fps={}) == []
    assert [one.stream for one in offered(view(400), fps={StreamId("cam-2"): 10.0})] == ["cam-2"]


def test_an_offer_counts_what_all_streams_gain_and_what_crosses_the_link() -> None:
    of = view(350)
    _, second = offered(of)
    by_share = {one.share_milli: one for one in second.choices}
    alone = 2 * evaluate_phases(of, make_scheduler("thief").plan(of).phases).mean
    # At home each analyses every fifth frame. What one leaves lets the other analyse every second one.
    gains = {share_milli: one.gain for share_milli, one in by_share.items()}
    expected = {300: 0.4 + 0.4 - alone, 600: 0.5 + 0.4 - alone}
    assert gains == pytest.approx(expected)
    assert by_share[600].mb_s == pytest.approx(6.0 * 0.01 * 10)
    assert by_share[300].mb_s == pytest.approx(by_share[600].mb_s / 2)
    _, limited = offered(view(350, max_age_us=550_000))
    assert {one.share_milli: one.spare_us for one in limited.choices} == {300: 350_000, 600: 450_000}
    assert (second.frame_mb, second.model_mb, second.until_us) == (pytest.approx(0.06), 45.0, UNTIL_US)


def moves(offers, rooms, ways=None, running=()):
    return best_moves(NOW_US, offers, rooms, ways or links(), running)


def test_the_move_that_is_worth_most_is_made_where_it_costs_least() -> None:
    (made,) = moves([offer()], [room("a", [0.0, 0.1, 0.2]), room("b", [0.0, 0.0, 0.0])])
    assert (made.host, made.share_milli, made.gain, made.lost) == (B, 200, 0.3, 0.0)
    assert made.begins_us == NOW_US + links().takes_us(HOME, B, 45.0)
    assert made.worth == pytest.approx(0.3 * (100 - 45 / 12.5))


@pytest.mark.parametrize(
    ("offers", "rooms", "ways"),
    [
        ([offer(gains=(0.05,))], [room("a", [0.05])], None),  # it costs as much as it brings
        ([offer()], [room("home", [0.0, 0.0])], None),
        ([offer(mb_s=1.3)], [room("a", [0.0, 0.0])], None),  # more than a tenth of 12.5 MB/s
        ([offer(spare_us=4000)], [room("a", [0.0, 0.0])], None),  # 60 kB take 4.8 ms
        ([offer()], [room("a", [0.0, 0.0])], links(0.4)),  # the model arrives when the window is over
        ([offer(gains=(0.0, 0.0))], [room("a", [0.0, 0.0])], None),
        ([], [room("a", [0.0, 0.0])], None),
    ],
)
def test_frames_stay_where_a_move_does_not_pay_or_is_too_slow(offers, rooms, ways) -> None:
    assert moves(offers, rooms, ways) == ()


def test_of_a_servers_streams_one_moves_at_a_time_and_a_link_is_not_filled() -> None:
    two = [offer(stream="cam-1"), offer(stream="cam-2", gains=(0.4, 0.5))]
    roomy = [room("a", [0.0] * 9)]
    (first,) = moves(two, roomy)
    assert first.stream == "cam-2"
    (second,) = moves(two[:1], roomy, running=[first])
    assert second.stream == "cam-1"
    assert moves([offer(stream="cam-3", mb_s=0.4)], roomy, running=[first, second]) == ()


all_choices = st.lists(
    st.builds(
        Choice,
        st.integers(1, 6).map(lambda units: 100 * units),
        st.sampled_from([0.0, 0.02, 0.1, 0.4]),
        st.sampled_from([0.05, 0.6, 1.2]),
        st.sampled_from([None, None, 1000, 50_000]),
    ),
    max_size=3,
).map(tuple)
all_offers = st.lists(
    st.builds(
        MoveOffer,
        st.sampled_from([HOME, A, B]),
        st.sampled_from(["cam-1", "cam-2", "cam-3"]).map(StreamId),
        st.sampled_from([NOW_US + 3 * S, UNTIL_US]),
        st.just(0.06),
        st.sampled_from([1.0, 45.0]),
        all_choices,
    ),
    max_size=5,
    unique_by=lambda one: (one.site, one.stream),
)
under_way = st.lists(
    st.builds(
        lambda host, mb_s: Move(HOME, StreamId("old"), host, 100, 0, 0, UNTIL_US, 5000, mb_s, 45.0, 0.1, 0.0),
        st.sampled_from([A, B]),
        st.sampled_from([0.3, 0.9]),
    ),
    max_size=2,
)


@given(all_offers, all_rooms, under_way, st.sampled_from([links(), links(100.0), links(home_a=2.0)]))
def test_no_host_lends_more_than_its_room_no_link_is_filled_and_every_move_pays(
    offers, rooms, running, ways
) -> None:
    made = moves(offers, rooms, ways, running)
    assert len({move.site for move in made}) == len(made)
    for host in rooms:
        there = [move for move in made if move.host == host.site]
        assert sum(move.share_milli for move in there) <= 100 * len(host.loss)
        lost = sum((Fraction(move.lost) for move in there), Fraction())
        assert float(lost) == pytest.approx(host.lost(sum(move.share_milli for move in there)))
    for move in made:
        assert move.worth > 0.0
        assert move.host != move.site
        assert move.until_us > move.begins_us >= NOW_US
        of = next(one for one in offers if (one.site, one.stream) == (move.site, move.stream))
        chosen = [one for one in of.choices if one.share_milli == move.share_milli]
        assert any(one.spare_us is None or one.spare_us >= move.away_us for one in chosen)
        on_the_way = [one for one in (*made, *running) if (one.site, one.host) == (move.site, move.host)]
        rate = 1.0 / ways.s_per_mb(move.site, move.host)
        assert sum(one.mb_s for one in on_the_way) <= LINK_PART * rate + 1e-9


@given(all_offers, all_rooms, st.randoms(use_true_random=False))
def test_moves_depend_on_the_order_of_neither_offers_nor_rooms(offers, rooms, random) -> None:
    before = moves(offers, rooms)
    shuffled = [replace(one) for one in offers]
    random.shuffle(shuffled)
    random.shuffle(rooms)
    assert moves(shuffled, rooms) == before


def test_traffic_ends_with_the_move() -> None:
    move = Move(HOME, StreamId("cam"), A, 100, 0, 10 * S, 20 * S, 5000, 0.5, 45.0, 0.1, 0.0)
    there, back = (HOME, A), (A, HOME)
    assert move.moved_mb(5 * S)[there] == 45.0
    assert move.moved_mb(14 * S)[there] == pytest.approx(47.0)
    assert move.moved_mb(99 * S)[there] == pytest.approx(50.0)
    assert 0.0 < move.moved_mb(99 * S)[back] < 0.01


def test_of_many_offers_few_are_weighed_again_when_a_host_has_less_left(monkeypatch) -> None:
    weighed, weigh = [], policy._move
    monkeypatch.setattr(policy, "_move", lambda *pair: weighed.append(1) or weigh(*pair))
    many = [offer(f"s{number % 20}", f"cam-{number}", (0.1 + number / 1000,)) for number in range(200)]
    rooms = [room(f"r{number}", [0.0, 0.0]) for number in range(20)]
    assert len(moves(many, rooms)) == 20
    assert len(weighed) < 1.5 * len(many) * len(rooms)
