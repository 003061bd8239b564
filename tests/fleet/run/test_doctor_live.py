"""`ekya fleet doctor` on a Ray cluster of three nodes on this machine."""

import json
import signal
import socket

import pytest
import yaml
from ray.cluster_utils import Cluster

from ekya import cli
from ekya.config.shipped import shipped_path
from ekya.fleet.servers_file import load_servers
from ekya.runtime.private_ray import private_ray

pytestmark = [pytest.mark.live, pytest.mark.long]

STORE_BYTES = 128 * 1024**2


@pytest.fixture(scope="module")
def nodes():
    """A cluster with the nodes head, north and south."""
    terms = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    with private_ray():
        cluster = Cluster(
            initialize_head=True, head_node_args=terms | {"node_name": "head", "include_dashboard": False}
        )
        try:
            yield cluster, {name: cluster.add_node(node_name=name, **terms) for name in ("north", "south")}
        finally:
            cluster.shutdown()


@pytest.fixture
def file(tmp_path):
    with socket.create_server(("", 0)) as probe:
        port = probe.getsockname()[1]
    servers = [{"site": site, "streams": [f"cam-{at}"]} for at, site in enumerate(("north", "south"), 1)]
    for server in servers:
        server["changes"] = {"http": {"port": port}}
    path = tmp_path / "town.yaml"
    fleet = str(shipped_path("datasets/synthetic_city/fleet.yaml"))
    path.write_text(yaml.safe_dump({"fleet": fleet, "links": {"mb_s": 2}, "servers": servers}))
    return path


def examine(cluster, tmp_path, *words):
    """Returns the exit code and the facts."""
    report = tmp_path / "facts.json"
    words = ["--address", cluster.address, "--runs", str(tmp_path), "--json", str(report), *words]
    return cli.main(["fleet", "doctor", *words]), json.loads(report.read_text())


def test_every_node_and_link_is_examined_and_the_links_are_written(nodes, file, tmp_path, capfd):
    cluster, _ = nodes
    measured = tmp_path / "measured.yaml"
    code, facts = examine(cluster, tmp_path, "--servers", str(file), "--write", str(measured))
    assert (code, facts["problems"]) == (0, [])
    assert set(facts["nodes"]) == {"head", "north", "south"}
    assert {(link["from"], link["to"]) for link in facts["links"]} == {
        (one, other) for one in facts["nodes"] for other in facts["nodes"] if one != other
    }
    assert all(link["mb_s"] > 20 for link in facts["links"])
    assert all(link["round_trip_us"] < 100_000 for link in facts["links"])
    # All nodes have the clock of this machine.
    assert all(abs(node["ahead_us"]) <= node["error_us"] for node in facts["nodes"].values())
    assert len({json.dumps(node["versions"]) for node in facts["nodes"].values()}) == 1
    assert set(load_servers(measured).links.mb_s) == {("north", "south"), ("south", "north")}
    assert "No problem was found." in capfd.readouterr().out


def test_a_server_without_a_node_and_what_is_missing_there_are_told(nodes, file, tmp_path):
    cluster, _ = nodes
    raw = yaml.safe_load(file.read_text())
    raw["servers"].append({"site": "east", "streams": ["cam-3"]})
    file.write_text(yaml.safe_dump(raw))
    with socket.create_server(("", raw["servers"][0]["changes"]["http"]["port"])) as taken:
        code, facts = examine(cluster, tmp_path, "--servers", str(file))
        port = taken.getsockname()[1]
    assert code == 1
    assert facts["problems"][0].startswith("east: there is no such node")
    assert {f"{site}: port {port} is not free" for site in ("north", "south")} == {
        one.partition(" (")[0] for one in facts["problems"][1:]
    }


def test_a_node_that_hangs_is_named_and_does_not_stop_the_others(nodes, tmp_path):
    cluster, others = nodes
    (raylet,) = others["south"].all_processes["raylet"]
    raylet.process.send_signal(signal.SIGSTOP)
    try:
        code, facts = examine(cluster, tmp_path, "--timeout", "30")
    finally:
        raylet.process.send_signal(signal.SIGCONT)
    assert code == 1
    assert any(one.startswith("south: no answer within 30 s") for one in facts["problems"])
    assert set(facts["nodes"]) == {"head", "north"}
    assert len(facts["links"]) == 2
