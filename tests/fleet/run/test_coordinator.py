"""The coordinator: what it asks, grants, moves and ends, and what is left when servers or it die."""

import pytest
from peers_by_hand import CAM, EAST, HOME, THERE, WEST, S, Server, offer

from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Links, loan_at
from ekya.fleet.policy.market import Deal, key_of
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.registry import TIERS
from ekya.fleet.run.coordinator import LoanCoordinator
from ekya.fleet.run.lending import Answer


class Asked:
    """A tier that records the markets about which it is asked."""

    def __init__(self, name):
        self.markets, self.tier = [], TIERS[name]
        self.every_us = self.tier.every_us

    def decide(self, market):
        self.markets.append(market)
        return self.tier.decide(market)


@pytest.fixture
def town():
    """The coordinator, its servers by name and its records; home lends nothing, and east is asked first."""
    servers = {HOME: Server(HOME, 0), EAST: Server(EAST, 5), WEST: Server(WEST, 0)}
    records = []
    made = LoanCoordinator(
        TIERS["andreas"],
        Links(),
        record=lambda made: records.append((made.number, made.outcome, dict(made.moved_mb))),
        held_until=lambda loan: loan.offer.until_us,
    )
    for site, server in servers.items():
        made.add_borrower(site, server)
        made.add_lender(site, server)
    return made, servers, records


def test_a_share_is_lent_once_and_had_back_when_the_loan_is_over(town) -> None:
    above, servers, records = town
    loan = above.answer_offers(HOME, 0, [offer()]).loan
    assert loan.host == EAST
    assert sum(lent.share_milli for lent in servers[EAST].lent.values()) == loan.share_milli
    above.end_loan(HOME, CAM, 40 * S, "arrived", {THERE: 46.0})
    assert servers[EAST].lent == {}
    assert records == [(0, "", {}), (0, "arrived", {THERE: 46.0})]


def test_nobody_lends_more_than_its_room_whoever_asks(town) -> None:
    above, servers, _ = town
    made = [above.answer_offers(HOME, 0, [offer(StreamId(f"cam-{number}"))]).loan for number in range(8)]
    assert 0 < len([loan for loan in made if loan]) < 8
    assert sum(lent.share_milli for lent in servers[EAST].lent.values()) <= 500
    assert [one.number for one in above.loans] == list(range(len(above.loans)))


def test_who_finds_no_room_hears_why(town) -> None:
    above, servers, _ = town
    servers[EAST].units = 0
    assert above.answer_offers(HOME, 0, [offer()]) == Answer(None, {CAM: "no other server has room"})
    servers[EAST].units = 5
    answer = above.answer_offers(HOME, 0, [offer()])
    assert (answer.loan.host, answer.why_not) == (EAST, {})


def test_what_an_offer_would_get_is_said_and_nothing_is_made(town) -> None:
    above, servers, records = town
    would = above.would_get(0, offer())
    assert (would.loan.host, would.why_not, records, servers[EAST].lent) == (EAST, {}, [], {})
    made = above.answer_offers(HOME, 0, [offer(StreamId("other"))]).loan
    assert made.share_milli == would.loan.share_milli
    servers[EAST].units = 0
    assert above.would_get(0, offer()) == Answer(None, {CAM: "no other server has room"})
    # It does not replace what is offered of the same stream.
    above.answer_offers(HOME, 0, [offer()])
    servers[EAST].units = 5
    above.would_get(0, offer(gain=0.2))
    above.decide_again(0)
    ((_, granted),) = servers[HOME].heard
    assert granted.offer.gain == 0.1


def test_the_next_loan_is_foreseen_to_be_as_late_as_the_one_before_it_was(town) -> None:
    above, _, _ = town
    first = above.answer_offers(HOME, 0, [offer()]).loan
    above.end_loan(HOME, CAM, first.arrives_us + 6 * S, "arrived", {})
    second = above.answer_offers(HOME, 0, [offer()]).loan
    assert (second.late_us, second.arrives_us) == (6 * S, first.arrives_us + 6 * S)
    above.end_loan(HOME, CAM, second.arrives_us - 8 * S, "given up", {})
    assert above.answer_offers(HOME, 0, [offer()]).loan.late_us == 6 * S


def test_when_a_host_dies_the_rest_goes_to_another_and_both_loans_are_counted(town) -> None:
    above, servers, _ = town
    above.answer_offers(HOME, 0, [offer()])
    servers[WEST].units = 5
    above.on_server_death(EAST, 20 * S)
    (second,) = servers[HOME].heard
    assert (second.host, second.offer.epochs, second.offer.now_us) == (WEST, 2, 20 * S)
    assert list(servers[WEST].lent) == [1]
    above.end_loan(HOME, CAM, 40 * S, "arrived", {(WEST, HOME): 45.0})
    assert [(one.number, one.outcome) for one in above.loans] == [(0, "east died"), (1, "arrived")]
    assert above.moved_mb == {THERE: 7.0, (WEST, HOME): 45.0}
    assert servers[WEST].lent == {}


def test_when_who_borrowed_dies_its_hosts_have_their_shares_back(town) -> None:
    above, servers, _ = town
    above.answer_offers(HOME, 0, [offer()])
    above.on_server_death(HOME, 20 * S)
    assert servers[EAST].lent == {}
    (made,) = above.loans
    assert made.outcome == "home died"
    assert made.moved_mb == made.loan.moved_mb(20 * S) != {}
    above.on_server_death(EAST, 30 * S)  # its loan is over already
    assert [one.outcome for one in above.loans] == ["home died"]


@pytest.mark.parametrize("gone", [(HOME, EAST), (EAST, HOME)])
def test_two_servers_that_die_at_once_leave_no_loan_open_in_whatever_order(gone, town) -> None:
    above, servers, _ = town
    above.answer_offers(HOME, 0, [offer()])
    servers[WEST].units = 5
    for site in gone:
        above.on_server_death(site, 20 * S)
    assert all(one.outcome for one in above.loans)
    assert servers[WEST].lent == {}


def test_a_host_that_dies_after_who_borrowed_has_left_ends_the_loan(town) -> None:
    above, servers, _ = town
    above.answer_offers(HOME, 0, [offer()])
    above.remove_server(HOME)
    above.on_server_death(EAST, 20 * S)
    assert [one.outcome for one in above.loans] == ["east died"]
    assert servers[HOME].heard == []


def test_a_server_that_died_and_is_there_again_lends_and_borrows(town) -> None:
    above, servers, _ = town
    for site in (EAST, HOME):
        above.on_server_death(site, 20 * S)
        above.add_borrower(site, servers[site])
        above.add_lender(site, servers[site])
        assert above.answer_offers(HOME, 30 * S, [offer()]).loan.host == EAST


def test_who_only_lends_is_borrowed_of(town) -> None:
    above, servers, _ = town
    above.remove_server(EAST)
    assert above.answer_offers(HOME, 0, [offer()]).loan is None
    above.add_lender(EAST, servers[EAST])
    assert above.answer_offers(HOME, 0, [offer()]).loan.host == EAST


def test_a_loan_that_its_host_refuses_is_written_down_and_offered_again(town) -> None:
    above, servers, records = town
    servers[EAST].refuses = True
    assert above.answer_offers(HOME, 0, [offer()]) == Answer()
    assert records == [(0, "", {}), (0, "refused by its host", {})]
    servers[EAST].refuses = False
    assert above.answer_offers(HOME, S, [offer()]).loan.number == 1


def test_what_a_host_refuses_stays_open_until_it_has_room(town) -> None:
    above, servers, _ = town
    servers[EAST].refuses = True
    assert above.answer_offers(HOME, 0, [offer()]) == Answer()
    servers[EAST].refuses = False
    above.decide_again(2 * S)
    above.decide_again(4 * S)
    assert [(one.loan.host, one.outcome) for one in above.loans] == [
        (EAST, "refused by its host"),
        (EAST, ""),
    ]


def test_where_the_next_host_refuses_what_came_home_is_all(town) -> None:
    above, servers, _ = town
    servers[WEST].units = 5
    loan = above.answer_offers(HOME, 0, [offer()]).loan
    gone, other = (loan.host, WEST if loan.host == EAST else EAST)
    servers[other].refuses = True
    above.on_server_death(gone, 20 * S)
    assert servers[HOME].heard == [f"{other} has refused to go on with it"]
    assert [one.outcome for one in above.loans] == [f"{gone} died", "refused by its host"]


def test_what_nobody_knows_of_any_more_changes_nothing(town) -> None:
    above, _, records = town
    above.end_loan(HOME, CAM, 40 * S, "given up", {})
    above.on_server_death(EAST, 50 * S)
    above.on_server_death(EAST, 60 * S)
    above.remove_server(EAST)
    assert (above.loans, records) == ([], [])
    assert above.answer_offers(HOME, 70 * S, [offer()]).loan is None


def test_the_policy_is_asked_about_all_offers_and_all_that_runs(town) -> None:
    above, servers, _ = town
    above._tier = asked = Asked("andreas")
    servers[EAST].units, servers[WEST].units = 5, 5
    for site in (HOME, EAST, WEST):
        above.answer_offers(site, 0, [offer(StreamId(f"cam-{n}"), site, gain=0.01 * n) for n in range(1, 6)])
    assert [len(market.offers) + len(market.running) for market in asked.markets] == [5, 10, 15]
    assert max(len(market.running) for market in asked.markets) > 0
    keys = [key_of(one) for one in asked.markets[-1].offers]
    assert len(keys) == len(set(keys))


def test_an_offer_that_found_no_room_is_granted_to_its_server_as_soon_as_there_is_some(town) -> None:
    above, servers, _ = town
    servers[EAST].units = 0
    assert above.answer_offers(HOME, 0, [offer()]).loan is None
    above.decide_again(10 * S)
    assert servers[HOME].heard == []
    servers[WEST].units = 5
    above.decide_again(20 * S)
    ((what, loan),) = servers[HOME].heard
    assert (what, loan.host, loan.offer.now_us, loan.offer.arrived_us) == ("granted", WEST, 20 * S, 0)
    assert list(servers[WEST].lent) == [loan.number] == [0]


@pytest.mark.parametrize("closed", ["withdrawn", "replaced", "its window is over", "its server has left"])
def test_an_offer_that_is_closed_gets_nothing(closed, town) -> None:
    above, servers, _ = town
    servers[EAST].units = 0
    above.answer_offers(HOME, 0, [offer()])
    if closed == "withdrawn":
        above.withdraw_offers(HOME, {CAM})
    elif closed == "replaced":
        above.answer_offers(HOME, 10 * S, [])
    elif closed == "its server has left":
        above.remove_server(HOME)
    servers[WEST].units = 5
    above.decide_again(100 * S if closed == "its window is over" else 20 * S)
    assert (servers[HOME].heard, above.loans) == ([], [])


def test_of_several_loans_for_a_server_the_best_is_made_and_the_others_are_offered_again(town) -> None:
    above, servers, _ = town
    servers[EAST].units = 10
    answer = above.answer_offers(
        HOME, 0, [offer(StreamId("small"), gain=0.02), offer(StreamId("large"), gain=0.2)]
    )
    assert answer.loan.offer.stream == "large"
    assert len(above.loans) == 1


def test_a_retraining_that_is_worth_more_stops_one_that_runs(town) -> None:
    above, servers, records = town
    servers[EAST].units = 1
    small = above.answer_offers(HOME, 0, [offer(StreamId("small"), gain=0.01, gpu_s=5.0)]).loan
    answer = above.answer_offers(WEST, S, [offer(StreamId("large"), WEST, gain=0.5, gpu_s=5.0)])
    assert answer.loan.host == small.host == EAST
    assert list(servers[EAST].lent) == [1]
    outcome = above.loans[0].outcome
    assert outcome.startswith("stopped: ")
    assert servers[HOME].heard == [outcome.removeprefix("stopped: ")]
    assert [number for number, outcome, _ in records if outcome] == [0]


def test_what_runs_moves_to_where_the_policy_sees_it_after_its_period(town) -> None:
    above, servers, _ = town
    slow = above.answer_offers(HOME, 0, [offer(gpu_s=6.0)]).loan

    class Moving:
        """Moves the first running loan to ten units of the west."""

        every_us = 10 * S

        def decide(self, market):
            one, west = market.running[0], next(room for room in market.rooms if room.site == WEST)
            rest = one.offer_of_rest(market.now_us)
            return Deal(
                moves={one.number: loan_at(market.now_us, rest, west, 10, market.links, "it is faster")}
            )

    servers[WEST].units = 10
    above._tier = Moving()
    above.decide_if_due(5 * S)
    assert servers[HOME].heard == []  # the period is not over
    above.decide_if_due(10 * S)
    (moved,) = servers[HOME].heard
    assert (slow.host, moved.host) == (EAST, WEST)
    assert moved.arrives_us < slow.arrives_us
    assert [made.outcome for made in above.loans] == ["moved to west", ""]
    assert (list(servers[EAST].lent), list(servers[WEST].lent)) == ([], [1])


def test_a_loan_of_a_server_that_has_left_is_stopped_for_a_better_one(town) -> None:
    above, servers, _ = town
    servers[EAST].units = 1
    above.answer_offers(HOME, 0, [offer(StreamId("small"), gain=0.01, gpu_s=5.0)])
    above.remove_server(HOME)
    large = offer(StreamId("large"), WEST, gain=0.5, gpu_s=5.0)
    assert above.answer_offers(WEST, S, [large]).loan.host == EAST
    assert above.loans[0].outcome.startswith("stopped: ")
    assert list(servers[EAST].lent) == [1]
    assert servers[HOME].heard == []


def test_who_lends_nothing_here_has_no_more_room(town) -> None:
    above, servers, _ = town
    servers[EAST].units = 0
    above.answer_offers(HOME, 0, [offer()])
    servers[EAST].units = 5
    above.more_room(SiteName("elsewhere"), 10 * S)
    assert servers[HOME].heard == []
    above.more_room(EAST, 20 * S)
    assert [said for said, _ in servers[HOME].heard] == ["granted"]


def test_an_offer_that_got_a_loan_is_not_open_again_when_the_loan_is_over(town) -> None:
    above, servers, _ = town
    assert above.answer_offers(HOME, 0, [offer()]).loan is not None
    above.end_loan(HOME, CAM, 40 * S, "arrived", {})
    above.decide_again(41 * S)
    assert (len(above.loans), servers[HOME].heard) == (1, [])


def test_a_loan_that_cannot_be_written_down_is_not_made(town) -> None:
    above, servers, _ = town
    above._record = _full
    with pytest.raises(OSError, match="full"):
        above.answer_offers(HOME, 0, [offer()])
    assert (above.loans, servers[EAST].lent) == ([], {})


def _full(made):
    raise OSError("the disk is full")
