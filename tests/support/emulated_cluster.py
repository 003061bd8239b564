"""Ray nodes of trainings, emulated on this machine."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray.cluster_utils import Cluster as RayCluster

from ekya.fleet.policy.places import NodeName, SiteName
from ekya.fleet.run.training.protocol import FleetNode
from ekya.runtime.driver.local_ray import object_store_bytes, private_ray

_STORE_BYTES = 256 * 1024**2


class EmulatedCluster:
    """Several Ray nodes on this machine, which are unequal by the share that trainings get on each.

    Ray's own counts of processors enforce nothing: what makes a node slow here is the share backend.

    Args:
        cluster: of Ray, with its head.
        store_bytes: of each node's object store.
    """

    def __init__(self, cluster: Any, store_bytes: int) -> None:
        self._cluster, self._store_bytes = cluster, store_bytes
        self._raylets: dict[NodeName, Any] = {}
        self._nodes: dict[NodeName, FleetNode] = {}

    def nodes(self) -> dict[NodeName, FleetNode]:
        """Returns the nodes that were begun and have not failed."""
        return dict(self._nodes)

    def begin(self, name: NodeName, share_milli: int) -> FleetNode:
        """Starts a node, or restarts one as another Ray node; it may not be ready when this returns."""
        raylet = self._cluster.add_node(wait=False, num_cpus=1, object_store_memory=self._store_bytes)
        self._raylets[name] = raylet
        self._nodes[name] = FleetNode(name, SiteName(name), raylet.node_id, share_milli)
        return self._nodes[name]

    def fail(self, node: NodeName) -> None:
        """Removes the node with all its processes."""
        del self._nodes[node]
        self._cluster.remove_node(self._raylets.pop(node), allow_graceful=False)


@contextmanager
def emulated_cluster(
    share_milli: Mapping[NodeName, int], store_bytes: int = _STORE_BYTES
) -> Iterator[EmulatedCluster]:
    """Starts a cluster with one Ray node per entry and connects this process to it.

    The head, on which this process is, is not one of them.

    Args:
        share_milli: of this machine's cores, by node.
        store_bytes: of each node's object store.
    """
    store_bytes = object_store_bytes(store_bytes)
    head = {"num_cpus": 0, "object_store_memory": store_bytes, "include_dashboard": False}
    made: Any = RayCluster  # Untyped in Ray.
    with private_ray():
        cluster = made(initialize_head=True, head_node_args=head)
        try:
            emulated = EmulatedCluster(cluster, store_bytes)
            for name, share in share_milli.items():
                emulated.begin(name, share)
            ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
            cluster.wait_for_nodes()
            yield emulated
        finally:
            ray.shutdown()
            cluster.shutdown()
