"""The loan desk: shares and loans when servers die, leave or report late."""

import pytest

from ekya.core.configs import RetrainConfig
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.fleet.policy.brokering import Agreed
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import Offer
from ekya.fleet.policy.rooms import Room
from ekya.fleet.policy.tiers import TIERS
from ekya.fleet.run.desk import LoanDesk
from ekya.fleet.run.elsewhere import Interrupted

S = 1_000_000
CAM = StreamId("cam")
HOME, EAST, WEST = map(SiteName, ("home", "east", "west"))
THERE = (HOME, EAST)


class Server:
    """Fake of a server that records the desk's calls; ``lent`` holds its current loans."""

    def __init__(self, site, units):
        self.site, self.units, self.lent, self.heard = site, units, {}, []

    def room(self, now_us, until_us):
        free = self.units - sum(lent.share_milli for lent in self.lent.values()) // 100
        return Room(self.site, 100, (0.0,) * free, LINEAR) if free > 0 else None

    def lend(self, number, lent):
        self.lent[number] = lent

    def take_back(self, number, at_us):
        self.lent.pop(number, None)

    def ask_again(self):
        self.heard.append("ask again")

    def interrupted(self, stream, now_us):
        return Interrupted(2, {THERE: 7.0})

    def go_on(self, stream, loan):
        self.heard.append(loan)

    def fail(self, stream, reason, now_us):
        self.heard.append(reason)


def offer(stream=CAM):
    config = RetrainConfig(4, 16, 0, 1, 1.0)
    return Offer(HOME, stream, config, 4, 10.0, 0.1, 0.0, 0, 100 * S, 300, 1.0, 45.0, 0.1, 45.0)


@pytest.fixture
def town():
    """The desk, its servers by name and its records; home lends nothing, and east is asked first."""
    servers = {HOME: Server(HOME, 0), EAST: Server(EAST, 5), WEST: Server(WEST, 0)}
    records = []
    desk = LoanDesk(
        TIERS["andreas"],
        Links(),
        record=lambda made: records.append((made.number, made.outcome, dict(made.moved_mb))),
        held_until=lambda loan: loan.offer.until_us,
    )
    for site, server in servers.items():
        desk.join(site, server)
    return desk, servers, records


def test_a_share_is_lent_once_and_had_back_when_the_loan_is_over(town) -> None:
    desk, servers, records = town
    loan = desk.agree(0, [offer()]).loan
    assert loan.hosts == (EAST,)
    assert sum(lent.share_milli for lent in servers[EAST].lent.values()) == loan.parts[0].share_milli
    desk.over(HOME, CAM, 40 * S, "arrived", {THERE: 46.0})
    assert servers[EAST].lent == {}
    assert records == [(0, "", {}), (0, "arrived", {THERE: 46.0})]


def test_nobody_lends_more_than_its_room_whoever_asks(town) -> None:
    desk, servers, _ = town
    made = [desk.agree(0, [offer(StreamId(f"cam-{number}"))]).loan for number in range(8)]
    assert 0 < len([loan for loan in made if loan]) < 8
    assert sum(lent.share_milli for lent in servers[EAST].lent.values()) <= 500
    assert [one.number for one in desk.loans] == list(range(len(desk.loans)))


def test_who_finds_no_room_hears_why(town) -> None:
    desk, servers, _ = town
    servers[EAST].units = 0
    assert desk.agree(0, [offer()]) == Agreed(None, {CAM: "no other server has room"})
    servers[EAST].units = 5
    agreed = desk.agree(0, [offer()])
    assert (agreed.loan.hosts, agreed.why_not) == ((EAST,), {})


def test_the_next_loan_is_foreseen_to_be_as_late_as_the_one_before_it_was(town) -> None:
    desk, _, _ = town
    first = desk.agree(0, [offer()]).loan
    desk.over(HOME, CAM, first.arrives_us + 6 * S, "arrived", {})
    second = desk.agree(0, [offer()]).loan
    assert (second.late_us, second.arrives_us) == (6 * S, first.arrives_us + 6 * S)
    desk.over(HOME, CAM, second.arrives_us - 8 * S, "given up", {})
    assert desk.agree(0, [offer()]).loan.late_us == 6 * S


def test_when_a_host_dies_the_rest_goes_to_another_and_both_loans_are_counted(town) -> None:
    desk, servers, _ = town
    desk.agree(0, [offer()])
    servers[WEST].units = 5
    desk.died(EAST, 20 * S)
    (second,) = servers[HOME].heard
    assert (second.hosts, second.offer.epochs, second.offer.now_us) == ((WEST,), 2, 20 * S)
    assert list(servers[WEST].lent) == [1]
    desk.over(HOME, CAM, 40 * S, "arrived", {(WEST, HOME): 45.0})
    assert [(one.number, one.outcome) for one in desk.loans] == [(0, "east died"), (1, "arrived")]
    assert desk.moved_mb == {THERE: 7.0, (WEST, HOME): 45.0}
    assert servers[WEST].lent == {}


def test_what_moves_until_it_is_heard_that_nobody_has_room_is_counted_too(town) -> None:
    desk, servers, _ = town
    desk.agree(0, [offer()])
    desk.died(EAST, 20 * S)
    assert servers[HOME].heard == ["east died, and no other server has room"]
    desk.over(HOME, CAM, 21 * S, "east died, and no other server has room", {THERE: 3.0})
    (made,) = desk.loans
    assert (made.outcome, made.moved_mb) == ("east died", {THERE: 10.0})


def test_what_moves_after_a_loan_was_given_up_is_added_to_it_and_not_to_the_next(town) -> None:
    desk, _, records = town
    desk.agree(0, [offer()])
    desk.over(HOME, CAM, 40 * S, "given up", {THERE: 46.0})
    desk.agree(50 * S, [offer()])
    desk.moved_since(HOME, CAM, {THERE: 4.0})
    desk.moved_since(HOME, CAM, {THERE: 0.0})
    assert records[-1] == (0, "given up", {THERE: 50.0})
    assert [one.outcome for one in desk.loans] == ["given up", ""]


def test_when_who_borrowed_dies_its_hosts_have_their_shares_back(town) -> None:
    desk, servers, _ = town
    desk.agree(0, [offer()])
    desk.died(HOME, 20 * S)
    assert servers[EAST].lent == {}
    (made,) = desk.loans
    assert made.outcome == "home died"
    assert made.moved_mb == made.loan.moved_mb(20 * S) != {}
    desk.died(EAST, 30 * S)  # its loan is over already
    assert [one.outcome for one in desk.loans] == ["home died"]


@pytest.mark.parametrize("gone", [(HOME, EAST), (EAST, HOME)])
def test_two_servers_that_die_at_once_leave_no_loan_open_in_whatever_order(gone, town) -> None:
    desk, servers, _ = town
    desk.agree(0, [offer()])
    servers[WEST].units = 5
    for site in gone:
        desk.died(site, 20 * S)
    assert all(one.outcome for one in desk.loans)
    assert servers[WEST].lent == {}


def test_a_host_that_dies_after_who_borrowed_has_left_ends_the_loan(town) -> None:
    desk, servers, _ = town
    desk.agree(0, [offer()])
    desk.leave(HOME)
    desk.died(EAST, 20 * S)
    assert [one.outcome for one in desk.loans] == ["east died"]
    assert servers[HOME].heard == []


def test_what_nobody_knows_of_any_more_changes_nothing(town) -> None:
    desk, _, records = town
    desk.over(HOME, CAM, 40 * S, "given up", {})
    desk.moved_since(HOME, CAM, {THERE: 1.0})
    desk.died(EAST, 50 * S)
    desk.died(EAST, 60 * S)
    desk.leave(EAST)
    assert (desk.loans, records) == ([], [])
    assert desk.agree(70 * S, [offer()]).loan is None


def test_who_has_more_room_is_said_to_all_others(town) -> None:
    desk, servers, _ = town
    desk.more_room(EAST)
    assert {site: server.heard for site, server in servers.items()} == {
        HOME: ["ask again"],
        EAST: [],
        WEST: ["ask again"],
    }


def test_a_loan_that_cannot_be_written_down_is_not_made(town) -> None:
    desk, servers, _ = town
    desk._record = _full
    with pytest.raises(OSError, match="full"):
        desk.agree(0, [offer()])
    assert (desk.loans, servers[EAST].lent) == ([], {})


def _full(made):
    raise OSError("the disk is full")
