"""What a doctor finds at its site, and two sites of this machine find of each other."""

import os
import socket
import threading
from concurrent.futures import as_completed
from contextlib import closing
from itertools import islice

import pytest
import yaml
from waiting import HANG_GUARD_S

from ekya.config.fleet_file import DEFAULT_FLEET
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.fleet.run import doctor
from ekya.fleet.run.calls import CallError, LocalHandle, public_methods
from ekya.fleet.run.doctor import DOCTOR, HostDoctor, examine_fleet, missing
from ekya.fleet.run.host_facts import SiteHostFacts
from ekya.fleet.run.sites.client import SiteHandle
from ekya.fleet.run.sites.server import SiteServer
from ekya.fleet.servers_file import load_servers

TOKEN = "t" * 40


@pytest.fixture
def free_port():
    with socket.create_server(("", 0)) as probe:
        return probe.getsockname()[1]


@pytest.fixture
def server(tmp_path, free_port):
    """A server with a camera that needs a password, and a video."""
    streams = [
        {"id": "gate", "source": {"kind": "camera", "url": "rtsp://me:${GATE_PASSWORD}@10.0.0.9/live"}},
        {"id": "yard", "source": {"kind": "video", "files": ["yard.mp4"]}},
    ]
    (tmp_path / "yard.mp4").write_bytes(b"frames")
    fleet = yaml.safe_load(shipped_path(DEFAULT_FLEET).read_text())
    fleet |= {"streams": streams, "http": {"port": free_port}}
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    path = tmp_path / "town.yaml"
    path.write_text(yaml.safe_dump({"fleet": "fleet.yaml", "servers": [{"site": "north"}]}))
    (server,) = load_servers(path).servers
    return server


def host(tmp_path, server, site="north"):
    return HostDoctor(site, lambda _changes: server, tmp_path)


def test_a_host_that_has_everything_lacks_nothing(server, monkeypatch):
    monkeypatch.setenv("GATE_PASSWORD", "secret")
    assert list(missing(server.fleet)) == []


def test_missing_variables_and_ports_are_told(server, free_port, monkeypatch):
    monkeypatch.delenv("GATE_PASSWORD", raising=False)
    with socket.create_server(("", free_port)):
        variable, of_port = missing(server.fleet)
    assert variable.startswith("the environment variable GATE_PASSWORD is not set")
    assert of_port.startswith(f"port {free_port} is not free")


def test_a_file_that_cannot_be_read_is_told(server, tmp_path, monkeypatch):
    monkeypatch.setenv("GATE_PASSWORD", "secret")
    # For root everything can be read.
    monkeypatch.setattr(os, "access", lambda path, how: path.name != "yard.mp4")
    assert list(missing(server.fleet)) == [f"{tmp_path / 'yard.mp4'} cannot be read; change its permissions"]


def test_a_host_reports_its_machine_and_what_its_fleet_lacks(tmp_path, server, monkeypatch):
    monkeypatch.delenv("GATE_PASSWORD", raising=False)
    facts = host(tmp_path, server).examine_host()
    assert facts.site == "north"
    assert facts.versions.keys() == {"Python", "ekya", "ray", "torch"}
    assert str(tmp_path) in facts.machine["findings"]["Disk"]["found"]
    assert any("GATE_PASSWORD" in one for one in facts.wrong)


def test_a_fleet_that_cannot_run_there_is_a_problem_of_its_host(tmp_path):
    def read(_changes):
        raise UserError("fleet.yaml: gpus: 9 is more than there is")

    facts = HostDoctor("north", read, tmp_path).examine_host()
    assert facts.wrong[-1] == "fleet.yaml: gpus: 9 is more than there is"
    assert "Memory" in facts.machine["findings"]


class Stuck:
    """A host that has begun to answer and does not go on until the end of the test."""

    def __init__(self):
        self.goes_on = threading.Event()

    def examine_host(self):
        self.goes_on.wait(HANG_GUARD_S)

    def time_ns(self):
        self.goes_on.wait(HANG_GUARD_S)


@pytest.fixture
def stuck():
    made = Stuck()
    yield made
    made.goes_on.set()


class SlowHost:
    """A host that is 1 s ahead, answers after 20 ms and sends so many bytes a second; it lets time pass."""

    def __init__(self, bytes_s):
        self.bytes_s, self.sent, self.now_ns = bytes_s, [], 5_000_000_000

    def time_ns(self):
        self.now_ns += 20_000_000
        return self.now_ns + 1_000_000_000

    def send_zeros(self, size):
        self.sent.append(size)
        self.now_ns += round(size / self.bytes_s * 1e9)
        return bytes(size)

    def measure_link(self):
        """Returns the link from it, on its clock."""
        there = HostDoctor("north", None, None, lambda: self.now_ns, lambda: self.now_ns)
        return there.measure_link(LocalHandle(self, threads=1))


def test_a_slow_link_is_measured_for_a_bounded_time(monkeypatch):
    monkeypatch.setattr(doctor, "SENDS_S", 0.5)
    slow = SlowHost(bytes_s=5_000_000)
    link = slow.measure_link()
    assert link.mb_s == pytest.approx(5.0)
    assert (link.round_trip_us, link.ahead_us) == (20_000, 1_010_000)
    assert slow.sent == [doctor.FIRST_BYTES << at for at in range(5)]
    assert sum(slow.sent) / slow.bytes_s < 0.5


def test_a_fast_link_gets_no_more_than_the_largest_transfer(monkeypatch):
    monkeypatch.setattr(doctor, "MOST_BYTES", 4 * doctor.FIRST_BYTES)
    fast = SlowHost(bytes_s=1e9)
    assert fast.measure_link().mb_s == pytest.approx(1000.0)
    assert fast.sent == [doctor.FIRST_BYTES * times for times in (1, 2, 4)]


def test_a_host_that_does_not_answer_in_time_is_told(tmp_path, stuck, monkeypatch):
    monkeypatch.setattr(doctor, "_ANSWERS_S", 0.1)
    told = HostDoctor("north", None, tmp_path).measure_link(LocalHandle(stuck, threads=1))
    assert told.startswith("no answer within 0.1 s")


def test_a_host_that_cannot_be_reached_is_told(tmp_path, free_port):
    gone = SiteHandle(f"127.0.0.1:{free_port}", DOCTOR, TOKEN)
    told = HostDoctor("north", None, tmp_path).measure_link(gone)
    assert told.startswith(f"127.0.0.1:{free_port} refuses connections: start `ekya fleet site` there")


@pytest.fixture
def sites():
    """Returns a function that opens a site which offers this object as its doctor, and returns its handle."""
    opened = []

    def open_site(served):
        opened.append(SiteServer("127.0.0.1", 0, TOKEN))
        return opened[-1].offer_object(DOCTOR, LocalHandle(served, threads=4), public_methods(HostDoctor))

    yield open_site
    for one in opened:
        one.close()


@pytest.fixture
def quick(monkeypatch):
    """Ends transfers early, and waits for answers as long as they take."""
    monkeypatch.setattr(doctor, "MOST_BYTES", 1 << 22)
    monkeypatch.setattr(doctor, "_ANSWERS_S", HANG_GUARD_S)
    monkeypatch.setattr(doctor, "_LINK_WITHIN_S", HANG_GUARD_S)


def watched(seen):
    return lambda what, done, of: seen.append((what, done, of))


def test_two_sites_are_examined_and_both_ways_are_measured(tmp_path, server, sites, quick, monkeypatch):
    monkeypatch.setenv("GATE_PASSWORD", "secret")
    handles = {site: sites(host(tmp_path, server, site)) for site in ("south", "north")}
    seen = []
    facts = examine_fleet(handles, HANG_GUARD_S, watched(seen))
    assert list(facts.hosts) == ["north", "south"]
    assert facts.hosts["north"].versions == facts.hosts["south"].versions
    assert facts.hosts["south"].machine["findings"].keys() >= {"Memory", "Disk"}
    assert facts.wrong == ()
    assert list(facts.links) == [("north", "south"), ("south", "north")]
    for link in facts.links.values():
        assert link.mb_s > 0
        assert link.round_trip_us > 0
        assert abs(link.ahead_us) <= link.round_trip_us / 2
    assert {what: (done, of) for what, done, of in seen} == {"sites": (2, 2), "links": (2, 2)}


class Plain(HostDoctor):
    """A host that answers at once."""

    def __init__(self, site):
        super().__init__(site, None, None)

    def examine_host(self):
        return SiteHostFacts(self._site, {}, {}, ())


def test_sites_that_do_not_answer_or_are_others_stop_nobody(sites, free_port, stuck, monkeypatch):
    def in_time(questions, within_s):
        """Yields the three answers that come at all, however long they take."""
        yield from islice(as_completed(questions, HANG_GUARD_S), 3)
        raise TimeoutError

    monkeypatch.setattr(doctor, "as_completed", in_time)
    handles = {
        "north": sites(Plain("north")),
        "south": SiteHandle(f"127.0.0.1:{free_port}", DOCTOR, TOKEN),
        "east": sites(Plain("west")),
        "west": sites(stuck),
    }
    facts = examine_fleet(handles, 2.0, watched([]))
    assert list(facts.hosts) == ["north"]
    east, south, west = facts.wrong
    assert east == "east: at its address is the site west; correct one of the addresses"
    assert south.startswith(
        f"south: 127.0.0.1:{free_port} refuses connections: start `ekya fleet site` there"
    )
    assert west.startswith("west: no answer within 2 s; ")


class Silent(Plain):
    """A host whose answers to others fail."""

    def time_ns(self):
        raise CallError("it is broken")


def test_a_link_that_does_not_work_names_both_ends(sites, quick):
    handles = {"north": sites(Plain("north")), "south": sites(Silent("south"))}
    facts = examine_fleet(handles, HANG_GUARD_S, watched([]))
    assert list(facts.links) == [("north", "south")]
    (told,) = facts.wrong
    assert told.startswith("north calls south: ")
    assert told.endswith("it is broken")


def test_a_site_with_another_token_is_told():
    with closing(SiteServer("127.0.0.1", 0, "o" * 40)) as doors:
        facts = examine_fleet({"north": SiteHandle(doors.address, DOCTOR, TOKEN)}, HANG_GUARD_S, watched([]))
    (told,) = facts.wrong
    assert told.startswith(f"north: {doors.address} refuses the token; all sites need the same")
