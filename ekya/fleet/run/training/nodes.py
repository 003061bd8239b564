"""Registry of the nodes that trainings may run on."""

import threading
from collections.abc import Collection, Mapping

from ekya.fleet.policy.names import NodeName
from ekya.fleet.run.training.protocol import FleetNode


class KnownNodes:
    """Nodes by name. Thread-safe; an update does not change mappings returned before.

    Args:
        nodes: initial ones.
    """

    def __init__(self, nodes: Mapping[NodeName, FleetNode]) -> None:
        self._nodes: Mapping[NodeName, FleetNode] = dict(nodes)
        self._lock = threading.Lock()

    def now(self) -> Mapping[NodeName, FleetNode]:
        """Returns all nodes as registered at this moment."""
        return self._nodes

    def know(self, node: FleetNode) -> None:
        """Adds a node, or replaces the one of the same name."""
        with self._lock:
            self._nodes = {**self._nodes, node.name: node}

    def which(self, machine_ids: Collection[str]) -> frozenset[NodeName]:
        """Returns the names of the nodes that have these machine ids now."""
        return frozenset(name for name, node in self._nodes.items() if node.machine_id in machine_ids)
