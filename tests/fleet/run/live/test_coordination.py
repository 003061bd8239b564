"""Servers and their coordinator, when one of them is dead, silent, cut off or started again."""

import queue
import threading
from dataclasses import replace

import peers_by_hand
import pytest
from by_hand import ByHand
from peers_by_hand import CAM, EAST, HOME, WEST, S
from waiting import HANG_GUARD_S, wait_until

from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.registry import TIERS
from ekya.fleet.run.lending import Answer
from ekya.fleet.run.live import coordination
from ekya.fleet.run.live.coordination import RemoteCoordinator, RemotePeer, live_coordinator
from ekya.fleet.run.loan_file import UNDER_WAY, read_loans

OTHER_CAM = StreamId("other cam")
SITES = (HOME, EAST, WEST)
OFFER = peers_by_hand.offer()
OTHER = replace(OFFER, stream=OTHER_CAM)
LOST = "lost with the coordinator"


class Server(peers_by_hand.Server):
    """A server whose ``spare_room`` replies once ``answers`` is set; ``granted`` has loans pushed to it."""

    def __init__(self, site, units):
        super().__init__(site, units)
        self.granted, self.answers = queue.Queue(), threading.Event()
        self.answers.set()

    def spare_room(self, now_us, until_us):
        assert self.answers.wait(HANG_GUARD_S)
        return super().spare_room(now_us, until_us)

    def grant_loan(self, loan):
        self.granted.put(loan)


class Town:
    """The coordinator and three servers, of which only east can lend.

    Attributes:
        loans: the file of loans.
        tier: name of the policy that decides.
    """

    def __init__(self, loans, tier="andreas"):
        self.loans, self.tier, self.servers = loans, tier, {}

    def begin(self, threads):
        self.coordinator = ByHand(self.new_coordinator(), 1)
        for site, units in zip(SITES, (0, 5, 0), strict=True):
            self.servers[site] = ByHand(Server(site, units), threads)
            self.coordinator.call("add_server", site, RemotePeer(self.servers[site]))

    def __getitem__(self, site):
        return self.servers[site].kept

    def new_coordinator(self):
        there = {site: RemotePeer(server) for site, server in self.servers.items() if not server.dead}
        return live_coordinator(TIERS[self.tier], Links(), 0, self.loans, there)

    def starts_again(self):
        """The coordinator dies, and is started again."""
        self.coordinator.die()
        self.coordinator.begin_again(self.new_coordinator())

    def server(self):
        """A server's client of the coordinator."""
        return RemoteCoordinator(self.coordinator)

    def handled(self):
        """Returns when the coordinator has handled all that it was asked and told."""
        self.coordinator.call("wait_for_earlier_calls").result(HANG_GUARD_S)

    def outcomes(self):
        return [made.outcome for made in read_loans(self.loans)]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Everybody waits for what comes at all, however long it takes."""
    for limit in ("ANSWERS_WITHIN_S", "ROOMS_WITHIN_S", "HEARD_WITHIN_S", "DECIDES_WITHIN_S", "REPEATS_S"):
        monkeypatch.setattr(coordination, limit, HANG_GUARD_S)
    monkeypatch.setattr(coordination, "REPEATS_EVERY_S", 0.01)


@pytest.fixture
def new_town(tmp_path):
    """Makes a town whose coordinator decides by a tier."""

    def make(tier="andreas", threads=0):
        town = Town(tmp_path / "loans.jsonl", tier)
        town.begin(threads)
        return town

    return make


@pytest.fixture
def town(new_town):
    return new_town()


def test_a_loan_is_agreed_ended_and_written_down(town) -> None:
    server = town.server()
    loan = server.answer_offers(HOME, 0, [OFFER]).loan
    assert (loan.host, loan.number) == (EAST, 0)
    # The loan's duration is unknown, so the share is held until the window ends.
    assert [lent.to_us for lent in town[EAST].lent.values()] == [100 * S]
    server.end_loan(HOME, CAM, 40 * S, "given up", {(HOME, EAST): 46.0})
    server.add_later_traffic(HOME, CAM, {(HOME, EAST): 1.0})
    server.wait_heard()
    assert town[EAST].lent == {}
    (made,) = read_loans(town.loans)
    assert (made.outcome, made.moved_mb) == ("given up", {(HOME, EAST): 47.0})


@pytest.mark.parametrize("how", ["dead", "silent"])
def test_a_server_that_does_not_answer_has_no_room_and_holds_up_no_other(how, town, monkeypatch) -> None:
    for limit in ("ANSWERS_WITHIN_S", "ROOMS_WITHIN_S"):
        monkeypatch.setattr(coordination, limit, 0.05)
    setattr(town.servers[EAST], how, True)
    answer = town.server().answer_offers(HOME, 0, [OFFER])
    assert answer == Answer(None, {CAM: "no other server has room"})
    town[WEST].units = 5
    assert town.server().answer_offers(HOME, 0, [OFFER]).loan.host == WEST


def test_all_servers_are_asked_for_their_room_at_the_same_time(new_town) -> None:
    town, together = new_town(threads=len(SITES)), threading.Barrier(len(SITES), timeout=HANG_GUARD_S)

    def room(site, own):
        def answer(now_us, until_us):
            together.wait()
            return own(now_us, until_us)

        town[site].spare_room = answer

    for site in SITES:
        room(site, town[site].spare_room)
    assert town.server().answer_offers(HOME, 0, [OFFER]).loan.host == EAST


def test_without_a_coordinator_a_server_goes_on_by_itself(town, monkeypatch) -> None:
    monkeypatch.setattr(coordination, "ANSWERS_WITHIN_S", 0.05)
    server = town.server()
    town.coordinator.die()
    assert server.answer_offers(HOME, 0, [OFFER]) == Answer()
    server.withdraw_offers(HOME, [CAM])
    server.end_loan(HOME, CAM, S, "arrived", {})
    server.add_later_traffic(HOME, CAM, {})
    server.more_room(S)
    server.wait_heard()


class Slow:
    """A coordinator that records its calls; the first waits until ``go_on``, and ``full`` ones fail."""

    def __init__(self):
        self.heard, self.go_on, self.full = [], threading.Event(), 0

    def _hear(self, *call):
        if not self.heard:
            assert self.go_on.wait(HANG_GUARD_S)
        self.heard.append(call)
        if self.full:
            self.full -= 1
            raise UserError("loans.jsonl: the disk is full")

    def answer_offers(self, site, now_us, offers):
        self._hear("ask", now_us)
        return Answer(None, {CAM: "it was asked"})

    def end_loan(self, site, stream, now_us, outcome, moved_mb):
        self._hear("over", now_us)

    def withdraw_offers(self, site, streams):
        self._hear("withdraw", *streams)

    def more_room(self, now_us):
        self._hear("more room", now_us)

    def wait_for_earlier_calls(self):
        pass


def test_calls_reach_the_coordinator_in_their_order_though_the_first_takes_long() -> None:
    slow = Slow()
    server = RemoteCoordinator(ByHand(slow, 16))
    server.withdraw_offers(HOME, [CAM])
    server.end_loan(HOME, CAM, 1, "arrived", {})
    server.more_room(2)
    server.end_loan(HOME, CAM, 3, "arrived", {})
    assert slow.heard == []
    slow.go_on.set()
    assert server.answer_offers(HOME, 4, [OFFER]).why_not == {CAM: "it was asked"}
    assert slow.heard == [("withdraw", CAM), ("over", 1), ("more room", 2), ("over", 3), ("ask", 4)]


def test_more_room_is_told_once_until_it_was_heard() -> None:
    slow = Slow()
    server = RemoteCoordinator(ByHand(slow, 16))
    for now_us in (1, 2, 3):
        server.more_room(now_us)
    slow.go_on.set()
    server.wait_heard()
    server.more_room(4)
    server.wait_heard()
    assert slow.heard == [("more room", 1), ("more room", 4)]


def test_what_it_must_know_is_repeated_until_it_is_back_and_nothing_is_asked_meanwhile() -> None:
    dead, slow = ByHand(None), Slow()
    slow.go_on.set()
    dead.die()
    server = RemoteCoordinator(dead)
    server.end_loan(HOME, CAM, 1, "arrived", {})
    wait_until(lambda: dead.called.count("end_loan") > 3)
    assert server.answer_offers(HOME, 2, [OFFER]) == Answer()
    server.more_room(3)
    server.reach_at(ByHand(slow, 16))
    wait_until(lambda: len(slow.heard) == 2)
    assert server.answer_offers(HOME, 4, [OFFER]).why_not == {CAM: "it was asked"}
    assert slow.heard == [("over", 1), ("more room", 3), ("ask", 4)]
    assert set(dead.called) == {"end_loan"}


def test_what_nobody_hears_for_long_is_given_up_and_it_asks_again(monkeypatch) -> None:
    monkeypatch.setattr(coordination, "REPEATS_S", 0.05)
    dead = ByHand(None)
    dead.die()
    server = RemoteCoordinator(dead)
    server.end_loan(HOME, CAM, 1, "arrived", {})
    wait_until(lambda: server.answer_offers(HOME, 2, []) == Answer() and "answer_offers" in dead.called)


def test_a_coordinator_whose_disk_is_full_ends_no_server() -> None:
    slow = Slow()
    slow.go_on.set()
    server = RemoteCoordinator(ByHand(slow, 16))
    slow.full = 1
    assert server.answer_offers(HOME, 1, []) == Answer()
    slow.full = 2
    server.end_loan(HOME, CAM, 2, "arrived", {})
    server.wait_heard()
    assert slow.heard == [("ask", 1), *[("over", 2)] * 3]
    assert server.answer_offers(HOME, 3, []).why_not == {CAM: "it was asked"}


def test_at_the_end_nothing_is_repeated_any_more(monkeypatch) -> None:
    monkeypatch.setattr(coordination, "ANSWERS_WITHIN_S", 0.05)
    dead = ByHand(None)
    dead.die()
    server = RemoteCoordinator(dead)
    server.end_loan(HOME, CAM, 1, "arrived", {})
    wait_until(lambda: "end_loan" in dead.called)
    server.wait_heard()
    wait_until(lambda: "wait_for_earlier_calls" in dead.called)
    repeated = dead.called.count("end_loan")
    server.end_loan(HOME, CAM, 2, "arrived", {})
    wait_until(lambda: dead.called.count("end_loan") == repeated + 1)
    server.answer_offers(HOME, 3, [])
    assert dead.called[-1] == "answer_offers", "the call before was not repeated"


def test_a_loan_that_is_agreed_on_too_late_for_who_asked_holds_no_share(town, monkeypatch) -> None:
    monkeypatch.setattr(coordination, "DECIDES_WITHIN_S", 0.05)
    town[EAST].answers.clear()
    server = town.server()
    assert server.answer_offers(HOME, 0, [OFFER]) == Answer()
    monkeypatch.setattr(coordination, "DECIDES_WITHIN_S", HANG_GUARD_S)
    assert server.answer_offers(HOME, S, [OFFER]) == Answer(), "it does not wait again for one that is silent"
    assert town.coordinator.called.count("answer_offers") == 1
    town[EAST].answers.set()
    server.wait_heard()
    assert town[EAST].lent == {}
    assert town.outcomes() == ["given up"]
    assert server.answer_offers(HOME, 2 * S, [OFFER]).loan is not None


def test_a_coordinator_that_dies_while_it_is_slow_is_asked_again_when_it_is_back(town, monkeypatch) -> None:
    monkeypatch.setattr(coordination, "DECIDES_WITHIN_S", 0.05)
    server = town.server()
    town.coordinator.silent = True
    assert server.answer_offers(HOME, 0, [OFFER]) == Answer()
    monkeypatch.setattr(coordination, "DECIDES_WITHIN_S", HANG_GUARD_S)
    town.coordinator.silent = False
    town.coordinator.die()
    assert server.answer_offers(HOME, S, [OFFER]) == Answer(), "it is not there yet"
    town.starts_again()
    answers = []
    wait_until(lambda: answers.append(server.answer_offers(HOME, 2 * S, [OFFER])) or answers[-1].loan)
    assert answers[-1].loan.host == EAST


def test_a_host_and_who_borrowed_die_and_the_coordinator_goes_on(town) -> None:
    assert town.server().answer_offers(HOME, 0, [OFFER]).loan is not None
    assert town.outcomes() == [UNDER_WAY]
    town.servers[HOME].die()
    town.servers[EAST].die()
    town.coordinator.call("on_server_death", EAST, 10 * S).result(HANG_GUARD_S)
    town.coordinator.call("on_server_death", HOME, 11 * S).result(HANG_GUARD_S)
    assert town.outcomes() == ["east died"]


def refused(town, *offers):
    """A server whose offers were refused, because nobody had room; now east has."""
    server = town.server()
    town[EAST].units = 0
    assert server.answer_offers(HOME, 0, offers).loan is None
    town[EAST].units = 5
    return server


def test_an_offer_stays_open_and_its_server_is_granted_a_loan_when_there_is_room(town) -> None:
    server = refused(town, OFFER)
    server.more_room(20 * S)
    granted = town[HOME].granted.get(timeout=HANG_GUARD_S)
    assert (granted.host, granted.offer.stream, granted.offer.now_us) == (EAST, CAM, 20 * S)
    assert (list(town[EAST].lent), town.outcomes()) == ([granted.number], [UNDER_WAY])
    server.more_room(21 * S)
    server.wait_heard()
    assert town[HOME].granted.empty(), "it is granted once"


def test_what_begins_at_home_meanwhile_is_granted_no_loan(town) -> None:
    server = refused(town, OFFER, OTHER)
    server.withdraw_offers(HOME, [CAM])
    server.more_room(20 * S)
    server.wait_heard()
    assert town[HOME].granted.get(timeout=HANG_GUARD_S).offer.stream == OTHER_CAM
    assert town.outcomes() == [UNDER_WAY]


def test_who_has_died_or_left_is_granted_no_loan(town) -> None:
    server = refused(town, OFFER)
    town.coordinator.call("remove_server", HOME)
    server.more_room(20 * S)
    town.handled()
    assert town.outcomes() == []
    assert town[HOME].granted.empty()


def test_a_grant_to_a_server_that_does_not_answer_holds_nobody_up(town, monkeypatch) -> None:
    monkeypatch.setattr(coordination, "ROOMS_WITHIN_S", 0.05)
    server = refused(town, OFFER)
    town.servers[HOME].silent = True
    town.coordinator.call("more_room", 20 * S).result(HANG_GUARD_S)
    assert town.outcomes() == [UNDER_WAY]
    town.servers[HOME].die()
    town.coordinator.call("on_server_death", HOME, 30 * S).result(HANG_GUARD_S)
    assert (town[EAST].lent, town.outcomes()) == ({}, ["home died"])
    server.wait_heard()


@pytest.mark.parametrize(("tier", "decides_us"), [("andreas", 10 * S), ("net", None)])
def test_as_time_passes_it_decides_again_if_its_policy_wants_that(tier, decides_us, new_town) -> None:
    town = new_town(tier)
    refused(town, OFFER)
    for now_us in (9 * S, 10 * S):
        town.coordinator.call("decide_if_due", now_us)
        town.handled()
        assert town.outcomes() == ([UNDER_WAY] if decides_us == now_us else [])


def test_started_again_it_goes_on_with_what_still_runs(town) -> None:
    server = town.server()
    first = server.answer_offers(HOME, 0, [OFFER]).loan
    town[HOME].loans = [first]
    town.starts_again()
    assert (list(town[EAST].lent), town.outcomes()) == ([0], [UNDER_WAY])
    assert server.answer_offers(HOME, S, [OFFER]) == Answer(), "it has its loan"
    second = server.answer_offers(HOME, 2 * S, [OTHER]).loan
    assert second.number == 1
    assert sum(lent.share_milli for lent in town[EAST].lent.values()) <= 500
    server.end_loan(HOME, CAM, 40 * S, "arrived", {(HOME, EAST): 46.0})
    server.wait_heard()
    assert list(town[EAST].lent) == [1]
    assert town.outcomes() == ["arrived", UNDER_WAY]
    assert read_loans(town.loans)[0].moved_mb == {(HOME, EAST): 46.0}


def test_what_it_had_agreed_and_nobody_heard_of_is_lost_and_its_share_is_given_back(town) -> None:
    town.server().answer_offers(HOME, 0, [OFFER])
    town.starts_again()
    assert (town[EAST].lent, town.outcomes()) == ({}, [LOST])
    loan = town.server().answer_offers(HOME, S, [OFFER]).loan
    assert (loan.number, loan.host) == (1, EAST), "no number is given twice"


def test_started_again_it_leaves_what_was_over_as_it_was(town) -> None:
    server = town.server()
    server.answer_offers(HOME, 0, [OFFER])
    server.end_loan(HOME, CAM, 40 * S, "arrived", {})
    server.wait_heard()
    town.starts_again()
    town.starts_again()
    assert town.outcomes() == ["arrived"]


def test_started_again_it_lets_the_rest_of_a_dead_hosts_work_go_on(town) -> None:
    first = town.server().answer_offers(HOME, 0, [OFFER]).loan
    town[HOME].loans, moved = [first], []
    town[HOME].continue_training = lambda stream, loan: moved.append(loan)
    town.starts_again()
    town[WEST].units = 5
    town.servers[EAST].die()
    town.coordinator.call("on_server_death", EAST, 20 * S).result(HANG_GUARD_S)
    (second,) = moved
    assert (second.number, second.host, second.offer.epochs) == (1, WEST, 2)
    assert town.outcomes() == ["east died", UNDER_WAY]


def test_started_again_it_finds_servers_that_have_died_neither_as_hosts_nor_as_borrowers(town) -> None:
    town[HOME].loans = [town.server().answer_offers(HOME, 0, [OFFER]).loan]
    town.servers[HOME].die()
    town.starts_again()
    assert (town[EAST].lent, town.outcomes()) == ({}, [LOST])


def test_a_loan_whose_record_a_crash_has_cut_off_was_never_made(town) -> None:
    """A cut of the newline alone leaves a line that can be read, and must not count either."""
    town.server().answer_offers(HOME, 0, [OFFER])
    whole = town.loans.read_bytes()
    for cut in (1, 2, 40):
        town.loans.write_bytes(whole[: len(whole) - cut])
        town.starts_again()
        assert town.outcomes() == []
        assert town.server().answer_offers(HOME, S, [OFFER]).loan.number == 0
        assert town.loans.read_bytes().endswith(b"\n")


def test_an_end_whose_record_a_crash_has_cut_off_is_recorded_anew(town) -> None:
    server = town.server()
    server.answer_offers(HOME, 0, [OFFER])
    server.end_loan(HOME, CAM, 40 * S, "arrived", {})
    server.wait_heard()
    town.loans.write_bytes(town.loans.read_bytes()[:-1])
    town.starts_again()
    assert town.outcomes() == [LOST]


def test_started_again_it_expects_of_a_server_what_its_loans_have_brought(town) -> None:
    server = town.server()
    loan = server.answer_offers(HOME, 0, [OFFER]).loan
    server.end_loan(HOME, CAM, loan.arrives_us + 3 * S, "arrived", {})
    server.record_gain(loan, 0.0, 2 * S)
    server.wait_heard()
    assert [made.came for made in read_loans(town.loans)] == [0.0]
    town.starts_again()
    again = server.answer_offers(HOME, 10 * S, [OFFER]).loan
    assert (again.late_us, again.offer.serves_after_us) == (3 * S, 2 * S)
    assert again.offer.margin == pytest.approx(4 / 9)
