"""What the base model would have said: a stream without retraining, on the frames kept for labelling."""

from dataclasses import dataclass, field

from ekya.workers.collector import CollectedFrame
from ekya.workers.proposed import Proposed


@dataclass(eq=False)
class BaseShadow:
    """Keeps the objects of the sampled frames, to be shown to the base model when the run is over.

    Nothing of it is charged: it measures the run, and no camera waits for it.

    Attributes:
        kept: by frame, in order.
    """

    kept: list[Proposed] = field(default_factory=list)

    def add(self, frame: CollectedFrame) -> None:
        """A sampled frame."""
        self.kept.append(Proposed(frame.frame, frame.t_us, frame.boxes, frame.crops))
