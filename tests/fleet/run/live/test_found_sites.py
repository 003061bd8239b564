"""Sites as a driver finds, starts and ends them; a shell script stands for the process of a site."""

import subprocess
import threading
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from waiting import HANG_GUARD_S, wait_until

from ekya.core.errors import UserError
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import LocalHandle
from ekya.fleet.run.live import found_sites
from ekya.fleet.run.live.found_sites import FoundSites, address_towards
from ekya.fleet.run.live.orders import SITE
from ekya.fleet.run.sites.server import SiteServer

NORTH, SOUTH = SiteName("north"), SiteName("south")
TOKEN = "t" * 40

LISTENS = """
shift 4
servers=$1 site=$3 listen=$5 shares=$7 file=${10}
printf '{"address": "%s"}' "$listen" > "$file.new"
mv "$file.new" "$file"
"""
SERVES = LISTENS + "exec sleep 600"
HAS_A_CHILD = 'sleep 600 & echo $! > "$(dirname "$0")/child"\n' + LISTENS + "wait"
DOES_NOT_END = "trap '' TERM\n" + HAS_A_CHILD


@pytest.fixture
def sites(tmp_path, monkeypatch):
    """Returns sites, of which those elsewhere have addresses, after what a process of this machine does."""
    made = []

    def make(does=SERVES, addresses=None):
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\n{does}")
        script.chmod(0o700)
        monkeypatch.setattr(found_sites.sys, "executable", str(script))
        made.append(FoundSites(addresses or {}, TOKEN))
        return made[-1]

    monkeypatch.setattr(found_sites, "_ENDS_WITHIN_S", 0.5)
    yield make
    for one in made:
        one.close()


def started(sites, folder, *names):
    sites.start_sites(names or (NORTH,), Path("town.yaml"), folder, "auto")


def wait_until_gone(folder):
    """Waits until the child of the process of a site has ended."""

    def gone():
        try:
            return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    number = int((folder / "child").read_text())
    wait_until(gone)


def test_a_sites_server_is_known_before_it_is_reached(sites) -> None:
    server = sites(addresses={SOUTH: "127.0.0.1:7070"}).server(SOUTH, "abc")
    assert (server.address, server.name) == ("127.0.0.1:7070", "server-abc")


def test_sites_without_an_address_are_started_and_known_where_they_listen(sites, tmp_path) -> None:
    found = sites(addresses={SOUTH: "127.0.0.1:7070"})
    started(found, tmp_path)
    assert found.addresses == {SOUTH: "127.0.0.1:7070", NORTH: "127.0.0.1:0"}
    assert [handle.address for handle in found.handles.values()] == ["127.0.0.1:7070", "127.0.0.1:0"]
    assert found.folder(NORTH, tmp_path) == str(tmp_path)
    assert found.folder(SOUTH, tmp_path) is None, "it has its own folder of runs"
    assert not found.has_died(NORTH)
    assert not found.has_died(SOUTH)


def test_sites_elsewhere_reach_those_of_this_machine(sites, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        found_sites, "address_towards", lambda addresses: {"10.0.0.2:1": "fd00::1"}[addresses[SOUTH]]
    )
    found = sites(addresses={SOUTH: "10.0.0.2:1"})
    started(found, tmp_path)
    assert found.addresses[NORTH] == "[fd00::1]:0"


def test_a_site_gets_its_options_and_the_token_where_no_other_user_sees_it(sites, tmp_path) -> None:
    shown = 'echo "$@" > "$(dirname "$0")/shown"; echo "$EKYA_FLEET_TOKEN" > "$(dirname "$0")/token"\n'
    started(sites(shown + SERVES), tmp_path)
    words = (tmp_path / "shown").read_text().split()
    assert words[:7] == ["-m", "ekya", "fleet", "site", str(Path("town.yaml").absolute()), "--site", NORTH]
    assert (tmp_path / "token").read_text().strip() == TOKEN
    assert TOKEN not in words


def test_of_a_site_that_does_not_start_its_last_words_are_told_and_the_others_end(sites, tmp_path) -> None:
    fails = f'if [ "$7" = south ]; then echo loading; echo "ekya: gpus: 9 is too many"; exit 2; fi\n{SERVES}'
    found = sites(fails)
    with pytest.raises(UserError, match=r"^south: it does not start: gpus: 9 is too many$"):
        started(found, tmp_path, NORTH, SOUTH)
    assert (found.has_died(NORTH), found.has_died(SOUTH)) == (False, True)
    found.close()
    assert found.has_died(NORTH)


def test_a_site_that_never_listens_is_not_waited_for_for_ever(sites, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(found_sites, "STARTS_WITHIN_S", 0.1)
    with pytest.raises(UserError, match=r"^north: it does not start: it said nothing$"):
        started(sites("exec sleep 600"), tmp_path)


class There:
    def __init__(self, name):
        self.name = name

    def identify(self):
        return self.name, "its process", "its version"


def test_a_site_elsewhere_must_be_there_and_the_one_that_is_meant() -> None:
    with closing(SiteServer("127.0.0.1", 0, TOKEN)) as doors:
        doors.offer_object(SITE, LocalHandle(There(SOUTH), 1), ["identify"])
        found = FoundSites({NORTH: doors.address, SOUTH: doors.address}, TOKEN)
        found.require_sites(SOUTH)
        with pytest.raises(UserError, match=rf"north: at {doors.address} is the site south; correct"):
            found.require_sites(NORTH)
    command = rf"ekya fleet site SERVERS --site south --listen {doors.address}$"
    with pytest.raises(UserError, match=rf"south: {doors.address} .*; start it there with: {command}"):
        found.require_sites(SOUTH)


def test_a_site_that_is_silent_is_told_by_its_address(monkeypatch) -> None:
    monkeypatch.setattr(found_sites, "_ANSWERS_S", 0.05)
    with closing(SiteServer("127.0.0.1", 0, TOKEN)) as doors:
        silent, over = There(SOUTH), threading.Event()
        silent.identify = lambda: over.wait(HANG_GUARD_S)
        doors.offer_object(SITE, LocalHandle(silent, 1), ["identify"])
        with pytest.raises(UserError, match=f"south: {doors.address} does not answer; start it there"):
            FoundSites({SOUTH: doors.address}, TOKEN).require_sites(SOUTH)
        over.set()


def test_a_site_that_fails_takes_all_its_processes_along(sites, tmp_path) -> None:
    found = sites(HAS_A_CHILD)
    started(found, tmp_path)
    found.kill_site(NORTH)
    assert found.has_died(NORTH)
    wait_until_gone(tmp_path)
    found.kill_site(NORTH)  # It is dead already.


def test_sites_are_all_asked_to_end_at_once_and_what_does_not_is_killed(sites, tmp_path, monkeypatch) -> None:
    def noted(name):
        method = getattr(subprocess.Popen, name)
        monkeypatch.setattr(subprocess.Popen, name, lambda *arguments: did.append(name) or method(*arguments))

    found, did = sites(DOES_NOT_END), []
    started(found, tmp_path, NORTH, SOUTH)
    for name in ("terminate", "wait"):
        noted(name)
    found.close()
    assert did[:3] == ["terminate", "terminate", "wait"]
    assert (found.has_died(NORTH), found.has_died(SOUTH)) == (True, True)
    wait_until_gone(tmp_path)


def test_ctrl_c_while_sites_end_leaves_none_behind(sites, tmp_path, monkeypatch) -> None:
    found = sites(DOES_NOT_END)
    started(found, tmp_path, NORTH, SOUTH)
    waits = subprocess.Popen.wait

    def interrupted(process, timeout=None):
        monkeypatch.setattr(subprocess.Popen, "wait", waits)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        found.close()
    assert (found.has_died(NORTH), found.has_died(SOUTH)) == (True, True)


def test_this_machine_has_the_address_by_which_it_reaches_others() -> None:
    assert address_towards({}) == "127.0.0.1"
    assert address_towards({NORTH: "127.0.0.1:9"}) == "127.0.0.1"
