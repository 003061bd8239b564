"""Base model as a baseline without retraining, on the frames kept for labelling."""

from dataclasses import dataclass, field

from ekya.workers.collector import CollectedFrame
from ekya.workers.proposed import Proposed


@dataclass(eq=False)
class BaseShadow:
    """Keeps the objects of sampled frames, which the base model classifies when the run is over.

    Its cost is not charged: it measures the run, and no camera waits for it.

    Attributes:
        kept: by frame, in order.
    """

    kept: list[Proposed] = field(default_factory=list)

    def add(self, frame: CollectedFrame) -> None:
        """Adds a sampled frame."""
        self.kept.append(Proposed(frame.frame, frame.t_us, frame.boxes, frame.crops))
