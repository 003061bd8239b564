"""Servers and their desk over Ray calls, when one of them is dead or silent."""

import threading

import pytest
from threads_for_actors import Actor, Ray

from ekya.core.configs import RetrainConfig
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.fleet.policy.brokering import Agreed
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import Offer
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.elsewhere import Interrupted
from ekya.fleet.run.live import desk_actor
from ekya.fleet.run.live.desk_actor import DeskActor, RemoteTier
from ekya.fleet.run.loan_file import UNDER_WAY, read_loans

S = 1_000_000
CAM = StreamId("cam")
HOME, EAST = SiteName("home"), SiteName("east")
OFFER = Offer(
    HOME, CAM, RetrainConfig(4, 16, 0, 1, 1.0), 4, 10.0, 0.1, 0.0, 0, 100 * S, 300, 1.0, 45.0, 0.1, 45.0
)


class Server:
    """Fake of a server as the desk calls it; ``room`` replies once ``answers`` is set."""

    def __init__(self, units):
        self.units, self.lent, self.heard, self.answers = units, {}, [], threading.Event()
        self.answers.set()

    def room(self, now_us, until_us):
        assert self.answers.wait(10)
        return Room(EAST, 100, (0.0,) * self.units, LINEAR) if self.units else None

    def lend(self, number, lent):
        self.lent[number] = lent

    def take_back(self, number, at_us):
        del self.lent[number]

    def interrupted(self, stream, now_us):
        return Interrupted(2, {(HOME, EAST): 7.0})

    def fail(self, stream, reason, now_us):
        self.heard.append(reason)


@pytest.fixture
def loans(tmp_path):
    return tmp_path / "loans.jsonl"


@pytest.fixture
def town(monkeypatch, loans):
    """The desk and the actors of two servers; home has no spare capacity."""
    monkeypatch.setattr(desk_actor, "ray", Ray)
    monkeypatch.setattr(desk_actor, "ANSWERS_WITHIN_S", 0.2)
    desk = Actor(DeskActor("andreas", Links(), 0, loans), 1)
    home, east = Actor(Server(0)), Actor(Server(5))
    for site, server in ((HOME, home), (EAST, east)):
        desk.join.remote(site, server)
    return desk, home, east


def test_a_loan_is_agreed_ended_and_written_down(town, loans) -> None:
    desk, _, east = town
    tier = RemoteTier(desk)
    loan = tier.agree(0, [OFFER]).loan
    assert loan.hosts == (EAST,)
    # The loan's duration is unknown, so the share is held until the window ends.
    assert [lent.to_us for lent in east.kept.lent.values()] == [100 * S]
    tier.over(HOME, CAM, 40 * S, "given up", {(HOME, EAST): 46.0})
    tier.moved_since(HOME, CAM, {(HOME, EAST): 1.0})
    tier.wait_heard()
    assert east.kept.lent == {}
    (made,) = read_loans(loans)
    assert (made.outcome, made.moved_mb) == ("given up", {(HOME, EAST): 47.0})


@pytest.mark.parametrize("how", ["dead", "silent"])
def test_a_server_that_does_not_answer_has_no_room(how, town) -> None:
    desk, _, east = town
    setattr(east, how, True)
    assert RemoteTier(desk).agree(0, [OFFER]).loan is None


def test_without_a_desk_a_server_goes_on_by_itself(town) -> None:
    desk, _, _ = town
    tier = RemoteTier(desk)
    desk.die()
    assert tier.agree(0, [OFFER]) == Agreed()
    tier.over(HOME, CAM, S, "arrived", {})
    tier.more_room(HOME)
    tier.wait_heard()


def test_a_loan_that_is_agreed_on_too_late_for_who_asked_holds_no_share(town, loans, monkeypatch) -> None:
    desk, _, east = town
    monkeypatch.setattr(desk_actor, "AGREES_WITHIN_S", 0.05)
    monkeypatch.setattr(desk_actor, "ANSWERS_WITHIN_S", 10.0)
    east.kept.answers.clear()
    tier = RemoteTier(desk)
    assert tier.agree(0, [OFFER]) == Agreed()
    monkeypatch.setattr(desk_actor, "AGREES_WITHIN_S", 10.0)
    assert tier.agree(S, [OFFER]) == Agreed(), "it does not wait again for a desk that is silent"
    east.kept.answers.set()
    tier.wait_heard()
    assert east.kept.lent == {}
    assert [made.outcome for made in read_loans(loans)] == ["given up"]
    assert tier.agree(2 * S, [OFFER]).loan is not None


def test_a_host_and_who_borrowed_die_and_the_desk_goes_on(town, loans) -> None:
    desk, home, east = town
    assert RemoteTier(desk).agree(0, [OFFER]).loan is not None
    assert [made.outcome for made in read_loans(loans)] == [UNDER_WAY]
    home.die()
    east.die()
    desk.died.remote(EAST, 10 * S).result(10)
    desk.died.remote(HOME, 11 * S).result(10)
    assert [made.outcome for made in read_loans(loans)] == ["east died"]
