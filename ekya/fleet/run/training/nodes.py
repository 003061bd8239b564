"""The nodes that trainings may run on, as they are known now."""

import threading
from collections.abc import Collection, Mapping

from ekya.fleet.policy.names import NodeName
from ekya.fleet.run.training.protocol import FleetNode


class KnownNodes:
    """Nodes by name. Any thread may make one known, and what another has been given stays as it was.

    Args:
        nodes: to begin with.
    """

    def __init__(self, nodes: Mapping[NodeName, FleetNode]) -> None:
        self._nodes: Mapping[NodeName, FleetNode] = dict(nodes)
        self._lock = threading.Lock()

    def now(self) -> Mapping[NodeName, FleetNode]:
        """All of them, as they are known at this moment."""
        return self._nodes

    def know(self, node: FleetNode) -> None:
        """It is there, and so from now on."""
        with self._lock:
            self._nodes = {**self._nodes, node.name: node}

    def which(self, ray_nodes: Collection[str]) -> frozenset[NodeName]:
        """The nodes that are one of these Ray nodes now."""
        return frozenset(name for name, node in self._nodes.items() if node.ray_node_id in ray_nodes)
