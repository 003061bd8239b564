"""Tests of the command line of ``ekya fleet site``: errors before it listens, what it tells, how it ends."""

import json
import os
import signal
import stat
import threading

import pytest
import yaml
from waiting import HANG_GUARD_S, wait_until

from ekya import cli
from ekya.cli import fleet_site
from ekya.config.shipped import shipped_path
from ekya.fleet.run.calls import CallError
from ekya.fleet.run.live.orders import SITE
from ekya.fleet.run.sites.client import SiteHandle
from ekya.fleet.run.sites.server import TOKEN_VARIABLE

TOKEN = "t" * 40


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)


@pytest.fixture
def file(tmp_path):
    fleet = str(shipped_path("datasets/synthetic_city/fleet.yaml"))
    # So much is there on one core, too.
    small = {"gpus": 0.6, "preparation": {"share_milli": 100, "fraction": 0.15}}
    servers = [
        {"site": "north", "streams": ["cam-1"], "changes": small},
        {"site": "south", "streams": ["cam-3"], "changes": small, "address": "127.0.0.1:0"},
        {"site": "broken", "streams": ["cam-9"], "address": "127.0.0.1:0"},
        {"site": "large", "streams": ["cam-1"], "changes": {"gpus": 9000}, "address": "127.0.0.1:0"},
    ]
    path = tmp_path / "town.yaml"
    path.write_text(yaml.safe_dump({"fleet": fleet, "servers": servers}))
    return path


def refused(words, capfd):
    assert cli.main(["fleet", "site", *map(str, words)]) == 2
    return " ".join(capfd.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--site", "west"], "--site west: {file} has no such server; it has broken, large, north, south"),
        (["--site", "west", "--listen", "127.0.0.1:0"], "--site west: {file} has no such server"),
        (
            ["--site", "north"],
            "{file}: servers.north.address: is missing; set it, or give --listen HOST:PORT",
        ),
        (["--site", "south", "--listen", "here"], "--listen here: write HOST:PORT, as 10.0.0.2:7070"),
        (["--site", "south", "--listen", "127.0.0.1:99999"], "--listen 127.0.0.1:99999: write HOST:PORT"),
        (["--site", "south", "--listen", "192.0.2.1:0"], "192.0.2.1:0 cannot be listened on"),
        (["--site", "broken"], "servers.broken.streams: its fleet file has no stream cam-9"),
        (["--site", "large", "--shares", "cpu"], "gpus: 9000, of all servers here, is more than the"),
        ([], "Missing option '--site'"),
    ],
)
def test_fleet_site_with_invalid_options_is_refused(words, said, file, capfd) -> None:
    assert said.format(file=file) in refused([file, *words], capfd)


def test_fleet_site_whose_token_others_can_read_does_not_listen(file, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE)
    read_by_all = tmp_path / "token"
    read_by_all.write_text(TOKEN)
    read_by_all.chmod(0o644)
    assert "others can read" in refused([file, "--site", "south", "--token-file", read_by_all], capfd)
    assert stat.S_IMODE(read_by_all.stat().st_mode) == 0o644


def test_a_missing_servers_file_is_told_apart(tmp_path, capfd) -> None:
    assert "nowhere.yaml" in refused([tmp_path / "nowhere.yaml", "--site", "south"], capfd)


@pytest.fixture(autouse=True)
def handlers():
    """Puts back what the command does with signals of this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def served(file, tmp_path, words, meanwhile):
    """Runs the command, and this in another thread once it listens; returns the exit code."""
    told, over = tmp_path / "told.json", threading.Event()

    def other():
        wait_until(lambda: told.is_file() or over.is_set())
        try:
            meanwhile(json.loads(told.read_text()))
        finally:
            # The signal would end all tests of this process once the command has ended.
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        return cli.main(["fleet", "site", str(file), *words, "--json", str(told)])
    finally:
        over.set()
        thread.join()


def test_fleet_site_answers_who_it_is_and_ends_when_it_is_told(file, tmp_path) -> None:
    heard = []

    def asks(told):
        handle = SiteHandle(told["address"], SITE, TOKEN)
        heard.append((told, handle.call("identify").result(HANG_GUARD_S)))
        with pytest.raises(CallError, match="has no run abc"):
            handle.call("reopen_run", "abc").result(HANG_GUARD_S)

    assert served(file, tmp_path, ["--site", "north", "--listen", "127.0.0.1:0"], asks) == 0
    ((told, (name, machine, _)),) = heard
    assert (told["site"], told["machine"]) == (name, machine) == ("north", machine)


def test_fleet_site_that_listens_everywhere_is_reached_at_its_address_in_the_file(file, tmp_path) -> None:
    heard = []
    assert served(file, tmp_path, ["--site", "south", "--listen", "0.0.0.0:0"], heard.append) == 0
    assert heard[0]["address"].startswith("127.0.0.1:")


def test_fleet_site_for_one_run_ends_when_no_driver_comes(file, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(fleet_site, "IDLE_S", 0.1)
    words = ["fleet", "site", str(file), "--site", "north", "--listen", "127.0.0.1:0", "--once"]
    assert cli.main(words) == 0
    assert "north is reached at 127.0.0.1:" in capfd.readouterr().out
