"""Three-strike rule (Deep-Edge §IV.C.3): excludes nodes that failed too often under one training."""

from collections.abc import Mapping
from dataclasses import dataclass, field

STRIKES = 3
"""Failures under one training after which a node is excluded from it."""


@dataclass(frozen=True, slots=True)
class Strikes:
    """Failures under one training, by node.

    Attributes:
        counted: by name, or by machine id where a machine that comes back has none.
        gone: dead nodes.
    """

    counted: Mapping[str, int] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()

    def with_failures(self, *nodes: str) -> "Strikes":
        """Returns a copy with one more failure of a node for each time it is named."""
        counted = dict(self.counted)
        for node in nodes:
            counted[node] = counted.get(node, 0) + 1
        return Strikes(counted, self.gone)

    def with_dead_node(self, node: str) -> "Strikes":
        """Returns a copy in which the node is dead, so that another attempt is useless."""
        return Strikes(self.counted, self.gone | {node})

    @property
    def out(self) -> frozenset[str]:
        """Excluded nodes."""
        return self.gone | {node for node, count in self.counted.items() if count >= STRIKES}
