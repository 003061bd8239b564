"""Traffic of a training by origin, target and kind.

Counts the payload: weights, gradients, pictures and their labels; not the network's overhead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ekya.fleet.policy.places import NodeName


class PayloadKind(StrEnum):
    """Kind of payload."""

    DATA = "data"
    """Crops with their labels, to workers and to the parameter server."""
    MODEL = "model"
    """Start model, to all processes."""
    PUSHED = "pushed"
    """Gradients."""
    PULLED = "pulled"
    """Weights for the workers' next step."""
    CHECKPOINT = "checkpoint"
    """Snapshots, from the parameter server to home and from home to the next parameter server."""


Way = tuple[NodeName, NodeName, PayloadKind]
"""Origin, target and kind."""


@dataclass(frozen=True, slots=True)
class TrainingTraffic:
    """Bytes by way.

    Attributes:
        sent: includes bytes that stay on a node, with the same origin and target.
    """

    sent: Mapping[Way, int] = field(default_factory=dict)

    def plus(self, origin: NodeName, target: NodeName, kind: PayloadKind, count: int) -> "TrainingTraffic":
        """Returns a copy with this number of bytes more."""
        way = (origin, target, kind)
        return TrainingTraffic({**self.sent, way: self.sent.get(way, 0) + count}) if count else self

    def crossed(self, kind: PayloadKind | None = None) -> int:
        """Returns the bytes that left a node, of one kind or of all."""
        return sum(
            count
            for (origin, target, what), count in self.sent.items()
            if origin != target and kind in (None, what)
        )

    def left(self, node: NodeName) -> int:
        """Returns the bytes that left this node."""
        return sum(count for (origin, target, _), count in self.sent.items() if origin == node != target)
