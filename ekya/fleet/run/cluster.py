"""Ray nodes of trainings: emulated on this machine, or those of a running cluster."""

import logging
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray.cluster_utils import Cluster as RayCluster

from ekya.core.errors import UserError
from ekya.fleet.policy.names import NodeName, SiteName
from ekya.fleet.run.training.protocol import FleetNode
from ekya.runtime.object_store import object_store_bytes
from ekya.runtime.private_ray import private_ray
from ekya.system.ray_environment import set_ray_environment

ANSWERS_WITHIN_S = 5.0
"""Shorter than Ray's own attempt, which lasts a minute and prints a long message."""

_STORE_BYTES = 256 * 1024**2


@contextmanager
def joined_cluster(address: str) -> Iterator[None]:
    """Connects this process, as a driver, to a running cluster for the duration of the block.

    Args:
        address: ``HOST:PORT`` of its head; ``auto`` finds one on this machine.

    Raises:
        UserError: there is no cluster at the address.
    """
    set_ray_environment()
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        _require_answer(address, host, int(port))
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _none_at(address, str(error).splitlines()[0]) from error
    try:
        yield
    finally:
        ray.shutdown()


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


def _require_answer(address: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=ANSWERS_WITHIN_S).close()
    except OSError as error:
        raise _none_at(address, error.strerror or str(error)) from error


def _none_at(address: str, why: str) -> UserError:
    return UserError(
        f"--address {address}: there is no Ray cluster ({why}); begin one with: ray start --head"
    )
