"""The three-strike rule (Deep-Edge §IV.C.3): who has been interrupted too often takes no part any more."""

from collections.abc import Mapping
from dataclasses import dataclass, field

STRIKES = 3
"""Interruptions in one training after which a node is out."""


@dataclass(frozen=True, slots=True)
class Strikes:
    """Interruptions of one training. A site that comes back does so as another Ray node, and has none.

    Attributes:
        counted: by Ray node's id.
        gone: ids of Ray nodes that are not there any more.
    """

    counted: Mapping[str, int] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()

    def struck(self, node: str) -> "Strikes":
        """With one more on this node."""
        return Strikes({**self.counted, node: self.counted.get(node, 0) + 1}, self.gone)

    def lost(self, node: str) -> "Strikes":
        """The node itself is gone, which no second try mends."""
        return Strikes(self.counted, self.gone | {node})

    @property
    def out(self) -> frozenset[str]:
        """Nodes that take no part."""
        return self.gone | {node for node, count in self.counted.items() if count >= STRIKES}
