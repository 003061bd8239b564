"""What a fleet's work takes on the machine at hand, as measured there before a run."""

from collections.abc import Mapping
from dataclasses import dataclass

from ekya.core.ids import StreamId
from ekya.core.profile import FamilyCost

TYPICAL_OBJECTS = 6.0
"""Objects of a typical frame: what a camera is taken to show until it has shown how many it sees."""


@dataclass(frozen=True, slots=True)
class StreamCosts:
    """What one camera's frames take.

    Attributes:
        fps: frames a second that the camera gives.
        frame_gpu_s: seconds of a whole GPU (on a CPU machine: of one core) to analyse one typical frame,
            finding its objects included, per λ resolution in pixels.
        finding_gpu_s: the part of each that goes into finding objects, however many there are.
    """

    fps: float
    frame_gpu_s: Mapping[int, float]
    finding_gpu_s: float = 0.0

    @property
    def object_gpu_s(self) -> float:
        """To classify one object at the finest resolution."""
        return (max(self.frame_gpu_s.values()) - self.finding_gpu_s) / TYPICAL_OBJECTS

    def at_crowd(self, crowd: float) -> dict[int, float]:
        """As ``frame_gpu_s``, of a frame with ``crowd`` times the typical number of objects."""
        finding = self.finding_gpu_s
        return {side: finding + (gpu_s - finding) * crowd for side, gpu_s in self.frame_gpu_s.items()}


@dataclass(frozen=True, slots=True)
class HostCosts:
    """What a fleet's work takes on this machine. All times are seconds of a whole GPU, or of one core.

    Attributes:
        streams: per camera.
        label_gpu_s: to label one object with the golden model, in the batches that labelling uses.
        families: what training takes per crop, for each family of Γ.
        cores: how many cores this process may use.
        batch_s: the longest batch that a job cannot be interrupted in: of training, labelling or inference.
    """

    streams: Mapping[StreamId, StreamCosts]
    label_gpu_s: float
    families: tuple[FamilyCost, ...]
    cores: float
    batch_s: float = 0.0
