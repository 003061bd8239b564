"""Emulated Ray clusters, with a fake Ray."""

from emulated_cluster import EmulatedCluster

from ekya.fleet.policy.places import NodeName

NORTH, SOUTH = NodeName("north"), NodeName("south")


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
