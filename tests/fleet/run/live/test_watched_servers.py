"""Servers that end, die, are cut off, report errors or are stopped, as the watching process handles them."""

import threading
from concurrent.futures import Future
from functools import partial

import pytest
from by_hand import ByHand
from waiting import HANG_GUARD_S

from ekya.core.errors import UserError
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.places import STORES, SiteName
from ekya.fleet.run.calls import CallError
from ekya.fleet.run.live import watched_servers
from ekya.fleet.run.live.orders import Neighbour, RunState
from ekya.fleet.run.live.watched_servers import LiveServers, collect_folder
from ekya.fleet.run.servers import ServerDeath
from ekya.fleet.run.servers_folder import LiveRun, ServersFolder

NORTH, SOUTH = SiteName("north"), SiteName("south")
ENDS_US = 60_000_000
COORDINATOR = "where the coordinator is reached"


class Server:
    """A server whose run ends when the test says so, or when it is stopped.

    Attributes:
        wrong: error of the user found before it is ready.
        breaks: outcome instead of a summary.
    """

    def __init__(self, wrong="", breaks=None, ends_us=ENDS_US):
        self.wrong, self.breaks, self.ends_us = wrong, breaks, ends_us
        self.ready, self.over = threading.Event(), threading.Event()
        self.ready.set()
        self.lead_us, self.died, self.met = None, [], []

    def run_state(self):
        if self.wrong:
            return RunState("failed", 0, self.ends_us, self.wrong, by_user=True)
        if self.lead_us is None:
            return RunState("ready", 0, self.ends_us)
        if not self.over.is_set():
            return RunState("running", 1, self.ends_us)
        return self.breaks or RunState("ended", 2, self.ends_us)

    def wait_ready(self):
        assert self.ready.is_set()
        return self.run_state()

    def meet_neighbours(self, neighbours, coordinator):
        self.met.append((sorted(neighbours), coordinator))

    def set_start(self, lead_us):
        self.lead_us = lead_us

    def stop_run(self):
        self.lead_us = self.lead_us or 0
        self.over.set()

    def other_died(self, site):
        self.died.append(site)

    def run_summary(self):
        return {"summary": True}

    def file_sizes(self):
        return {}


class Coordinator:
    def __init__(self):
        self.heard, self.ticks_us = [], []

    def add_server(self, site, server):
        self.heard.append(("join", site))

    def remove_server(self, site):
        self.heard.append(("leave", site))

    def on_server_death(self, site, at_us):
        self.heard.append(("died", site))

    def wait_for_earlier_calls(self):
        pass

    def decide_if_due(self, now_us):
        self.ticks_us.append(now_us)


class Site:
    """A site; ``resumes`` answers orders to take a run up, of which ``orders`` has all."""

    def __init__(self):
        self.forgotten, self.orders, self.resumes = [], [], off

    def open_run(self, order):
        self.orders.append(order)
        return self.resumes()

    def forget_run(self, run):
        self.forgotten.append(run)


def off():
    raise CallError("s:1 refuses connections")


class Sites:
    """Two sites; those in ``ended`` are processes of this machine that have ended."""

    def __init__(self):
        self.handles = {NORTH: ByHand(Site(), 0), SOUTH: ByHand(Site(), 0)}
        self.ended, self.failed = set(), []

    def has_died(self, site):
        return site in self.ended

    def kill_site(self, site):
        self.failed.append(site)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(watched_servers, "_LOOK_S", 0.01)
    monkeypatch.setattr(watched_servers, "LEAD_US", 1000)
    monkeypatch.setattr(watched_servers, "AWAY_S", 0.3)
    monkeypatch.setattr(watched_servers, "WAITED_S", 0.1)
    monkeypatch.setattr(watched_servers, "_ANSWERS_S", 0.5)


class Updates:
    """Updates of stores, as the driver knows them."""

    def __init__(self):
        self.handle, self.looks, self.heard = ByHand(self, 0), [], []

    def meet_neighbours(self, neighbours, coordinator):
        self.heard.append(("meet", sorted(neighbours), coordinator))

    def look_after_stores(self, now_us, sites):
        self.looks.append((now_us, sites))

    def close(self):
        self.heard.append("close")


class Clock:
    """Time passes where the process that watches sleeps."""

    def __init__(self):
        self.now_s, self._due = 100.0, []

    def after(self, seconds, act):
        self._due.append((self.now_s + seconds, act))

    def sleep(self, seconds):
        until_s = self.now_s + seconds
        while due := [one for one in self._due if one[0] <= until_s]:
            next_one = min(due, key=lambda one: one[0])
            self._due.remove(next_one)
            self.now_s = max(self.now_s, next_one[0])
            next_one[1]()
        self.now_s = until_s


class Town:
    def __init__(self, folder, north=None, south=None, updates=None, threads=0):
        self.north, self.south = north or Server(), south or Server()
        self.servers = {NORTH: self.north, SOUTH: self.south}
        self.handles = {site: ByHand(server, 0) for site, server in self.servers.items()}
        self.coordinator, self.sites = Coordinator(), Sites()
        self.reached = ByHand(self.coordinator, threads)
        opened = {site: Neighbour(handle, f"machine of {site}") for site, handle in self.handles.items()}
        self.folder = folder.name
        live = LiveRun("abc", "net", 0, Links(), {NORTH: "n:1", SOUTH: "s:1"})
        self.clock, folder = Clock(), ServersFolder(folder)
        self.after, times = self.clock.after, (lambda: self.clock.now_s, self.clock.sleep)
        self.live = LiveServers(folder, live, self.reached, self.sites, opened, updates, *times)

    def all_end(self):
        self.north.over.set()
        self.south.over.set()

    def run(self, failures=(), progress=lambda site, now_us, ends_us: None):
        self.live.begin_runs(COORDINATOR)
        return self.live.watch_runs(failures, progress)


def interrupting(when=lambda: True):
    """Returns a ``progress`` in which Ctrl-C is pressed once, as soon as it may."""
    pressed = []

    def progress(site, now_us, ends_us):
        if not pressed and when():
            pressed.append(site)
            raise KeyboardInterrupt

    return progress


@pytest.fixture
def town(tmp_path):
    return partial(Town, tmp_path)


def test_all_meet_begin_at_one_moment_and_leave_when_they_have_ended(town) -> None:
    both = town()
    both.all_end()
    ran = both.run()
    assert ran.summaries == {NORTH: {"summary": True}, SOUTH: {"summary": True}}
    assert both.north.lead_us == both.south.lead_us == 1000
    assert both.north.met == both.south.met == [([NORTH, SOUTH], COORDINATOR)]
    heard = both.coordinator.heard
    assert heard[:2] == [("join", NORTH), ("join", SOUTH)]
    assert sorted(heard[2:]) == [("leave", NORTH), ("leave", SOUTH)]
    assert all(site.kept.forgotten == ["abc"] for site in both.sites.handles.values())


def test_a_server_that_does_not_answer_takes_nobody_along_and_all_others_hear_of_it(town) -> None:
    both = town(south=Server(ends_us=300_000))
    both.after(0.1, both.handles[SOUTH].die)
    both.after(0.8, both.north.over.set)
    ran = both.run()
    assert list(ran.summaries) == [NORTH]
    assert 0.3 < ran.died_s[SOUTH] < 0.5
    assert ran.away_s == []
    assert sorted(both.coordinator.heard[2:]) == [("died", SOUTH), ("leave", NORTH)]
    assert both.north.died == [SOUTH]


def test_one_that_is_cut_off_and_reached_again_takes_part_again(town) -> None:
    both = town()
    both.after(0.1, both.handles[SOUTH].die)
    both.after(0.9, lambda: both.handles[SOUTH].begin_again(both.south))
    both.after(1.3, both.all_end)
    ran = both.run()
    assert sorted(ran.summaries) == [NORTH, SOUTH]
    assert ran.died_s == {}
    ((site, begin_s, end_s),) = ran.away_s
    assert site == SOUTH
    assert 0.3 < begin_s < 0.5
    assert 0.8 < end_s < 1.0
    assert both.coordinator.heard[2:4] == [("died", SOUTH), ("join", SOUTH)]


def test_one_that_is_cut_off_is_waited_for_until_it_should_have_ended(town) -> None:
    both = town(south=Server(ends_us=1_000_000))
    both.north.over.set()
    both.live.begin_runs(COORDINATOR)
    both.handles[SOUTH].die()
    began_s = both.clock.now_s
    ran = both.live.watch_runs((), lambda *_: None)
    assert (list(ran.summaries), list(ran.died_s)) == ([NORTH], [SOUTH])
    assert 1.0 < both.clock.now_s - began_s < 1.2


def started_again(both, server):
    """Starts the site of south again, which then takes the run up as ``server``."""
    both.handles[SOUTH], opened = ByHand(server, 0), f"process {len(both.sites.handles[SOUTH].called)}"
    both.sites.handles[SOUTH].kept.resumes = lambda: Neighbour(both.handles[SOUTH], opened)


def killed(both):
    both.sites.handles[SOUTH].kept.resumes = off
    both.handles[SOUTH].die()


def opening(server):
    """Lets a server open until what this returns is called."""
    running = server.run_state
    server.lead_us, server.run_state = 0, lambda: RunState("opening", 0, server.ends_us)
    return lambda: setattr(server, "run_state", running)


def test_one_that_was_started_again_takes_its_run_up_and_takes_part_again(town) -> None:
    again = Server()
    both = town()
    opens = opening(again)
    both.after(0.1, lambda: killed(both))
    both.after(0.7, lambda: started_again(both, again))
    both.after(1.0, lambda: heard.extend(both.coordinator.heard))
    both.after(1.2, opens)
    both.after(1.6, both.north.over.set)
    both.after(1.6, again.over.set)
    heard = []
    ran = both.run()
    assert heard[2:] == [("died", SOUTH)], "one that is opening takes no part yet"
    assert both.coordinator.heard[2:4] == [("died", SOUTH), ("join", SOUTH)]
    assert (sorted(ran.summaries), ran.died_s) == ([NORTH, SOUTH], {})
    ((site, begin_s, end_s),) = ran.away_s
    assert site == SOUTH
    assert begin_s + 0.5 < end_s
    assert both.north.met[1:] == again.met == [([NORTH, SOUTH], COORDINATOR)]
    orders = both.sites.handles[SOUTH].kept.orders
    assert {(one.run, one.name, one.coordinator) for one in orders} == {("abc", both.folder, COORDINATOR)}
    assert begin_s * 1e6 <= orders[0].resume_us < orders[-1].resume_us <= end_s * 1e6
    assert not both.sites.handles[NORTH].kept.orders


def test_others_learn_which_process_it_is_now(town) -> None:
    both = town()
    machines = []
    again = Server()
    both.north.meet_neighbours = lambda neighbours, coordinator: machines.append(neighbours[SOUTH].machine)
    again.lead_us = 0
    both.after(0.1, lambda: killed(both))
    both.after(0.6, lambda: started_again(both, again))
    both.after(1.2, both.north.over.set)
    both.after(1.2, again.over.set)
    both.run()
    first, *_, last = machines
    assert (first, last[:8]) == ("machine of south", "process ")


def test_one_may_be_started_again_twice_and_die_while_it_opens(town) -> None:
    opens, last = Server(), Server()
    both = town()
    opening(opens)
    last.lead_us = 0
    both.after(0.1, lambda: killed(both))
    both.after(0.6, lambda: started_again(both, opens))
    both.after(0.9, lambda: killed(both))
    both.after(1.4, lambda: started_again(both, last))
    both.after(1.7, lambda: killed(both))
    both.after(2.4, lambda: started_again(both, last))
    both.after(2.7, both.north.over.set)
    both.after(2.7, last.over.set)
    ran = both.run()
    assert (sorted(ran.summaries), ran.died_s) == ([NORTH, SOUTH], {})
    assert [site for site, _, _ in ran.away_s] == [SOUTH, SOUTH]
    steps = [step for step in both.coordinator.heard if step[1] == SOUTH]
    assert steps == [(word, SOUTH) for word in ("join", "died", "join", "died", "join", "leave")]


def test_one_that_opens_is_waited_for_beyond_its_end(town) -> None:
    again = Server(ends_us=1_000_000)
    both = town(south=Server(ends_us=1_000_000))
    opens = opening(again)
    both.after(0.1, lambda: killed(both))
    both.after(0.2, both.north.over.set)
    both.after(0.3, lambda: started_again(both, again))
    both.after(2.0, again.over.set)
    both.after(2.0, opens)
    ran = both.run()
    assert (sorted(ran.summaries), ran.died_s) == ([NORTH, SOUTH], {})


def test_a_site_that_cannot_take_its_run_up_stays_out_and_says_why_once(town, caplog) -> None:
    def empty():
        raise UserError("/runs/town has no folder of this run")

    both = town(south=Server(ends_us=300_000))
    both.after(0.1, lambda: killed(both))
    both.after(0.5, lambda: setattr(both.sites.handles[SOUTH].kept, "resumes", empty))
    both.after(1.2, both.north.over.set)
    ran = both.run()
    assert (list(ran.summaries), list(ran.died_s)) == ([NORTH], [SOUTH])
    assert len(both.sites.handles[SOUTH].kept.orders) > 5
    assert caplog.text.count("south stays out: s:1 refuses connections") == 1
    assert caplog.text.count("south stays out: /runs/town has no folder of this run") == 1
    assert "south died: /runs/town has no folder of this run; its results stay on its machine" in caplog.text


def test_time_is_what_servers_say_where_this_machine_was_off_as_well(town) -> None:
    both = town()
    both.live.go_on(COORDINATOR, 0, {})
    phase = {False: "running", True: "ended"}
    both.north.run_state = lambda: RunState(phase[both.north.over.is_set()], 40_000_000, ENDS_US)
    both.south.lead_us = 0
    both.after(0.2, both.all_end)
    both.live.watch_runs((), lambda *_: None)
    assert both.coordinator.ticks_us[-1] >= 40_000_000


def test_a_process_of_this_machine_that_has_ended_is_not_waited_for(town) -> None:
    both = town()
    both.after(0.1, lambda: both.sites.ended.add(SOUTH))
    both.after(0.3, both.north.over.set)
    ran = both.run()
    assert (list(ran.summaries), list(ran.died_s)) == ([NORTH], [SOUTH])


@pytest.mark.parametrize("by_user", [True, False])
def test_a_run_that_breaks_is_a_server_that_died(by_user, town) -> None:
    north = Server()
    south = Server(breaks=RunState("failed", 5, ENDS_US, "disk: is full", by_user))
    south.over.set()
    both = town(north, south)
    both.after(0.2, north.over.set)
    ran = both.run()
    assert (list(ran.summaries), list(ran.died_s)) == ([NORTH], [SOUTH])


def test_what_nobody_survived_is_told_to_the_user(town) -> None:
    full = RunState("failed", 5, ENDS_US, "disk: is full", by_user=True)
    north, south = Server(breaks=full), Server(breaks=full)
    north.over.set()
    south.over.set()
    with pytest.raises(UserError, match="disk: is full"):
        town(north, south).run()


def test_a_run_of_which_nothing_is_left_has_failed_for_all_its_reasons(town) -> None:
    both = town(north=Server(breaks=RunState("failed", 5, ENDS_US, "KeyError: 'x'")))
    both.north.over.set()
    both.sites.ended.add(SOUTH)
    with pytest.raises(UserError) as raised:
        both.run()
    assert sorted(str(raised.value).split("; ")) == ["north: KeyError: 'x'", "south: its process has ended"]


def test_what_a_server_finds_wrong_before_the_run_ends_it_before_anybody_begins(town) -> None:
    both = town(south=Server(wrong="cam-1: no such file"))
    with pytest.raises(UserError, match="south: cam-1: no such file"):
        both.run()
    assert both.coordinator.heard == []
    assert both.north.over.is_set(), "it was stopped"


def test_a_server_that_dies_before_the_beginning_is_missed_by_nobody(town) -> None:
    both = town()
    both.handles[SOUTH].die()
    both.north.over.set()
    ran = both.run()
    assert (list(ran.summaries), ran.died_s) == ([NORTH], {SOUTH: 0.0})
    assert [one for one in both.coordinator.heard if one[0] != "died"] == [("join", NORTH), ("leave", NORTH)]


def test_a_site_that_is_to_fail_fails_once(town) -> None:
    both = town(south=Server(ends_us=100_000))
    both.after(0.1, lambda: both.sites.ended.add(SOUTH))
    both.after(0.6, both.north.over.set)
    both.run([ServerDeath(SOUTH, 300_000), ServerDeath(SOUTH, 10_000)])
    assert both.sites.failed == [SOUTH]


def test_who_watches_and_was_stopped_meanwhile_takes_nobody_for_dead(town) -> None:
    both = town()

    def progress(site, now_us, ends_us):
        if site == SOUTH and not came:
            came.append(site)
            both.clock.now_s += 5.0
            both.handles[SOUTH].call = answer_late
            both.after(0.3, both.all_end)

    def answer_late(method, *arguments):
        if method != "run_state":
            return call(method, *arguments)
        answer = Future()
        both.after(0.1, lambda: answer.set_result(both.south.run_state()))
        return answer

    came = []
    call = both.handles[SOUTH].call
    ran = both.run((), progress)
    assert (sorted(ran.summaries), ran.died_s, ran.away_s) == ([NORTH, SOUTH], {}, [])


def test_the_coordinator_has_written_all_when_the_run_is_over_and_works_no_more(town, monkeypatch) -> None:
    monkeypatch.setattr(watched_servers, "_ANSWERS_S", HANG_GUARD_S)
    both = town(threads=1)
    asked, leave = threading.Event(), both.coordinator.remove_server
    both.coordinator.remove_server = lambda site: asked.wait(HANG_GUARD_S) and leave(site)
    call = both.reached.call

    def said(method, *arguments):
        answer = call(method, *arguments)
        if method == "wait_for_earlier_calls":
            asked.set()
        return answer

    both.reached.call = said
    both.all_end()
    both.run()
    assert sorted(both.coordinator.heard[2:]) == [("leave", NORTH), ("leave", SOUTH)]
    assert both.reached.dead


def test_ctrl_c_stops_all_and_what_there_is_is_kept(town) -> None:
    both = town()
    both.north.stop_run = lambda: both.after(0.3, both.north.over.set)  # measuring takes time
    both.south.stop_run = lambda: both.after(0.3, both.south.over.set)
    ran = both.run([ServerDeath(SOUTH, 200_000)], interrupting())
    assert sorted(ran.summaries) == [NORTH, SOUTH]
    assert both.sites.failed == []


def test_ctrl_c_waits_for_nobody_who_is_cut_off(town) -> None:
    both = town()
    both.after(0.1, both.handles[SOUTH].die)
    ran = both.run((), interrupting(lambda: ("died", SOUTH) in both.coordinator.heard))
    assert (list(ran.summaries), list(ran.died_s)) == ([NORTH], [SOUTH])
    assert ran.died_s[SOUTH] < 1.0


def test_the_coordinator_is_told_of_the_time_once_it_has_heard_the_last_one(town) -> None:
    both = town()
    both.after(0.2, both.all_end)
    both.run()
    ticks_us = both.coordinator.ticks_us
    assert len(set(ticks_us)) > 2
    assert ticks_us == sorted(ticks_us)

    silent = town(both.north, both.south)
    silent.reached.silent = True
    silent.run()
    assert silent.reached.called.count("decide_if_due") == 1


def test_updates_of_stores_take_part_and_hear_how_servers_are(town) -> None:
    updates = Updates()
    both = town(south=Server(ends_us=300_000), updates=updates)
    both.after(0.1, both.handles[SOUTH].die)
    both.after(0.8, both.north.over.set)
    both.run()
    assert updates.heard[0] == ("meet", [NORTH, SOUTH], both.reached)
    assert both.coordinator.heard[0] == ("join", STORES)
    states = [sites for _, sites in updates.looks]
    assert {NORTH: "running", SOUTH: "running"} in states
    assert {NORTH: "running", SOUTH: "away"} in states
    assert updates.looks == sorted(updates.looks, key=lambda look: look[0])
    assert updates.heard[-1] == "close"


def test_a_look_that_takes_long_is_not_repeated_meanwhile(town) -> None:
    updates = Updates()
    updates.handle.silent = True
    both = town(updates=updates)
    both.after(0.2, both.all_end)
    both.run()
    assert updates.handle.called.count("look_after_stores") == 1


def test_ctrl_c_gives_updates_up_before_servers_stop(town) -> None:
    updates = Updates()
    north, south = Server(), Server()
    stop = north.stop_run
    north.stop_run = lambda: updates.heard.append("stop") or stop()
    town(north, south, updates).run((), interrupting())
    assert updates.heard[1:3] == ["close", "stop"]


def test_a_new_driver_ends_the_processes_that_the_last_one_has_used_for_stores(town) -> None:
    updates = Updates()
    both = town(updates=updates)
    both.live.go_on(COORDINATOR, 5_000_000, {})
    assert both.north.died == both.south.died == [STORES]
    assert both.coordinator.heard == [("join", STORES)]
    for server in (both.north, both.south):
        server.lead_us = 0
        server.over.set()
    both.live.watch_runs((), lambda site, now_us, ends_us: None)
    assert updates.looks[0][0] >= 5_000_000


def test_what_a_new_driver_must_know_is_kept(tmp_path) -> None:
    live = LiveRun("abc", "net", 3, Links({(NORTH, SOUTH): 4.0}, 20.0), {NORTH: "n:1", SOUTH: "s:2"})
    live.save(tmp_path / "live.json")
    assert LiveRun.load(tmp_path / "live.json") == live
    (tmp_path / "live.json").write_text('{"run": "abc"}')
    with pytest.raises(UserError, match="name the folder of a run of ekya fleet run"):
        LiveRun.load(tmp_path / "live.json")
    with pytest.raises(UserError, match="name the folder of a run of ekya fleet run"):
        LiveRun.load(tmp_path / "nothing.json")


class Folder:
    """A server whose run folder is on its machine."""

    def file_sizes(self):
        return {"summary.json": 2, "journal.jsonl": 3}

    def file_part(self, file, offset):
        return b"" if offset else {"summary.json": b"{}", "journal.jsonl": b"[1]"}[file]


def test_the_folder_of_a_server_on_another_machine_is_copied_once(tmp_path) -> None:
    there = ByHand(Folder())
    for _ in range(2):
        collect_folder(there, tmp_path / "north")
    assert {path.name: path.read_text() for path in (tmp_path / "north").iterdir()} == {
        "summary.json": "{}",
        "journal.jsonl": "[1]",
    }
    assert there.called.count("file_part") == 4, "each to its end"


def test_a_copy_that_broke_off_is_completed(tmp_path) -> None:
    (tmp_path / "north").mkdir()
    (tmp_path / "north" / "summary.json").write_text("{}")
    collect_folder(ByHand(Folder()), tmp_path / "north")
    assert (tmp_path / "north" / "journal.jsonl").read_text() == "[1]"


def test_the_folder_of_a_server_that_has_died_stays_on_its_machine(tmp_path, caplog) -> None:
    there = ByHand(Folder())
    there.die()
    collect_folder(there, tmp_path / "north")
    assert "stays on its machine" in caplog.text
