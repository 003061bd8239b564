"""The commands of docs/fleet/hosts.md on three hosts: a cluster, its doctor, and a fleet that loses one."""

import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from host_namespaces import why_not
from host_network import HostNetwork
from host_wires import Link

from ekya.config.shipped import shipped_path

pytestmark = [pytest.mark.live, pytest.mark.long]

SITES = ("north", "south", "west")
HEAD = 1
WINDOW_S, WINDOWS = 36, 3
JOINS_WITHIN_S = 90
BIN = Path(sys.executable).parent
PORTS = (
    "--node-manager-port=20001",
    "--object-manager-port=20002",
    "--dashboard-agent-grpc-port=20003",
    "--dashboard-agent-listen-port=20004",
)


@pytest.fixture(scope="module")
def environment():
    return os.environ | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }


@pytest.fixture(scope="module")
def hosts(environment):
    """Three hosts in a Ray cluster, and its address."""
    if reason := why_not():
        pytest.skip(reason)
    with HostNetwork(3, Link(rate_mbit_s=200, delay_ms=5, loss=0)) as network:
        address = f"{network.address(HEAD)}:6379"
        for host, site in enumerate(SITES, start=1):
            joins = ["--head", "--port=6379"] if host == HEAD else [f"--address={address}"]
            own = [f"--node-name={site}", f"--node-ip-address={network.address(host)}", *PORTS]
            network.popen(
                host,
                [
                    BIN / "ray",
                    "start",
                    *joins,
                    *own,
                    "--disable-usage-stats",
                    "--object-store-memory=300000000",
                    "--block",
                ],
                env=environment,
                stdout=subprocess.DEVNULL,
            )
            wait_joined(network, environment, address, host)
        yield network, address


def wait_joined(network, environment, address, count):
    until_s = time.monotonic() + JOINS_WITHIN_S
    counted = "import ray; ray.init('auto', log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))"
    while True:
        told = network.run(
            HEAD,
            [sys.executable, "-c", counted],
            env=environment | {"RAY_ADDRESS": address},
            capture_output=True,
            text=True,
        )
        if told.returncode == 0 and int(told.stdout.split()[-1]) >= count:
            return
        assert time.monotonic() < until_s, told.stderr
        time.sleep(1)


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """A servers file: north cannot train beside its inference."""
    folder = tmp_path_factory.mktemp("town")
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    raw |= {"window_s": WINDOW_S, "windows": WINDOWS}
    raw["retraining"] |= {"epochs": [4], "trainable_blocks": [1], "data_fractions": [1.0]}
    for stream in raw["streams"]:
        shown = {key: its for key, its in stream["source"]["scenes"][-1].items() if key != "ramp_s"}
        stream["source"] |= {"fps": 3, "scenes": [shown | {"at_s": 0}]}
    (folder / "fleet.yaml").write_text(yaml.safe_dump(raw))

    def server(site, streams, gpus, share_milli):
        changes = {"gpus": gpus, "preparation": {"share_milli": share_milli, "fraction": 0.15}}
        return {"site": site, "streams": streams, "crops_may_leave": True, "changes": changes}

    servers = [
        server("north", ["cam-1", "cam-2"], 0.35, 250),
        server("south", ["cam-3"], 0.85, 250),
        server("west", ["cam-4"], 0.3, 200),
    ]
    path = folder / "town.yaml"
    path.write_text(
        yaml.safe_dump({"name": "town", "fleet": "fleet.yaml", "links": {"mb_s": 20}, "servers": servers})
    )
    return path


def ekya(hosts, environment, folder, *words):
    network, address = hosts
    told = folder / "told.json"
    command = [sys.executable, "-m", "ekya", *words, "--address", address, "--json", told]
    ended = network.run(HEAD, command, cwd=folder, env=environment, capture_output=True, text=True)
    return ended, json.loads(told.read_text()) if told.is_file() else None


def test_the_doctor_knows_three_machines_and_their_links(hosts, environment, town, tmp_path) -> None:
    ended, told = ekya(hosts, environment, tmp_path, "fleet", "doctor", "--servers", town)
    assert sorted(told["nodes"]) == sorted(SITES), ended.stderr
    assert len(told["links"]) == 6
    # 200 Mbit/s and 5 ms each way; the file promises 20 of the 25 MB/s.
    assert all(10 < link["mb_s"] < 27 for link in told["links"])
    assert not [problem for problem in told["problems"] if "clock" in problem or "version" in problem]


def test_a_fleet_runs_and_north_borrows(hosts, environment, town, tmp_path) -> None:
    ended, told = ekya(hosts, environment, tmp_path, "fleet", "run", town, "--runs", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert [its["died_s"] for its in told["servers"].values()] == [None] * 3
    assert told["frames"]["lost"] == 0
    assert told["loans"]["by_outcome"].get("arrived", 0) >= 1
    assert {path.name for path in (tmp_path / "town").iterdir()} >= {*SITES, "loans.jsonl", "summary.json"}


def test_a_host_that_is_killed_takes_no_other_along(hosts, environment, town, tmp_path) -> None:
    network, address = hosts
    told = tmp_path / "told.json"
    command = [sys.executable, "-m", "ekya", "fleet", "run", town, "--runs", tmp_path]
    runs = network.popen(
        HEAD, [*command, "--address", address, "--json", told], cwd=tmp_path, env=environment
    )
    journal = tmp_path / "town" / "west" / "journal.jsonl"
    until_s = time.monotonic() + 200
    while not (journal.is_file() and "WindowOpened" in journal.read_text()):
        assert time.monotonic() < until_s
        time.sleep(0.5)
    time.sleep(WINDOW_S)
    network.kill(3)
    assert runs.wait(300) == 0
    servers = json.loads(told.read_text())["servers"]
    assert servers["west"]["died_s"] > 0
    assert [servers[site]["died_s"] for site in ("north", "south")] == [None, None]
    assert servers["north"]["mean_accuracy"] > 0.3
