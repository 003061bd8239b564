"""Ray cluster on which Deep-Edge's manager trains: a running one, a private one, or an emulated one."""

import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import ray

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.names import NodeName, SiteName
from ekya.fleet.run.cluster import alive_nodes, joined_cluster
from ekya.fleet.run.training.emulated import emulated_fleet
from ekya.fleet.run.training.protocol import FleetNode
from ekya.runtime.object_store import object_store_bytes
from ekya.runtime.private_ray import private_ray

_STORE_BYTES = 256 * 1024**2

Nodes = Callable[[], dict[NodeName, FleetNode]]
"""Returns the nodes that are alive."""


@contextmanager
def edge_cluster(address: str | None, emulated: Mapping[NodeName, int]) -> Iterator[Nodes]:
    """Connects to a cluster for the duration of the block.

    Args:
        address: of a running cluster (``auto`` finds one on this machine), or None.
        emulated: nodes to make on this machine, each with its share in thousandths of the machine; without
            nodes and address, this machine is the only node.

    Raises:
        UserError: there is no cluster at the address.
    """
    if emulated:
        with emulated_fleet(emulated) as fleet:
            yield lambda: dict(fleet.nodes)
        return
    with joined_cluster(address) if address is not None else _own_cluster():
        yield lambda: _nodes(own=address is None)


@contextmanager
def _own_cluster() -> Iterator[None]:
    """Starts a private cluster, separate from any other that runs on this machine."""
    with private_ray():
        ray.init(
            "local",
            include_dashboard=False,
            object_store_memory=object_store_bytes(_STORE_BYTES),
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    try:
        yield
    finally:
        ray.shutdown()


def _nodes(own: bool) -> dict[NodeName, FleetNode]:
    """Returns live nodes by ``ray start --node-name``; a private cluster's only node has the host's name."""
    found = {}
    for node in alive_nodes():
        name = NodeName(socket.gethostname() if own else node["NodeName"])
        found[name] = FleetNode(name, SiteName(name), node["NodeID"], FULL_GPU_MILLI)
    return found
