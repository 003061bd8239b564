"""Servers that end, die, report errors or are stopped, as the watching process handles them."""

import threading
import time

import pytest
from threads_for_actors import Actor, Ray

from ekya.core.errors import UserError
from ekya.fleet.policy.names import SiteName
from ekya.fleet.run.live import live_servers
from ekya.fleet.run.servers import ServerDeath

NORTH, SOUTH = SiteName("north"), SiteName("south")
PATIENCE_S = 10.0


class Server:
    """A server whose run ends when the test says so, or when it is stopped.

    Attributes:
        wrong: error raised before it is ready.
        breaks: error raised instead of returning a summary.
    """

    def __init__(self, wrong=None, breaks=None):
        self.wrong, self.breaks = wrong, breaks
        self.ready, self.go, self.over = threading.Event(), threading.Event(), threading.Event()
        self.began_ns, self.died = None, []

    def run(self):
        try:
            if self.wrong is not None:
                raise self.wrong
            self.ready.set()
            assert self.go.wait(PATIENCE_S)
            assert self.over.wait(PATIENCE_S)
        finally:
            self.ready.set()
        if self.breaks is not None:
            raise self.breaks
        return {"summary": True}

    def wait_ready(self):
        assert self.ready.wait(PATIENCE_S)
        return self.wrong is None

    def begin(self, lead_ns, servers):
        self.began_ns = lead_ns
        self.go.set()

    def stop(self):
        self.go.set()
        self.over.set()

    def other_died(self, site):
        self.died.append(site)


class Coordinator:
    def __init__(self):
        self.heard, self.ticks_us = [], []

    def join(self, site, server):
        self.heard.append(("join", site))

    def leave(self, site):
        self.heard.append(("leave", site))

    def died(self, site, at_us):
        self.heard.append(("died", site))

    def tick(self, now_us):
        self.ticks_us.append(now_us)


class Nodes:
    def __init__(self):
        self.failed = []

    def fail(self, site):
        self.failed.append(site)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(live_servers, "ray", Ray)
    monkeypatch.setattr(live_servers, "_LOOK_S", 0.01)
    monkeypatch.setattr(live_servers, "LEAD_NS", 1_000_000)


class Town:
    def __init__(self, north, south, failures=(), watch=lambda site, now_us: None):
        self.servers = {NORTH: north, SOUTH: south}
        self.actors = {site: Actor(server) for site, server in self.servers.items()}
        self.coordinator, self.nodes = Coordinator(), Nodes()
        self.watched = live_servers._Watched(
            self.actors, Actor(self.coordinator, 1), self.nodes, list(failures), watch
        )

    def heard(self, count):
        ends_s = time.monotonic() + PATIENCE_S
        while len(self.coordinator.heard) < count:
            assert time.monotonic() < ends_s, self.coordinator.heard
            time.sleep(0.002)
        return self.coordinator.heard


def after(seconds, act):
    timer = threading.Timer(seconds, act)
    timer.start()
    return timer


def test_all_begin_at_one_moment_and_leave_when_they_have_ended() -> None:
    north, south = Server(), Server()
    town = Town(north, south)
    north.over.set()
    south.over.set()
    ran = town.watched.run()
    assert ran.summaries == {NORTH: {"summary": True}, SOUTH: {"summary": True}}
    assert north.began_ns is not None
    assert north.began_ns == south.began_ns
    heard = town.heard(4)
    assert heard[:2] == [("join", NORTH), ("join", SOUTH)]
    assert sorted(heard[2:]) == [("leave", NORTH), ("leave", SOUTH)]


def test_a_server_that_dies_takes_nobody_along_and_all_others_hear_of_it() -> None:
    north, south = Server(), Server()
    town = Town(north, south)
    after(0.1, town.actors[SOUTH].die)
    after(0.3, north.over.set)
    ran = town.watched.run()
    assert list(ran.summaries) == [NORTH]
    assert 0.0 < ran.died_s[SOUTH] < PATIENCE_S
    assert sorted(town.heard(4)[2:]) == [("died", SOUTH), ("leave", NORTH)]
    assert north.died == [SOUTH]


@pytest.mark.parametrize("breaks", [KeyError("a mistake of ours"), UserError("disk: is full")])
def test_a_run_that_breaks_is_a_server_that_died(breaks) -> None:
    north, south = Server(), Server(breaks=breaks)
    south.over.set()
    town = Town(north, south)
    after(0.2, north.over.set)
    ran = town.watched.run()
    assert (list(ran.summaries), list(ran.died_s)) == ([NORTH], [SOUTH])


def test_what_nobody_survived_is_told_to_the_user() -> None:
    north, south = Server(breaks=UserError("disk: is full")), Server(breaks=UserError("disk: is full"))
    north.over.set()
    south.over.set()
    with pytest.raises(UserError, match="disk: is full"):
        Town(north, south).watched.run()


def test_what_a_server_finds_wrong_before_the_run_ends_it_before_anybody_begins() -> None:
    north, south = Server(), Server(wrong=UserError("cam-1: no such file"))
    town = Town(north, south)
    with pytest.raises(UserError, match="cam-1: no such file"):
        town.watched.run()
    assert north.began_ns is None
    north.stop()


def test_a_server_that_dies_before_the_beginning_is_missed_by_nobody() -> None:
    north, south = Server(), Server()
    town = Town(north, south)
    south.ready = threading.Event()
    town.actors[SOUTH].die()
    north.over.set()
    ran = town.watched.run()
    assert (list(ran.summaries), ran.died_s) == ([NORTH], {SOUTH: 0.0})
    assert town.heard(2) == [("join", NORTH), ("leave", NORTH)]


def test_the_node_of_a_server_that_is_to_fail_fails_once() -> None:
    north, south = Server(), Server()
    failures = [ServerDeath(SOUTH, 10_000), ServerDeath(SOUTH, 300_000)]
    town = Town(north, south, failures)
    after(0.1, town.actors[SOUTH].die)
    after(0.6, north.over.set)
    town.watched.run()
    assert town.nodes.failed == [SOUTH]


def test_ctrl_c_stops_all_and_what_there_is_is_kept() -> None:
    def watch(site, now_us):
        if not came:
            came.append(site)
            raise KeyboardInterrupt

    came = []
    north, south = Server(), Server()
    town = Town(north, south, [ServerDeath(SOUTH, 200_000)], watch)
    north.stop = lambda: after(0.5, north.over.set)  # measuring takes time
    south.stop = lambda: after(0.5, south.over.set)
    ran = town.watched.run()
    assert sorted(ran.summaries) == [NORTH, SOUTH]
    assert town.nodes.failed == []


def test_ctrl_c_before_the_beginning_lets_no_node_fail_and_no_time_pass(monkeypatch) -> None:
    def interrupted(self, under_way):
        raise KeyboardInterrupt

    monkeypatch.setattr(live_servers._Watched, "_begin", interrupted)
    seen = []
    town = Town(Server(), Server(), [ServerDeath(SOUTH, 1)], lambda site, now_us: seen.append(now_us))
    ran = town.watched.run()
    assert sorted(ran.summaries) == [NORTH, SOUTH]
    assert (town.nodes.failed, set(seen) <= {0}) == ([], True)


def test_without_a_coordinator_any_more_servers_run_to_their_end() -> None:
    north, south = Server(), Server()
    town = Town(north, south)
    town.watched.coordinator.die()
    north.over.set()
    south.over.set()
    assert sorted(town.watched.run().summaries) == [NORTH, SOUTH]


def test_the_coordinator_is_told_of_the_time_again_and_again() -> None:
    north, south = Server(), Server()
    town = Town(north, south)
    after(0.2, north.over.set)
    after(0.2, south.over.set)
    town.watched.run()
    ticks_us = town.coordinator.ticks_us
    assert len(set(ticks_us)) > 2
    assert ticks_us == sorted(ticks_us)


def test_a_silent_coordinator_is_not_told_of_the_time_before_it_has_heard_the_last_one() -> None:
    north, south = Server(), Server()
    town = Town(north, south)
    told = town.watched.coordinator
    told.silent = True
    after(0.2, north.over.set)
    after(0.2, south.over.set)
    town.watched.run()
    assert told.called.count("tick") == 1


class Folder:
    """A server whose run folder is on its machine."""

    def files(self):
        return {"summary.json": 2, "journal.jsonl": 3}

    def part(self, file, offset):
        return b"" if offset else {"summary.json": b"{}", "journal.jsonl": b"[1]"}[file]


def test_the_folder_of_a_server_on_another_machine_is_copied_once(tmp_path) -> None:
    there = Actor(Folder())
    for _ in range(2):
        live_servers._collect(there, tmp_path / "north")
    assert {path.name: path.read_text() for path in (tmp_path / "north").iterdir()} == {
        "summary.json": "{}",
        "journal.jsonl": "[1]",
    }
    assert there.called.count("files") == 1


def test_the_folder_of_a_server_that_has_died_stays_on_its_machine(tmp_path, caplog) -> None:
    there = Actor(Folder())
    there.die()
    live_servers._collect(there, tmp_path / "north")
    assert "stays on its machine" in caplog.text
