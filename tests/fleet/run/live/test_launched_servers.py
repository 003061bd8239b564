"""The launcher of services: it starts, watches, kills and takes them up; they are scripts here."""

import json
import signal
import sys
from dataclasses import replace

import pytest
import yaml
from waiting import HANG_GUARD_S, wait_until

from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.live import launched_servers
from ekya.fleet.run.live.launched_servers import LaunchedServers
from ekya.fleet.run.servers import ServerDeath
from ekya.fleet.run.servers_folder import LiveRun, ServersFolder
from ekya.fleet.servers_file import load_servers
from ekya.system.files import holder_of

NORTH, SOUTH = SiteName("north"), SiteName("south")

SCRIPT = """
import json, os, pathlib, signal, sys, time
from ekya.system.files import hold_folder
words = sys.argv[1:]
folder = pathlib.Path(words[words.index("--runs") + 1]) / words[words.index("--name") + 1]
stops = []
signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
with hold_folder(folder):
    print("ekya: what is wrong", flush=True)
    (folder / "service.json").touch()
    (folder / "words").write_text(json.dumps([words, os.environ.get("EKYA_TOKEN_south", "")]))
    while not stops and not (folder / "ends").exists():
        time.sleep(0.01)
    if (folder / "ends").exists() and (folder / "ends").read_text():
        sys.exit(2)
    (folder / "summary.json").write_text("{\\"result\\": true}")
"""
"""A service that ends with a result when it is stopped or may end, and without one if it is told so."""


@pytest.fixture
def town(tmp_path, monkeypatch):
    """Launches north, which borrows, and south, which lends; what still runs is stopped at the end."""
    monkeypatch.setattr(launched_servers, "SERVE", (sys.executable, "-c", SCRIPT))
    monkeypatch.setattr(launched_servers, "_LOOK_S", 0.01)
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    fleet = str(shipped_path("datasets/synthetic_city/fleet.yaml"))
    servers = [
        {"site": "north", "streams": ["cam-1"], "samples_may_leave": "crops", "takes_guests": False},
        {"site": "south", "streams": ["cam-3"]},
    ]
    (tmp_path / "town.yaml").write_text(
        yaml.safe_dump({"name": "town", "fleet": fleet, "links": {"mb_s": 4}, "servers": servers})
    )
    made = []

    def launch(tier="net"):
        folder = ServersFolder.create(tmp_path / "runs", "town")
        read = load_servers(tmp_path / "town.yaml", {"windows": 2})
        made.append(LaunchedServers.launch(folder, read, tier, 3, "cpu"))
        wait_until(lambda: all((folder.path / site / "words").is_file() for site in (NORTH, SOUTH)))
        return made[-1], folder

    yield launch
    for one in made:
        one.close()


def end(folder, site, how=""):
    (folder.path / site / "ends").write_text(how)


def test_all_are_started_as_services_that_reach_each_other(town) -> None:
    _launched, folder = town()
    words, token = json.loads((folder.path / "north" / "words").read_text())
    assert words[1:] == [
        "--name",
        "north",
        "--runs",
        str(folder.path),
        "--seed",
        "3",
        "--shares",
        "cpu",
    ]
    assert token == (folder.path / "south" / "token").read_text().strip()
    north, south = (load_fleet(folder.path / "fleets" / f"{site}.yaml") for site in (NORTH, SOUTH))
    (lender,) = north.lending.borrow_from
    assert lender.url == f"http://ekya:${{EKYA_TOKEN_south}}@127.0.0.1:{south.http.port}"
    assert (lender.site, lender.mb_s, north.lending.lend, north.windows) == ("south", 4.0, False, 2)
    assert (south.lending.borrow_from, south.lending.lend) == ((), True)
    assert token not in (folder.path / "fleets" / "north.yaml").read_text()


def test_without_a_tier_each_is_by_itself(town) -> None:
    _, folder = town(tier=None)
    for site in (NORTH, SOUTH):
        assert not load_fleet(folder.path / "fleets" / f"{site}.yaml").lending.takes_part


def test_what_has_ended_is_collected_and_its_time_is_followed(town) -> None:
    launched, folder = town()
    seen = []

    def look(now_us, running):
        seen.append((now_us, tuple(running)))
        end(folder, NORTH if NORTH in running else SOUTH)

    ran = launched.watch_runs((), look)
    assert ran.summaries == {NORTH: {"result": True}, SOUTH: {"result": True}}
    assert ran.died_s == {}
    assert (seen[0][1], seen[-1][1]) == ((NORTH, SOUTH), (SOUTH,))


def test_one_that_ends_without_a_result_is_told_with_its_last_words(town, caplog) -> None:
    launched, folder = town()
    end(folder, NORTH, "badly")
    end(folder, SOUTH)
    ran = launched.watch_runs((), lambda now_us, running: None)
    assert (list(ran.summaries), list(ran.died_s)) == ([SOUTH], [NORTH])
    assert "north: what is wrong" in caplog.text


def test_where_none_has_a_result_the_reasons_are_the_error(town) -> None:
    launched, folder = town()
    for site in (NORTH, SOUTH):
        end(folder, site, "badly")
    with pytest.raises(UserError, match=r"^(north|south): what is wrong; (north|south): what is wrong"):
        launched.watch_runs((), lambda now_us, running: None)


def test_one_that_is_to_fail_is_killed_and_the_other_goes_on(town) -> None:
    launched, folder = town()

    def look(now_us, running):
        if list(running) == [NORTH]:
            end(folder, NORTH)

    ran = launched.watch_runs([ServerDeath(SOUTH, 0)], look)
    assert (list(ran.summaries), list(ran.died_s)) == ([NORTH], [SOUTH])


@pytest.fixture
def interruptible():
    """Lets SIGINT interrupt: a process that a script starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_all_in_order(town) -> None:
    launched, _ = town()

    def look(now_us, running):
        if len(running) == 2 and not interrupted:
            interrupted.append(1)
            signal.raise_signal(signal.SIGINT)

    interrupted = []
    assert sorted(launched.watch_runs((), look).summaries) == [NORTH, SOUTH]


def test_a_launcher_that_is_started_again_watches_what_runs_and_starts_what_does_not(town) -> None:
    _, folder = town()
    end(folder, SOUTH, "badly")
    wait_until(lambda: holder_of(folder.path / "south") is None, guard_s=HANG_GUARD_S)
    end(folder, SOUTH)
    (folder.path / "south" / "words").unlink()
    pid = holder_of(folder.path / "north")
    again = LaunchedServers(folder, LiveRun.load(folder.live))
    again.start_missing()
    wait_until((folder.path / "south" / "words").is_file)
    assert holder_of(folder.path / "north") == pid, "it went on meanwhile"
    end(folder, NORTH)
    assert sorted(again.watch_runs((), lambda now_us, running: None).summaries) == [NORTH, SOUTH]


def test_stores_borrow_of_all(town, monkeypatch) -> None:
    launched, folder = town()
    monkeypatch.delenv("EKYA_TOKEN_north", raising=False)
    assert [(one.site, one.mb_s) for one in launched.lenders()] == [("north", 4.0), ("south", 4.0)]
    assert launched.tier == "net"
    replaced = replace(LiveRun.load(folder.live), began_unix_s=0.0)
    assert LaunchedServers(folder, replaced, now_s=lambda: 2.5).now_us == 2_500_000
