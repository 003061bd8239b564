"""State of the Resource Monitor: active workers, and failures by task and node (Deep-Edge §IV.C.3)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ekya.fleet.policy.names import JobName, NodeName
from ekya.fleet.policy.places import Node
from ekya.fleet.policy.view import STRIKES


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
    """Map of active workers, and interruptions by task and node.

    Attributes:
        heard: last heartbeat by node.
        strikes: interruptions by task and node.
        silent_us: timeout of heartbeats, after which a node is taken for dead.
    """

    silent_us: int
    heard: Mapping[NodeName, Heard] = field(default_factory=dict)
    strikes: Mapping[JobName, Mapping[NodeName, int]] = field(default_factory=dict)

    def hears(self, node: Node, now_us: int) -> "Resources":
        """Returns the resources after a heartbeat with the node's state."""
        return replace(self, heard={**self.heard, node.name: Heard(now_us, node)})

    def active(self, now_us: int) -> dict[NodeName, Node]:
        """Returns the nodes whose last heartbeat is within the timeout."""
        return {
            name: heard.node for name, heard in self.heard.items() if now_us - heard.at_us <= self.silent_us
        }

    def struck(self, job: JobName, node: NodeName) -> "Resources":
        """Returns the resources after a node interrupted a task."""
        own = self.strikes.get(job, {})
        return replace(self, strikes={**self.strikes, job: {**own, node: own.get(node, 0) + 1}})

    def out(self, job: JobName) -> frozenset[NodeName]:
        """Returns the nodes that do not get a task again."""
        return frozenset(node for node, count in self.strikes.get(job, {}).items() if count >= STRIKES)

    def forgets(self, job: JobName) -> "Resources":
        """Returns the resources after the end of a task."""
        return replace(self, strikes={name: own for name, own in self.strikes.items() if name != job})
