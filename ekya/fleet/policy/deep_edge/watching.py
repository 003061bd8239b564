"""The Resource Monitor's judgement: who is there, and who has failed too often (Deep-Edge §IV.C.3)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ekya.fleet.policy.deep_edge.policy import STRIKES
from ekya.fleet.policy.names import JobName, NodeName
from ekya.fleet.policy.places import Node


@dataclass(frozen=True, slots=True)
class Heard:
    """What a node said last.

    Attributes:
        at_us: when.
        node: it, with its state then.
    """

    at_us: int
    node: Node


@dataclass(frozen=True, slots=True)
class Resources:
    """The map of active workers, and who was interrupted under which task.

    Attributes:
        heard: of each node.
        strikes: by task and node.
        silent_us: after which a node that has said nothing is taken for dead.
    """

    silent_us: int
    heard: Mapping[NodeName, Heard] = field(default_factory=dict)
    strikes: Mapping[JobName, Mapping[NodeName, int]] = field(default_factory=dict)

    def hears(self, node: Node, now_us: int) -> "Resources":
        """A node tells that it is there, and its state."""
        return replace(self, heard={**self.heard, node.name: Heard(now_us, node)})

    def active(self, now_us: int) -> dict[NodeName, Node]:
        """Nodes that are there."""
        return {
            name: heard.node for name, heard in self.heard.items() if now_us - heard.at_us <= self.silent_us
        }

    def struck(self, job: JobName, node: NodeName) -> "Resources":
        """A node has interrupted a task."""
        own = self.strikes.get(job, {})
        return replace(self, strikes={**self.strikes, job: {**own, node: own.get(node, 0) + 1}})

    def out(self, job: JobName) -> frozenset[NodeName]:
        """Nodes that a task is not given again."""
        return frozenset(node for node, count in self.strikes.get(job, {}).items() if count >= STRIKES)

    def forgets(self, job: JobName) -> "Resources":
        """A task is over."""
        return replace(self, strikes={name: own for name, own in self.strikes.items() if name != job})
