"""Every byte that a training sends, by where it came from, where it went and what it was.

Counted is what was sent: weights, gradients, pictures and their labels; not what the network adds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ekya.fleet.policy.names import NodeName


class Kind(StrEnum):
    """What bytes were."""

    DATA = "data"
    """Crops with their labels, to workers and to the parameter server."""
    MODEL = "model"
    """The model to begin with, to everybody."""
    PUSHED = "pushed"
    """Gradients."""
    PULLED = "pulled"
    """Weights that workers go on with."""
    CHECKPOINT = "checkpoint"
    """From the parameter server after each epoch, and to the next one."""


Way = tuple[NodeName, NodeName, Kind]
"""From, to, and what."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes by way.

    Attributes:
        sent: those that stay on their node are there too, from it to it.
    """

    sent: Mapping[Way, int] = field(default_factory=dict)

    def plus(self, origin: NodeName, target: NodeName, kind: Kind, count: int) -> "Traffic":
        """With so many bytes more."""
        way = (origin, target, kind)
        return Traffic({**self.sent, way: self.sent.get(way, 0) + count}) if count else self

    def crossed(self, kind: Kind | None = None) -> int:
        """Bytes that left a node; of one kind, or of all."""
        return sum(
            count
            for (origin, target, what), count in self.sent.items()
            if origin != target and kind in (None, what)
        )

    def left(self, node: NodeName) -> int:
        """Bytes that left this node."""
        return sum(count for (origin, target, _), count in self.sent.items() if origin == node != target)
