"""The Ray cluster that Deep-Edge's manager trains on: one that is there, its own, or an emulated one."""

import logging
import os
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

_STORE_BYTES = 256 * 1024**2

Nodes = Callable[[], dict[NodeName, FleetNode]]
"""Those that are there now."""


@contextmanager
def edge_cluster(address: str | None, emulated: Mapping[NodeName, int]) -> Iterator[Nodes]:
    """Connected to a cluster as long as the block lasts.

    Args:
        address: of one that is there (``auto`` finds one on this machine), or None.
        emulated: nodes to make on this machine, with the thousandths of it that each may use; where there are
            none and no address, this machine is the only node.

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
    """One of its own, and not one that somebody else has running on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
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
    """As ``ray start --node-name`` calls them; the only one of an own cluster is called as the machine."""
    found = {}
    for node in alive_nodes():
        name = NodeName(socket.gethostname() if own else node["NodeName"])
        found[name] = FleetNode(name, SiteName(name), node["NodeID"], FULL_GPU_MILLI)
    return found
