"""The coordinator of one service: it borrows of those that lend, and what it learns outlives a restart."""

import json

import pytest
from peers_by_hand import CAM, EAST, HOME, WEST, S, Server, offer
from waiting import wait_until

from ekya.core.errors import UserError
from ekya.fleet.policy.registry import TIERS
from ekya.fleet.run.live import own_coordinator
from ekya.fleet.run.live.own_coordinator import OwnCoordinator


class Lender(Server):
    """A service that lends, and is ``off`` or not."""

    def __init__(self, site, units=5):
        super().__init__(site, units)
        self.off, self.asked, self.closed, self.mb_s = False, [], False, 100.0

    def spare_room(self, now_us, until_us):
        self.asked.append(until_us)
        return None if self.off else super().spare_room(now_us, until_us)

    def close(self):
        self.closed = True


@pytest.fixture
def town(tmp_path, monkeypatch):
    """Makes the coordinator of home, with lenders; all are closed at the end."""
    monkeypatch.setattr(own_coordinator, "LOOKS_EVERY_S", 0.001)
    monkeypatch.setattr(own_coordinator, "Lender", Lender)
    made = []

    def make(*lenders, tier="net"):
        above = OwnCoordinator(HOME, lenders, TIERS[tier], 0, tmp_path / "loans.jsonl", lambda: 5 * S)
        made.append(above)
        home = Server(HOME, 0)
        above.open_for(home)
        wait_until(lambda: above._rooms.keys() >= {one.site for one in lenders if one.units and not one.off})
        return above, home

    yield make
    for above in made:
        above.close()


def records(folder):
    return [json.loads(line) for line in (folder / "loans.jsonl").read_text().splitlines()]


def test_what_is_offered_is_borrowed_of_who_has_room(town, tmp_path) -> None:
    above, _ = town(east := Lender(EAST), Lender(WEST, 0))
    loan = above.coordinator.answer_offers(HOME, 5 * S, [offer()]).loan
    assert (loan.host, east.lent[loan.number].to_us) == (EAST, 100 * S)
    wait_until(lambda: 100 * S in east.asked, "it is asked for the window of the offer")
    above.coordinator.end_loan(HOME, CAM, 40 * S, "arrived", {})
    assert east.lent == {}
    assert [one.get("outcome") for one in records(tmp_path)] == [None, "arrived"]


def test_an_offer_that_found_no_room_is_granted_when_there_is_some(town) -> None:
    east = Lender(EAST)
    east.off = True
    above, home = town(east)
    assert above.coordinator.answer_offers(HOME, 5 * S, [offer()]).loan is None
    east.off = False
    wait_until(lambda: home.heard)
    ((said, loan),) = home.heard
    assert (said, loan.host) == ("granted", EAST)


def test_a_host_that_is_lost_is_left_for_another_and_may_lend_again(town) -> None:
    above, home = town(east := Lender(EAST), west := Lender(WEST))
    first = above.coordinator.answer_offers(HOME, 5 * S, [offer()]).loan.host
    lost, other = (east, west) if first == EAST else (west, east)
    lost.off = True
    above.lose_host(first)
    assert [one.host for one in home.heard] == [other.site]
    other.off, lost.off = True, False
    wait_until(lambda: list(above._rooms) == [first])
    above.lose_host(other.site)
    assert home.heard[-1].host == first


def test_where_nobody_else_has_room_what_came_home_is_all(town) -> None:
    above, home = town(Lender(EAST))
    above.coordinator.answer_offers(HOME, 5 * S, [offer()])
    above.lose_host(EAST)
    assert home.heard == ["east died, and no other server has room"]


def test_loans_of_a_service_that_was_killed_are_lost_and_no_number_is_given_twice(town, tmp_path) -> None:
    above, _ = town(Lender(EAST))
    above.coordinator.answer_offers(HOME, 5 * S, [offer()])
    again, _ = town(Lender(EAST))
    assert records(tmp_path)[-1]["outcome"] == "lost with the coordinator"
    assert again.coordinator.answer_offers(HOME, 6 * S, [offer()]).loan.number == 1


def test_what_loans_have_brought_is_known_after_a_restart(town) -> None:
    above, _ = town(Lender(EAST))
    for number in range(4):
        loan = above.coordinator.answer_offers(HOME, 5 * S, [offer()]).loan
        above.coordinator.end_loan(HOME, CAM, 40 * S, "arrived", {})
        above.coordinator.record_gain(loan, 0.0, None)
        assert loan.number == number
    before = above.coordinator.would_get(5 * S, offer())
    above.close()
    again, _ = town(Lender(EAST))
    assert again.coordinator.would_get(5 * S, offer()) == before
    assert before.loan is None or before.loan.brings < before.loan.promises


def test_a_full_disk_lends_nothing_and_ends_a_loan_all_the_same(town, caplog) -> None:
    above, _ = town(east := Lender(EAST))
    loan, whole = above.coordinator.answer_offers(HOME, 5 * S, [offer()]).loan, above._file
    above._file = _full
    above.coordinator.end_loan(HOME, CAM, 40 * S, "arrived", {})
    with pytest.raises(UserError, match="the disk is full"):
        above.coordinator.answer_offers(HOME, 41 * S, [offer()])
    assert (loan.host, east.lent) == (EAST, {})
    assert "the end of a loan is not recorded: the disk is full" in caplog.text
    above._file = whole


def _full(made):
    raise UserError("the disk is full")


def test_its_lenders_are_closed_with_it(town) -> None:
    above, _ = town(east := Lender(EAST))
    above.close()
    above.close()
    assert east.closed
