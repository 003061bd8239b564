"""A server as others reach it, before it runs and when it is stopped; and the processes that it hands out."""

import threading
import time
from types import SimpleNamespace

import pytest

from ekya.config import RunOptions
from ekya.fleet.policy.names import SiteName
from ekya.fleet.run.live import hosted_processes
from ekya.fleet.run.live.hosted_processes import GuestProcesses
from ekya.fleet.run.live.server_actor import ServerActor
from ekya.fleet.run.server import ServerTerms

NORTH, SOUTH, WEST = map(SiteName, ("north", "south", "west"))
SECOND_NS = 1_000_000_000


@pytest.fixture
def actor(tmp_path):
    server = SimpleNamespace(
        terms=ServerTerms(NORTH, crops_may_leave=False), fleet=SimpleNamespace(scheduler="ekya")
    )
    return ServerActor(server, tmp_path, RunOptions(), None, {})


def begins(actor):
    """What its run is told, as soon as it waits for the others."""
    told = []
    thread = threading.Thread(target=lambda: told.append(actor._begins()))
    thread.start()
    assert actor.wait_ready()
    return thread, told


def test_it_begins_when_it_is_told_by_everybodys_clock(actor) -> None:
    thread, told = begins(actor)
    now_ns = time.monotonic_ns()
    actor.begin(time.time_ns() + SECOND_NS, {SOUTH: "its actor"})
    thread.join()
    ((begin_ns, servers),) = told
    assert abs(begin_ns - now_ns - SECOND_NS) < SECOND_NS / 2
    assert servers == {SOUTH: "its actor"}


def test_who_is_stopped_before_anybody_begins_begins_now_and_not_in_1970(actor) -> None:
    actor.stop()
    thread, told = begins(actor)
    thread.join()
    ((begin_ns, _),) = told
    assert abs(begin_ns - time.monotonic_ns()) < SECOND_NS


def test_one_that_will_never_run_says_so_to_who_waits(actor) -> None:
    actor._server.fleet.classes = "nothing that could be opened"
    with pytest.raises(AttributeError):
        actor.run()
    assert not actor.wait_ready()


def test_before_it_runs_nobody_finds_room_or_a_process(actor) -> None:
    assert actor.room(0) is None
    with pytest.raises(LookupError, match="takes no guests yet"):
        actor.take_process(SOUTH)
    actor.other_died(SOUTH)


class Made:
    """Processes that are numbers."""

    def __init__(self, backend):
        self.idle, self.ended, self.count = [], [], 0

    def take(self, node):
        self.count += 1
        return self.idle.pop() if self.idle else self.count

    def give_back(self, node, actor):
        self.idle.append(actor)

    def end(self, actor):
        self.ended.append(actor)


@pytest.fixture
def guests(monkeypatch):
    monkeypatch.setattr(hosted_processes, "Processes", Made)
    return GuestProcesses(NORTH, "n", None)


def test_processes_of_a_dead_servers_guests_end_and_no_others(guests) -> None:
    left, kept, others = guests.take(SOUTH), guests.take(SOUTH), guests.take(WEST)
    guests.give_back(SOUTH, left)
    guests.end_of(SOUTH)
    assert (guests._processes.ended, guests._processes.idle) == ([kept], [left])
    guests.end_of(SOUTH)
    assert guests._processes.ended == [kept]
    guests.give_back(WEST, others)
    assert guests._processes.idle == [left, others]


def test_who_was_thought_dead_and_gives_a_process_back_gives_nobody_a_dead_one(guests) -> None:
    process = guests.take(SOUTH)
    guests.end_of(SOUTH)
    guests.give_back(SOUTH, process)
    assert guests._processes.idle == []
