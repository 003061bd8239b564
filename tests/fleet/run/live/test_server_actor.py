"""A server's Ray actor: before its run, when it is stopped, and the processes that it provides."""

import subprocess
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from inspect import signature
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from byhand import OPTIONS
from ekya.fleet.run.live.server_actor import ServerActor

from ekya.config.run_options import RunOptions
from ekya.core.errors import UserError
from ekya.fleet.policy.names import NodeName, SiteName
from ekya.fleet.run.calls import CallError, LocalHandle
from ekya.fleet.run.live import hosted_processes, server_actor
from ekya.fleet.run.live.hosted_processes import GuestProcesses, HostedProcesses
from ekya.fleet.run.server import ServerTerms
from ekya.fleet.run.training.crew import SILENT_S, NoProcessError
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
    assert actor.machine() == "n"


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

    def end(self):
        self.ended = True
        threading.Timer(0.1, self.popen.kill).start()


class Made:
    """Source of such processes."""

    def __init__(self, backend):
        self.backend, self.nodes, self.idle, self.all = backend, [], [], []

    def take(self, node):
        self.nodes.append(node)
        if not self.idle:
            self.idle.append(Process())
            self.all.append(self.idle[-1])
        return self.idle.pop()

    def give_back(self, node, process):
        self.idle.append(process)

    @property
    def ended(self):
        return [process for process in self.all if process.ended]

    def close(self):
        while self.idle:
            self.idle.pop().end()


@pytest.fixture
def processes(monkeypatch):
    """The sources of guests' processes, in the order in which servers were made."""
    made = []

    def make(backend):
        made.append(Made(backend))
        return made[-1]

    monkeypatch.setattr(hosted_processes, "Processes", make)
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
    gone.ended = True
    guests.close()
    assert set(guests._processes.ended) == {waits, works, gone}
    assert [process.popen.poll() is None for process in (waits, works)] == [False, False]
    guests.give_back(WEST, works)
    with pytest.raises(LookupError, match="no guests any more"):
        guests.take(SOUTH)
    assert [process.ended for process in guests._processes.all] == [True] * 4


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


def test_processes_of_a_borrower_that_was_not_heard_end_and_a_late_one_is_not_used_again(guests) -> None:
    lost, kept, back = guests.take(SOUTH), guests.take(WEST), guests.take(WEST)
    now_s = time.monotonic() + SILENT_S - 5
    for hear in (guests.heard, lambda borrower: guests.give_back(borrower, back)):
        guests._heard_s = dict.fromkeys((SOUTH, WEST), time.monotonic() - 10)
        hear(WEST)
        guests.end_silent(now_s)
        assert guests._processes.ended == [lost]
    guests.give_back(SOUTH, lost)
    assert guests._processes.idle == [back]
    guests.give_back(WEST, kept)
    guests.end_silent(now_s + SILENT_S)
    assert (guests._processes.ended, guests._processes.idle) == ([lost], [back, kept])


class Host:
    """Servers that lend processes."""

    def __init__(self, machine_id, takes=True):
        self.machine_id, self.takes, self.given_back, self.go_on = machine_id, takes, [], threading.Event()

    def take_process(self, borrower):
        if not self.takes:
            raise LookupError("no guests any more")
        return f"a process for {borrower}"

    def give_back_process(self, borrower, process):
        self.given_back.append((borrower, process))

    def machine(self):
        if self.machine_id is None:
            self.go_on.wait(5)
        return self.machine_id


def test_a_borrower_takes_a_process_from_a_server_and_gives_it_back_there() -> None:
    host = Host("s")
    hosted = HostedProcesses(NORTH, {SOUTH: LocalHandle(host, 1)}, {SOUTH: "s"})
    node = FleetNode(NodeName("a loan"), SOUTH, "s", 300)
    process = hosted.take(node)
    hosted.give_back(node, process)
    assert hosted.is_there("s"), "calls run in order, so the process is back"
    assert host.given_back == [(NORTH, "a process for north")] == [(NORTH, process)]


def test_a_server_that_gives_no_process_away_is_told_apart_from_one_that_is_late(monkeypatch) -> None:
    monkeypatch.setattr(hosted_processes, "ANSWERS_WITHIN_S", 0.05)
    late = SimpleNamespace(call=lambda *_: Future())
    hosted = HostedProcesses(NORTH, {SOUTH: LocalHandle(Host("s", takes=False), 1), WEST: late}, {})
    for site, why in (
        (SOUTH, "south gives no process away: LookupError: no guests"),
        (WEST, "west gives no process away: no answer for 0.05 s"),
    ):
        with pytest.raises(NoProcessError, match=why):
            hosted.take(FleetNode(NodeName("a loan"), site, "n", 300))


def test_a_machine_is_there_while_its_server_says_so(monkeypatch) -> None:
    monkeypatch.setattr(hosted_processes, "_SAYS_MACHINE_S", 0.05)
    again, silent = Host("s again"), Host(None)
    hosted = HostedProcesses(
        NORTH,
        {NORTH: LocalHandle(Host("n"), 1), SOUTH: LocalHandle(again, 1), WEST: LocalHandle(silent, 1)},
        {NORTH: "n", SOUTH: "s", WEST: "w"},
    )
    assert [hosted.is_there(machine_id) for machine_id in ("n", "s", "w", "unknown")] == [True] + [False] * 3
    silent.go_on.set()
