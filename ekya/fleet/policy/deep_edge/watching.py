"""State of the Resource Monitor: active workers (Deep-Edge §IV.C.3)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ekya.fleet.policy.names import NodeName
from ekya.fleet.policy.places import Node


@dataclass(frozen=True, slots=True)
class Resources:
    """Map of active workers.

    Attributes:
        silent_us: timeout of heartbeats, after which a node is taken for dead.
        heard: time of the last heartbeat of each node, and the node with its state then.
    """

    silent_us: int
    heard: Mapping[NodeName, tuple[int, Node]] = field(default_factory=dict)

    def hears(self, node: Node, now_us: int) -> "Resources":
        """Returns the resources after a heartbeat with the node's state."""
        return replace(self, heard={**self.heard, node.name: (now_us, node)})

    def active(self, now_us: int) -> dict[NodeName, Node]:
        """Returns the nodes whose last heartbeat is within the timeout."""
        return {name: node for name, (at_us, node) in self.heard.items() if now_us - at_us <= self.silent_us}
