"""Ray clusters that a fleet runs on, with a fake Ray."""

import socket

import pytest

from ekya.core.errors import UserError
from ekya.fleet.policy.names import NodeName
from ekya.fleet.run import cluster
from ekya.fleet.run.cluster import EmulatedCluster, joined_cluster

NORTH, SOUTH = NodeName("north"), NodeName("south")


class Ray:
    """A Ray with a running cluster."""

    def __init__(self):
        self.joined, self.closed, self.refuses = [], 0, None

    def init(self, address, **_options):
        if self.refuses is not None:
            raise self.refuses
        self.joined.append(address)

    def shutdown(self):
        self.closed += 1


@pytest.fixture
def ray(monkeypatch):
    fake = Ray()
    monkeypatch.setattr(cluster, "ray", fake)
    return fake


def test_a_running_cluster_is_left_at_the_end(ray):
    with joined_cluster("auto"):
        assert (ray.joined, ray.closed) == (["auto"], 0)
    assert ray.closed == 1


def test_an_address_without_a_cluster_is_an_error(ray):
    with socket.create_server(("127.0.0.1", 0)) as closing:
        port = closing.getsockname()[1]
    with pytest.raises(UserError, match=rf"--address 127.0.0.1:{port}: there is no Ray cluster \(.*refused"):
        joined_cluster(f"127.0.0.1:{port}").__enter__()
    assert not ray.joined
    ray.refuses = ConnectionError("nothing found\nmore")
    with pytest.raises(UserError, match=r"--address auto: there is no Ray cluster \(nothing found\)"):
        joined_cluster("auto").__enter__()


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
