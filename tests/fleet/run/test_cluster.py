"""Ray clusters that a fleet runs on, with a fake Ray."""

import socket

import pytest

from ekya.core.errors import UserError
from ekya.fleet.policy.names import NodeName
from ekya.fleet.run import cluster
from ekya.fleet.run.cluster import EmulatedCluster, open_cluster

NORTH, SOUTH = NodeName("north"), NodeName("south")


class Ray:
    """A Ray with a running cluster of the nodes ``north`` and ``south``, of which ``south`` is dead."""

    def __init__(self):
        self.joined, self.closed, self.refuses = [], 0, None

    def init(self, address, **_options):
        if self.refuses is not None:
            raise self.refuses
        self.joined.append(address)

    def nodes(self):
        return [
            {"NodeName": "north", "NodeID": "0a", "Alive": True},
            {"NodeName": "south", "NodeID": "0b", "Alive": False},
        ]

    def shutdown(self):
        self.closed += 1


@pytest.fixture
def ray(monkeypatch):
    fake = Ray()
    monkeypatch.setattr(cluster, "ray", fake)
    return fake


def test_a_running_cluster_has_its_live_nodes_and_is_left_at_the_end(ray):
    with open_cluster("auto", {}) as running:
        (node,) = running.nodes().values()
        assert (node.name, node.site, node.machine_id, node.share_milli) == ("north", "north", "0a", 1000)
        with pytest.raises(UserError, match="--fail north: only emulated nodes"):
            running.fail(NORTH)
        assert (ray.joined, ray.closed) == (["auto"], 0)
    assert ray.closed == 1


def test_a_node_that_is_wanted_has_to_be_alive_in_a_running_cluster(ray):
    with open_cluster("auto", {NORTH: 1000}) as running:
        assert NORTH in running.nodes()
    with (
        pytest.raises(UserError, match=r"no node there is called south.*--node-name=south"),
        open_cluster("auto", {NORTH: 1000, SOUTH: 1000}),
    ):
        pass
    assert ray.closed == 2


def test_an_address_without_a_cluster_is_an_error(ray):
    with socket.create_server(("127.0.0.1", 0)) as closing:
        port = closing.getsockname()[1]
    with pytest.raises(UserError, match=rf"--address 127.0.0.1:{port}: there is no Ray cluster \(.*refused"):
        open_cluster(f"127.0.0.1:{port}", {}).__enter__()
    assert not ray.joined
    ray.refuses = ConnectionError("nothing found\nmore")
    with pytest.raises(UserError, match=r"--address auto: there is no Ray cluster \(nothing found\)"):
        open_cluster("auto", {}).__enter__()


def test_without_nodes_and_address_this_machine_is_the_only_node(ray):
    with open_cluster(None, {}) as own:
        assert list(own.nodes()) == [socket.gethostname()]
        assert ray.joined == ["local"]
    assert ray.closed == 1


class RayCluster:
    """Ray's cluster for tests, with nodes that are only numbered."""

    def __init__(self):
        self.begun, self.removed = 0, []

    def add_node(self, **_options):
        self.begun += 1
        return type("Raylet", (), {"node_id": f"node {self.begun}"})()

    def remove_node(self, raylet, **_options):
        self.removed.append(raylet.node_id)


def test_an_emulated_node_that_fails_is_gone_and_comes_back_as_another_ray_node():
    of_ray = RayCluster()
    emulated = EmulatedCluster(of_ray, 1)
    emulated.begin(NORTH, 600)
    emulated.begin(SOUTH, 300)
    emulated.fail(NORTH)
    assert of_ray.removed == ["node 1"]
    assert list(emulated.nodes()) == [SOUTH]
    emulated.begin(NORTH, 500)
    node = emulated.nodes()[NORTH]
    assert (node.machine_id, node.share_milli) == ("node 3", 500)
