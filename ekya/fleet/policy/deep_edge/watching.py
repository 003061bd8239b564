"""State of the Resource Monitor: active workers (Deep-Edge §IV.C.3)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ekya.fleet.policy.names import NodeName
from ekya.fleet.policy.places import Node


@dataclass(frozen=True, slots=True)
class Heard:
    """Last heartbeat of a node.

    Attributes:
        at_us: its time.
        node: the node, with its state at that time.
    """

    at_us: int
    node: Node


@dataclass(frozen=True, slots=True)
class Resources:
    """Map of active workers.

    Attributes:
        heard: last heartbeat by node.
        silent_us: timeout of heartbeats, after which a node is taken for dead.
    """

    silent_us: int
    heard: Mapping[NodeName, Heard] = field(default_factory=dict)

    def hears(self, node: Node, now_us: int) -> "Resources":
        """Returns the resources after a heartbeat with the node's state."""
        return replace(self, heard={**self.heard, node.name: Heard(now_us, node)})

    def active(self, now_us: int) -> dict[NodeName, Node]:
        """Returns the nodes whose last heartbeat is within the timeout."""
        return {
            name: heard.node for name, heard in self.heard.items() if now_us - heard.at_us <= self.silent_us
        }
