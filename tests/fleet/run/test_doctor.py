"""What a doctor finds at its site, and two sites of this machine find of each other."""

import os
import socket
import time
from contextlib import closing

import pytest
import yaml

from ekya.config.fleet_file import DEFAULT_FLEET
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.fleet.run import doctor
from ekya.fleet.run.calls import CallError, LocalHandle, public_methods
from ekya.fleet.run.doctor import DOCTOR, HostDoctor, examine_fleet, missing
from ekya.fleet.run.host_facts import HostFacts
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
    facts = host(tmp_path, server).examined()
    assert facts.site == "north"
    assert facts.versions.keys() == {"Python", "ekya", "ray", "torch"}
    assert str(tmp_path) in facts.machine["findings"]["Disk"]["found"]
    assert any("GATE_PASSWORD" in one for one in facts.wrong)


def test_a_fleet_that_cannot_run_there_is_a_problem_of_its_host(tmp_path):
    def read(_changes):
        raise UserError("fleet.yaml: gpus: 9 is more than there is")

    facts = HostDoctor("north", read, tmp_path).examined()
    assert facts.wrong[-1] == "fleet.yaml: gpus: 9 is more than there is"
    assert "Memory" in facts.machine["findings"]


class SlowHost:
    """A host that is 1 s ahead, answers after 20 ms and sends so many bytes a second."""

    def __init__(self, bytes_s):
        self.bytes_s, self.sent = bytes_s, []

    def time_ns(self):
        time.sleep(0.02)
        return time.time_ns() + 1_000_000_000

    def zeros(self, size):
        self.sent.append(size)
        time.sleep(size / self.bytes_s)
        return bytes(size)


def test_a_slow_link_is_measured_for_a_bounded_time(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "SENDS_S", 0.5)
    slow = SlowHost(bytes_s=5_000_000)
    began_s = time.monotonic()
    link = HostDoctor("north", None, tmp_path).measured(LocalHandle(slow, threads=1))
    assert time.monotonic() - began_s < 20 * 0.02 + 0.5 + 1.0
    assert 2.5 < link.mb_s <= 5.5
    assert link.round_trip_us >= 20_000
    assert abs(link.ahead_us - 1_000_000) <= link.round_trip_us / 2
    assert slow.sent == [doctor.FIRST_BYTES << at for at in range(len(slow.sent))]
    assert sum(slow.sent) / slow.bytes_s < 0.5


def test_a_fast_link_gets_no_more_than_the_largest_transfer(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "MOST_BYTES", 4 * doctor.FIRST_BYTES)
    fast = SlowHost(bytes_s=1e12)
    assert HostDoctor("north", None, tmp_path).measured(LocalHandle(fast, threads=1)).mb_s > 10
    assert fast.sent == [doctor.FIRST_BYTES * times for times in (1, 2, 4)]


def test_a_host_that_does_not_answer_in_time_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_ANSWERS_S", 0.1)
    told = HostDoctor("north", None, tmp_path).measured(LocalHandle(SlowHost(bytes_s=1e4), threads=1))
    assert told.startswith("no answer within 0.1 s")


def test_a_host_that_cannot_be_reached_is_told(tmp_path, free_port):
    gone = SiteHandle(f"127.0.0.1:{free_port}", DOCTOR, TOKEN)
    told = HostDoctor("north", None, tmp_path).measured(gone)
    assert told.startswith(f"127.0.0.1:{free_port} refuses connections: start `ekya fleet site` there")


@pytest.fixture
def sites():
    """Returns a function that opens a site which offers this object as its doctor, and returns its handle."""
    opened = []

    def open_site(served):
        opened.append(SiteServer("127.0.0.1", 0, TOKEN))
        return opened[-1].offer(DOCTOR, LocalHandle(served, threads=4), public_methods(HostDoctor))

    yield open_site
    for one in opened:
        one.close()


@pytest.fixture
def quick(monkeypatch):
    """Ends transfers early."""
    monkeypatch.setattr(doctor, "MOST_BYTES", 1 << 22)


def watched(seen):
    return lambda what, done, of: seen.append((what, done, of))


def test_two_sites_are_examined_and_both_ways_are_measured(tmp_path, server, sites, quick, monkeypatch):
    monkeypatch.setenv("GATE_PASSWORD", "secret")
    handles = {site: sites(host(tmp_path, server, site)) for site in ("south", "north")}
    seen = []
    facts = examine_fleet(handles, 30.0, watched(seen))
    assert list(facts.hosts) == ["north", "south"]
    assert facts.hosts["north"].versions == facts.hosts["south"].versions
    assert facts.hosts["south"].machine["findings"].keys() >= {"Memory", "Disk"}
    assert facts.wrong == ()
    assert list(facts.links) == [("north", "south"), ("south", "north")]
    for link in facts.links.values():
        assert link.mb_s > 10
        assert 0 < link.round_trip_us < 500_000
        assert abs(link.ahead_us) <= link.round_trip_us / 2
    assert {what: (done, of) for what, done, of in seen} == {"sites": (2, 2), "links": (2, 2)}


class Plain(HostDoctor):
    """A host that answers at once."""

    def __init__(self, site):
        self.site = site

    def examined(self):
        return HostFacts(self.site, {}, {}, ())


class Stuck:
    """A site that has begun to answer and does not go on until it is told."""

    def __init__(self):
        self.examines = True

    def examined(self):
        while self.examines:
            time.sleep(0.02)


def test_sites_that_do_not_answer_or_are_others_stop_nobody(sites, free_port):
    stuck = Stuck()
    handles = {
        "north": sites(Plain("north")),
        "south": SiteHandle(f"127.0.0.1:{free_port}", DOCTOR, TOKEN),
        "east": sites(Plain("west")),
        "west": sites(stuck),
    }
    try:
        facts = examine_fleet(handles, 2.0, watched([]))
    finally:
        stuck.examines = False
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
    facts = examine_fleet(handles, 10.0, watched([]))
    assert list(facts.links) == [("north", "south")]
    (told,) = facts.wrong
    assert told.startswith("north calls south: ")
    assert told.endswith("it is broken")


def test_a_site_with_another_token_is_told():
    with closing(SiteServer("127.0.0.1", 0, "o" * 40)) as doors:
        facts = examine_fleet({"north": SiteHandle(doors.address, DOCTOR, TOKEN)}, 30.0, watched([]))
    (told,) = facts.wrong
    assert told.startswith(f"north: {doors.address} refuses the token; all sites need the same")
