"""Processes that a site lends to trainings of other sites, and how a borrower takes them."""

import subprocess
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from by_hand import ByHand, Doors
from waiting import HANG_GUARD_S

from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import CallError, LocalHandle
from ekya.fleet.run.live import lent_processes, neighbours
from ekya.fleet.run.live.lent_processes import LentProcesses
from ekya.fleet.run.live.neighbours import Neighbours
from ekya.fleet.run.live.orders import Neighbour
from ekya.fleet.run.training.protocol import Host, NoProcessError
from ekya.fleet.run.training.trainer import SILENT_S

NORTH, SOUTH, WEST = map(SiteName, ("north", "south", "west"))


class Process:
    """Handle of an operating-system process, which only sleeps; when ended it dies a moment later."""

    def __init__(self):
        self.popen, self.ended = subprocess.Popen(["sleep", "60"]), False

    def call(self, method):
        answer = Future()
        if self.ended:
            answer.set_exception(CallError("it is dead"))
        else:
            answer.set_result({"pid": self.popen.pid}[method])
        return answer

    def end_process(self):
        self.ended = True
        threading.Timer(0.1, self.popen.kill).start()


class Made:
    """Source of such processes."""

    def __init__(self, *made_of):
        self.made_of, self.idle, self.all = made_of, [], []

    def take_process(self):
        if not self.idle:
            self.idle.append(Process())
            self.all.append(self.idle[-1])
        return self.idle.pop()

    def give_back_process(self, process):
        self.idle.append(process)

    @property
    def ended(self):
        return [process for process in self.all if process.ended]

    def close(self):
        while self.idle:
            self.idle.pop().end_process()


class Town:
    """What north lends, the source of its processes, its doors, and its clock."""

    def __init__(self, backend):
        self.now_s, self.doors = 1000.0, Doors()
        self.lent = LentProcesses("ray node", backend, 1, self.doors, now_s=lambda: self.now_s)
        self.made = self.lent._processes

    def behind(self, reached):
        """Returns the process that others reach so; None where they do not any more."""
        offered = self.doors.offered.get(reached.name)
        return None if offered is None else offered.process


@pytest.fixture
def town(monkeypatch):
    monkeypatch.setattr(lent_processes, "TrainingProcesses", Made)
    monkeypatch.setattr(lent_processes, "_GONE_WITHIN_S", HANG_GUARD_S)
    made = Town("a backend")
    yield made
    for process in made.made.all:
        process.popen.kill()
        process.popen.wait()


def test_processes_are_made_on_this_node_and_gpu_under_the_servers_backend(town) -> None:
    assert town.made.made_of == ("ray node", "a backend", 1)


def test_others_reach_a_process_by_a_name_of_its_own_until_it_is_given_back(town) -> None:
    first, second = town.lent.take_process(SOUTH), town.lent.take_process(WEST)
    assert first.name != second.name
    offered = town.doors.offered[first.name]
    assert offered.call("pid").result(0) == town.behind(first).popen.pid
    waits = town.behind(first)
    town.lent.give_back_process(SOUTH, first)
    assert (list(town.doors.offered), town.made.idle) == ([second.name], [waits])
    again = town.lent.take_process(WEST)
    assert town.behind(again) is waits
    assert again.name != first.name, "who had it before does not reach it"


def test_a_process_that_is_given_back_twice_waits_once(town) -> None:
    process = town.lent.take_process(SOUTH)
    for _ in range(2):
        town.lent.give_back_process(SOUTH, process)
    assert len(town.made.idle) == 1


def test_processes_of_a_dead_servers_guests_end_and_no_others(town) -> None:
    left, kept, others = (
        town.lent.take_process(SOUTH),
        town.lent.take_process(SOUTH),
        town.lent.take_process(WEST),
    )
    waits, ends, works = map(town.behind, (left, kept, others))
    town.lent.give_back_process(SOUTH, left)
    for _ in range(2):
        town.lent.end_of(SOUTH)
        assert (town.made.ended, town.made.idle, list(town.doors.offered)) == (
            [ends],
            [waits],
            [others.name],
        )
    town.lent.give_back_process(WEST, others)
    assert town.made.idle == [waits, works]


def test_who_was_thought_dead_and_gives_a_process_back_gives_nobody_a_dead_one(town) -> None:
    process = town.lent.take_process(SOUTH)
    town.lent.end_of(SOUTH)
    town.lent.give_back_process(SOUTH, process)
    assert town.made.idle == []


@pytest.mark.parametrize("how", ["a call", "taking", "giving back"])
def test_processes_of_a_borrower_that_was_not_heard_end_and_no_others(how, town) -> None:
    lost, kept, back = (
        town.lent.take_process(SOUTH),
        town.lent.take_process(WEST),
        town.lent.take_process(WEST),
    )
    ends = town.behind(lost)
    town.now_s += SILENT_S + 1
    if how == "a call":
        town.doors.offered[kept.name].call("pid")
    elif how == "taking":
        town.lent.take_process(WEST)
    else:
        town.lent.give_back_process(WEST, back)
    town.lent.end_silent()
    assert town.made.ended == [ends]
    assert (town.behind(lost), town.behind(kept).ended) == (None, False)
    town.lent.give_back_process(SOUTH, lost)
    assert ends not in town.made.idle


def test_a_borrower_that_is_silent_for_less_than_that_keeps_its_process(town) -> None:
    town.lent.take_process(SOUTH)
    town.now_s += SILENT_S - 5
    town.lent.end_silent()
    assert town.made.ended == []


def test_when_a_server_is_over_no_process_is_left_none_is_reached_and_none_comes(town) -> None:
    town.lent.warm_process()
    waits, works, gone = (
        town.lent.take_process(SOUTH),
        town.lent.take_process(WEST),
        town.lent.take_process(WEST),
    )
    processes = [town.behind(one) for one in (waits, works, gone)]
    town.lent.give_back_process(SOUTH, waits)
    processes[2].ended = True
    town.lent.close()
    assert set(town.made.ended) == set(processes)
    assert [process.popen.poll() is None for process in processes[:2]] == [False, False]
    assert town.doors.offered == {}
    town.lent.give_back_process(WEST, works)
    with pytest.raises(CallError, match="no guests any more"):
        town.lent.take_process(SOUTH)
    assert [process.ended for process in town.made.all] == [True] * 4


def test_a_process_that_a_borrower_ends_is_ended(town) -> None:
    process = town.lent.take_process(SOUTH)
    ends = town.behind(process)
    town.doors.offered[process.name].end_process()
    assert ends.ended


IN_SOUTH = Host(SOUTH, "s", 300)


class Lender:
    """A server that lends processes."""

    def __init__(self, machine_id, takes=True):
        self._machine, self.takes, self.given_back = machine_id, takes, []

    def take_process(self, borrower):
        if not self.takes:
            raise CallError("no guests any more")
        return f"a process for {borrower}"

    def give_back_process(self, borrower, process):
        self.given_back.append((borrower, process))

    def machine_id(self):
        return self._machine


def met(**hosts):
    """Returns neighbours by site, each with its handle and what identifies its process."""
    made = Neighbours(NORTH)
    made.add_neighbours({SiteName(site): Neighbour(*its) for site, its in hosts.items()})
    return made


def test_a_site_that_was_started_again_is_known_where_it_is_now_and_the_others_stay() -> None:
    known = met(south=("before", "s"), west=("west", "w"))
    known.add_neighbours({SOUTH: Neighbour("now", "s again")})
    assert (known.neighbour_at(SOUTH), known.neighbour_at(WEST)) == (
        Neighbour("now", "s again"),
        Neighbour("west", "w"),
    )
    with pytest.raises(CallError, match="north is not reached"):
        known.neighbour_at(NORTH)


def test_a_machine_is_there_while_its_server_says_so(monkeypatch) -> None:
    monkeypatch.setattr(neighbours, "_SAYS_MACHINE_S", 0.05)
    north, again, silent, dead = (ByHand(Lender(machine), 0) for machine in ("n", "s again", "w", "e"))
    silent.silent = True
    dead.die()
    hosted = met(north=(north, "n"), south=(again, "s"), west=(silent, "w"), east=(dead, "e"))
    asked = ("n", "s", "w", "e", "unknown")
    assert [machine for machine in asked if hosted.is_there(machine)] == ["n"]


def test_a_borrower_takes_a_process_from_a_server_and_gives_it_back_there() -> None:
    host = Lender("s")
    hosted = met(south=(LocalHandle(host, 1), "s"))
    process = hosted.take_process(IN_SOUTH)
    hosted.give_back_process(IN_SOUTH, process)
    assert hosted.is_there("s"), "calls run in order, so the process is back"
    assert host.given_back == [(NORTH, "a process for north")] == [(NORTH, process)]


def test_a_server_that_gives_no_process_away_is_told_apart_from_one_that_is_late(monkeypatch) -> None:
    monkeypatch.setattr(neighbours, "ANSWERS_WITHIN_S", 0.05)
    late = SimpleNamespace(call=lambda *_: Future())
    full = ByHand(Lender("s", takes=False), 0)
    for hosts, why in (
        ({"south": (full, "s")}, "south gives no process away: no guests any more"),
        ({"south": (late, "s")}, "south gives no process away: no answer for 0.05 s"),
        ({}, "south gives no process away: south is not reached"),
    ):
        with pytest.raises(NoProcessError, match=why):
            met(**hosts).take_process(IN_SOUTH)


def test_a_process_of_a_server_that_is_gone_is_given_back_to_nobody() -> None:
    met().give_back_process(IN_SOUTH, "a process")
