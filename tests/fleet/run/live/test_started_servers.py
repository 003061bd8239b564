"""A driver starts servers at their sites, or takes up the run of one that has died."""

import queue
import threading
from functools import partial
from types import SimpleNamespace

import pytest
from by_hand import ByHand, Doors
from waiting import HANG_GUARD_S, wait_until_blocked

from ekya.core.errors import UserError
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import CallError
from ekya.fleet.run.live import live_servers, watched_servers
from ekya.fleet.run.live.live_servers import resume_servers, start_servers
from ekya.fleet.run.live.orders import Neighbour, RunState
from ekya.fleet.run.live.watched_servers import LiveServers
from ekya.fleet.run.servers_folder import LiveRun, ServersFolder

NORTH, SOUTH = SiteName("north"), SiteName("south")
LINKS = Links({(NORTH, SOUTH): 4.0}, 20.0)


class Server:
    """A server's run at its site."""

    def __init__(self, phase="ready"):
        self.phase, self.begun_us, self.stopped = phase, queue.Queue(), threading.Event()
        self.met, self.died = [], []

    def run_state(self):
        return RunState(self.phase, 7_000_000 if self.phase == "running" else 0, 60_000_000)

    wait_ready = run_state

    def meet_neighbours(self, neighbours, coordinator):
        self.met.append((sorted(neighbours), coordinator))

    def set_start(self, lead_us):
        self.begun_us.put(lead_us)

    def run_summary(self):
        return {"summary": True}

    def file_sizes(self):
        return {}

    def stop_run(self):
        self.stopped.set()

    def borrowed_loans(self):
        return ()

    def lent_numbers(self):
        return frozenset()

    def other_died(self, site):
        self.died.append(site)


class Site:
    """A site that runs ``server``, or refuses to; it opens once ``goes_on`` is set.

    Attributes:
        orders: that it got.
    """

    def __init__(self, server, refuses=None):
        self.server, self.refuses, self.orders = server, refuses, []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def open_run(self, order):
        assert self.goes_on.wait(HANG_GUARD_S)
        self.orders.append(order)
        return self.reopen_run(order.run)

    def forget_run(self, run):
        pass

    def reopen_run(self, run):
        if self.refuses is not None:
            raise self.refuses
        return Neighbour(ByHand(self.server), "its process")


class Town:
    """Two sites, of which south is on another machine, and the doors of the driver."""

    def __init__(self, folder, north, south, threads=16):
        self.folder, self.doors = ServersFolder(folder), Doors()
        self.north, self.south = north, south
        self.sites = SimpleNamespace(
            handles={NORTH: ByHand(north, threads), SOUTH: ByHand(south, threads)},
            addresses={NORTH: "n:1", SOUTH: "s:1"},
            folder=lambda site, path: str(path) if site == NORTH else None,
            has_died=lambda site: False,
            server=lambda site, run: ByHand(None),
        )

    def starts(self, tier=None):
        return start_servers(self.folder, LINKS, tier, 3, {"windows": 2}, self.sites, self.doors)

    def resumes(self, tier=None):
        LiveRun("abc", tier, 3, LINKS, self.sites.addresses).save(self.folder.live)
        return resume_servers(self.folder, self.sites, self.doors)


@pytest.fixture
def town(tmp_path, monkeypatch):
    monkeypatch.setattr(live_servers, "_ANSWERS_S", HANG_GUARD_S)
    monkeypatch.setattr(watched_servers, "_LOOK_S", 0.01)
    monkeypatch.setattr(watched_servers, "_ANSWERS_S", HANG_GUARD_S)
    return lambda *how: Town(tmp_path, *how)


def test_all_sites_get_the_same_order_meet_and_begin_and_a_new_driver_could_take_over(town) -> None:
    both = town(Site(Server()), Site(Server()))
    both.starts("net")
    ((north,), (south,)) = both.north.orders, both.south.orders
    assert (north.run, north.seed, north.changes) == (south.run, 3, {"windows": 2})
    assert (north.folder, south.folder) == (str(both.folder.path), None)
    coordinator = north.coordinator
    assert list(both.doors.offered) == [coordinator.name]
    for site in (both.north, both.south):
        assert site.server.met == [([NORTH, SOUTH], coordinator)]
    assert LiveRun.load(both.folder.live) == LiveRun(north.run, "net", 3, LINKS, both.sites.addresses)


@pytest.mark.parametrize(
    ("refuses", "said"),
    [
        (UserError("another run is under way"), "^south: another run is under way$"),
        (CallError("s:1 refuses the token"), "^south: s:1 refuses the token; see the output of"),
    ],
)
def test_where_one_site_cannot_no_other_is_left_with_an_open_run(refuses, said, town) -> None:
    both = town(Site(Server()), Site(Server(), refuses))
    both.north.goes_on.clear()
    driver = threading.current_thread()
    opens = threading.Thread(target=lambda: [wait_until_blocked(driver), both.north.goes_on.set()])
    opens.start()
    with pytest.raises(UserError, match=said):
        both.starts()
    assert both.north.server.stopped.is_set()
    assert both.north.server.begun_us.empty()


def test_a_site_that_does_not_answer_is_told_so(town, monkeypatch) -> None:
    monkeypatch.setattr(live_servers, "OPENS_WITHIN_S", 0.05)
    monkeypatch.setattr(live_servers, "_ANSWERS_S", 0.05)
    both = town(Site(Server()), Site(Server()), 0)
    both.sites.handles[SOUTH].silent = True
    with pytest.raises(UserError, match=r"^south: no answer; see the output of ekya fleet site there$"):
        both.starts()
    assert both.north.server.stopped.is_set()


def test_ctrl_c_while_sites_open_stops_those_that_have(town, monkeypatch) -> None:
    def interrupt(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(live_servers, "_reply", interrupt)
    both = town(Site(Server()), Site(Server()))
    with pytest.raises(KeyboardInterrupt):
        both.starts()
    assert [site.server.stopped.is_set() for site in (both.north, both.south)] == [True, True]


def test_ctrl_c_while_servers_make_ready_stops_them_before_the_driver_ends(town) -> None:
    def interrupt(site):
        raise KeyboardInterrupt

    both = town(Site(Server()), Site(Server()))
    never = threading.Event()
    both.north.server.wait_ready = lambda: never.wait(HANG_GUARD_S)
    both.sites.has_died = interrupt
    with pytest.raises(KeyboardInterrupt):
        both.starts()
    assert [site.server.stopped.is_set() for site in (both.north, both.south)] == [True, True]
    never.set()


def test_a_run_that_is_taken_up_goes_on_and_all_learn_where_the_coordinator_is_now(town) -> None:
    both = town(Site(Server("running")), Site(Server("running")))
    live = both.resumes("net")
    assert live._now_us() >= 7_000_000
    for site in (both.north, both.south):
        ((met, coordinator),) = site.server.met
        assert (met, coordinator.name) == ([NORTH, SOUTH], "coordinator")
        assert site.server.begun_us.empty()


def test_a_run_whose_driver_died_before_the_start_begins_now(town) -> None:
    both = town(Site(Server()), Site(Server()))
    both.resumes()
    leads_us = [site.server.begun_us.get(timeout=HANG_GUARD_S) for site in (both.north, both.south)]
    assert leads_us == [watched_servers.LEAD_US] * 2


def watched(live, *servers):
    """Watches servers, which all end once both have told their time."""

    def progress(site, now_us, _ends_us):
        if now_us:
            told.add(site)
        if len(told) == len(servers):
            for server in servers:
                server.phase = "ended"

    told = set()
    return live.watch_runs((), progress)


def test_a_site_that_was_started_again_meanwhile_is_told_to_take_the_run_up(town, caplog) -> None:
    def opens(order):
        both.south.orders.append(order)
        return Neighbour(ByHand(again), "another process")

    again = Server("running")
    both = town(Site(Server("running")), Site(None, CallError("south has no run abc")))
    both.south.open_run = opens
    live = both.resumes("net")
    assert "south has no run abc" in caplog.text
    ran = watched(live, both.north.server, again)
    assert both.north.server.died == ["stores", SOUTH]
    order = both.south.orders[0]
    assert (order.run, order.coordinator.name, order.changes) == ("abc", "coordinator", {})
    assert order.resume_us >= 7_000_000
    assert (sorted(ran.summaries), ran.died_s) == ([NORTH, SOUTH], {})


def test_a_run_that_no_site_can_take_up_ends_with_the_reason_of_each(town, monkeypatch) -> None:
    def opens(order):
        raise UserError("/runs has no folder of this run")

    monkeypatch.setattr(watched_servers, "AWAY_S", 0.05)
    monkeypatch.setattr(watched_servers, "WAITED_S", 0.1)
    gone = CallError("no run abc")
    both = town(Site(None, gone), Site(None, gone))
    both.north.open_run = both.south.open_run = opens
    with pytest.raises(UserError) as raised:
        both.resumes().watch_runs((), lambda *_: None)
    assert sorted(str(raised.value).split("; ")[::2]) == [
        f"{site}: /runs has no folder of this run" for site in (NORTH, SOUTH)
    ]


def test_a_power_cut_of_all_sites_and_this_machine_is_no_time_of_the_run(town, monkeypatch) -> None:
    monkeypatch.setattr(live_servers, "LiveServers", partial(LiveServers, now_s=lambda: 1000.0))
    gone = CallError("no run abc")
    both = town(Site(None, gone), Site(None, gone))
    servers = [Server("running"), Server("running")]
    for site, server in zip((both.north, both.south), servers, strict=True):
        site.open_run = lambda order, server=server: Neighbour(ByHand(server), "another process")
    live = both.resumes()
    watched(live, *servers)
    assert live._now_us() == 7_000_000
