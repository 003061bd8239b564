"""`ekya fleet doctor` on two processes of `ekya fleet site` on this machine."""

import json
import os
import socket
import subprocess
import sys

import pytest
import yaml
from waiting import HANG_GUARD_S, wait_until

from ekya import cli
from ekya.config.shipped import shipped_path
from ekya.fleet.run.sites.server import TOKEN_VARIABLE
from ekya.fleet.servers_file import load_servers

pytestmark = [pytest.mark.live, pytest.mark.long]

TOKEN = "t" * 40


def free_ports(count):
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture
def file(tmp_path):
    """A servers file of three sites, whose fleet file has other ports than services of this machine."""
    *ports, http = free_ports(4)
    servers = [
        {"site": site, "streams": [f"cam-{at}"], "address": f"127.0.0.1:{port}"}
        for at, (site, port) in enumerate(zip(("east", "north", "south"), ports, strict=True), 1)
    ]
    for server in servers:
        server["changes"] = {"http": {"port": http}, "gpus": 0.75}
    path = tmp_path / "town.yaml"
    fleet = str(shipped_path("datasets/synthetic_city/fleet.yaml"))
    path.write_text(yaml.safe_dump({"fleet": fleet, "links": {"mb_s": 2}, "servers": servers}))
    return path


@pytest.fixture
def two_sites(file, tmp_path):
    """North and south are started; nobody has started east."""
    environment = os.environ | {TOKEN_VARIABLE: TOKEN}
    processes = []
    try:
        for site in ("north", "south"):
            words = ["--site", site, "--runs", tmp_path / site, "--json", tmp_path / f"{site}.json"]
            command = [sys.executable, "-m", "ekya", "fleet", "site", file, *words]
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))

        def started():
            assert all(process.poll() is None for process in processes)
            return all((tmp_path / f"{site}.json").is_file() for site in ("north", "south"))

        wait_until(started)
        yield processes
    finally:
        for process in processes:
            process.terminate()
        assert [process.wait(HANG_GUARD_S) for process in processes] == [0, 0]


def test_sites_and_links_are_examined_and_the_links_are_written(file, two_sites, tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    report, measured = tmp_path / "facts.json", tmp_path / "measured.yaml"
    words = ["--json", str(report), "--write", str(measured)]
    assert cli.main(["fleet", "doctor", str(file), *words]) == 1
    facts = json.loads(report.read_text())
    (east,) = facts["problems"]
    assert east.startswith("east: 127.0.0.1:")
    assert "refuses connections: start `ekya fleet site` there" in east
    assert set(facts["sites"]) == {"north", "south"}
    both = {("north", "south"), ("south", "north")}
    assert {(link["from"], link["to"]) for link in facts["links"]} == both
    assert all(link["mb_s"] > 0 for link in facts["links"])
    # Both have the clock of this machine.
    assert all(abs(site["ahead_us"]) <= site["error_us"] for site in facts["sites"].values())
    assert str(tmp_path / "south") in facts["sites"]["south"]["machine"]["findings"]["Disk"]["found"]
    assert set(load_servers(measured).links.mb_s) == both
