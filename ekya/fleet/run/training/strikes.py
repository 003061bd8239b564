"""The three-strike rule (Deep-Edge §IV.C.3): who has been interrupted too often takes no part any more."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ekya.fleet.policy.names import NodeName

STRIKES = 3
"""Interruptions in one training after which a node is out."""


@dataclass(frozen=True, slots=True)
class Strikes:
    """Interruptions of one training.

    Attributes:
        counted: by node.
        gone: nodes that are not there any more.
    """

    counted: Mapping[NodeName, int] = field(default_factory=dict)
    gone: frozenset[NodeName] = frozenset()

    def struck(self, node: NodeName) -> "Strikes":
        """With one more on this node."""
        return Strikes({**self.counted, node: self.counted.get(node, 0) + 1}, self.gone)

    def lost(self, node: NodeName) -> "Strikes":
        """The node itself is gone, which no second try mends."""
        return Strikes(self.counted, self.gone | {node})

    @property
    def out(self) -> frozenset[NodeName]:
        """Nodes that take no part."""
        return self.gone | {node for node, count in self.counted.items() if count >= STRIKES}
