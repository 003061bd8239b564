"""A server's Ray actor: before its run, when it is stopped, and the processes that it provides."""

import subprocess
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from inspect import signature
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from byhand import OPTIONS
from threads_for_actors import Actor, Ray

from ekya.config.run_options import RunOptions
from ekya.core.errors import UserError
from ekya.fleet.policy.names import NodeName, SiteName
from ekya.fleet.run.live import hosted_processes, server_actor
from ekya.fleet.run.live.hosted_processes import GuestProcesses, HostedProcesses
from ekya.fleet.run.live.server_actor import ServerActor
from ekya.fleet.run.server import ServerTerms
from ekya.fleet.run.training.processes import NoProcessError
from ekya.fleet.run.training.protocol import FleetNode
from ekya.gpu.backends.registry import ChosenBackend
from ekya.runtime.open_run import OpenRun

NORTH, SOUTH, WEST = map(SiteName, ("north", "south", "west"))
SECOND_NS = 1_000_000_000


@pytest.fixture
def actor(tmp_path):
    server = SimpleNamespace(
        terms=ServerTerms(NORTH, crops_may_leave=False), fleet=SimpleNamespace(scheduler="ekya")
    )
    return ServerActor(server, tmp_path, RunOptions(), None, {NORTH: "n"})


def begins(actor):
    """Waits for the common start in a thread; returns the thread and a list that receives the start."""
    told = []
    thread = threading.Thread(target=lambda: told.append(actor._begins()))
    thread.start()
    assert actor.wait_ready()
    return thread, told


def test_it_begins_when_it_is_told_by_everybodys_clock(actor) -> None:
    thread, told = begins(actor)
    now_ns = time.monotonic_ns()
    actor.begin(SECOND_NS, {SOUTH: "its actor"})
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
    assert actor.room(0, 0) is None
    with pytest.raises(LookupError, match="takes no guests yet"):
        actor.take_process(SOUTH)
    actor.other_died(SOUTH)


def test_before_it_runs_it_has_no_loans_and_is_asked_and_told_in_vain(actor) -> None:
    assert (list(actor.borrowed()), list(actor.lends())) == ([], [])
    for tell in (actor.grant, actor.lend, actor.take_back, actor.go_on, actor.fail):
        tell(*[None] * (len(signature(tell).parameters)))
    assert actor.interrupted(None, 0) is None


def test_while_it_runs_the_coordinator_reaches_its_loans_through_it(actor) -> None:
    lending = Mock()
    actor._above = SimpleNamespace(lending=lending)
    lending.borrowed.return_value, lending.lends.return_value = ["a loan"], {3}
    assert (actor.borrowed(), actor.lends()) == (["a loan"], {3})
    told = {
        "room": (1, 2),
        "lend": (7, "a share"),
        "take_back": (7, 5),
        "grant": ("a loan",),
        "interrupted": ("cam", 5),
        "go_on": ("cam", "a loan"),
        "fail": ("cam", "why", 5),
    }
    for name, arguments in told.items():
        getattr(actor, name)(*arguments)
        getattr(lending, name).assert_called_once_with(*arguments)


class Process(Actor):
    """An actor in a real operating-system process, which only sleeps."""

    def __init__(self):
        super().__init__(self)
        self.popen = subprocess.Popen(["sleep", "60"])

    def pid_(self):
        return self.popen.pid

    def call(self, name, arguments):
        return super().call(name + "_", arguments)


class Made:
    """Source of such processes; an ended process dies a moment later, as with Ray."""

    def __init__(self, backend):
        self.backend, self.nodes, self.idle, self.ended, self.all = backend, [], [], [], []

    def take(self, node):
        self.nodes.append(node)
        if not self.idle:
            self.idle.append(Process())
            self.all.append(self.idle[-1])
        return self.idle.pop()

    def give_back(self, node, actor):
        self.idle.append(actor)

    def end(self, actor):
        self.ended.append(actor)
        actor.dead = True
        threading.Timer(0.1, actor.popen.kill).start()

    def close(self):
        while self.idle:
            self.end(self.idle.pop())


@pytest.fixture
def processes(monkeypatch):
    """The sources of guests' processes, in the order in which servers were made."""
    made = []

    def make(backend):
        made.append(Made(backend))
        return made[-1]

    monkeypatch.setattr(hosted_processes, "Processes", make)
    monkeypatch.setattr(hosted_processes, "ray", Ray)
    yield made
    for one in made:
        for process in one.all:
            process.popen.kill()
            process.popen.wait()


@pytest.fixture
def guests(processes):
    return GuestProcesses(NORTH, "n", None, 0)


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


def test_when_a_server_is_over_no_guests_process_is_left_and_none_comes(guests) -> None:
    guests.warm()
    waits, works, gone = guests.take(SOUTH), guests.take(WEST), guests.take(WEST)
    guests.give_back(SOUTH, waits)
    gone.die()
    guests.close()
    assert set(guests._processes.ended) == {waits, works, gone}
    assert [process.popen.poll() is None for process in (waits, works)] == [False, False]
    guests.give_back(WEST, works)
    with pytest.raises(LookupError, match="no guests any more"):
        guests.take(SOUTH)
    assert [process.dead for process in guests._processes.all] == [True] * 4


class Shares:
    """A backend that records when it opens, and how many guests are alive when it closes."""

    def __init__(self):
        self.told, self.guests = [], []

    @contextmanager
    def open(self, gpus):
        self.told.append(f"opened for {gpus}")
        try:
            yield self
        finally:
            living = [guest for guest in self.guests if guest.popen.poll() is None]
            self.told.append(f"closed upon {len(living)} of {len(self.guests)}")


def test_a_servers_jobs_and_its_guests_are_held_by_one_backend_and_gone_before_it(
    actor, processes, monkeypatch
) -> None:
    shares = Shares()
    backend = ChosenBackend("fake", shares, None, ())
    run = OpenRun(None, None, None, replace(OPTIONS, capacity_milli=2000), backend, None, None)
    probe = SimpleNamespace(result=lambda: None)
    monkeypatch.setattr(server_actor, "choose_backend", lambda shares: backend)
    monkeypatch.setattr(server_actor, "start_probe", lambda fleet, options, chosen: nullcontext(probe))
    monkeypatch.setattr(server_actor, "open_run", lambda fleet, options, chosen, host: run)

    class Session:
        def __init__(self, run, opened, server, coordinator, stop):
            shares.guests.append(coordinator.guests.take(SOUTH))
            shares.told.append("runs" if opened is processes[0].backend is shares else "has another")

        def run(self, console):
            raise UserError("disk: is full")

    monkeypatch.setattr(server_actor, "RunSession", Session)
    with pytest.raises(UserError, match="is full"):
        actor.run()
    assert processes[0].nodes == [FleetNode(NodeName("north"), NORTH, "n", 0, run.guests_gpu)]
    assert run.guests_gpu == 1, "not the preparation's"
    assert shares.told == ["opened for 2", "runs", "closed upon 0 of 1"]
    assert not actor.wait_ready()


def test_a_server_that_gives_no_process_away_is_told_apart_from_one_that_is_late(monkeypatch) -> None:
    monkeypatch.setattr(hosted_processes, "ray", Ray)
    full = Actor(SimpleNamespace(take_process=Mock(side_effect=LookupError("no guests any more"))))
    dead = Actor(None)
    dead.die()
    hosted = HostedProcesses(NORTH, {SOUTH: full, WEST: dead})
    for site, why in (
        (SOUTH, "south gives no process away: LookupError: no guests"),
        (WEST, "west gives no"),
    ):
        with pytest.raises(NoProcessError, match=why):
            hosted.take(FleetNode(NodeName("a loan"), site, "n", 300))
    full.kept.take_process.assert_called_with(NORTH)
