"""Three-strike rule (Deep-Edge §IV.C.3): excludes nodes that were interrupted too often."""

from collections.abc import Mapping
from dataclasses import dataclass, field

STRIKES = 3
"""Interruptions in one training after which a node is excluded."""


@dataclass(frozen=True, slots=True)
class Strikes:
    """Interruptions of one training. A machine that comes back is another Ray node and has none.

    Attributes:
        counted: by Ray node id.
        gone: ids of dead Ray nodes.
    """

    counted: Mapping[str, int] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()

    def struck(self, node: str) -> "Strikes":
        """Returns a copy with one more interruption of this node."""
        return Strikes({**self.counted, node: self.counted.get(node, 0) + 1}, self.gone)

    def lost(self, node: str) -> "Strikes":
        """Returns a copy in which the node is dead, so that another attempt is useless."""
        return Strikes(self.counted, self.gone | {node})

    @property
    def out(self) -> frozenset[str]:
        """Excluded nodes."""
        return self.gone | {node for node, count in self.counted.items() if count >= STRIKES}
