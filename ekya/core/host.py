"""What a fleet's work takes on the machine at hand, as measured there before a run."""

from collections.abc import Mapping
from dataclasses import dataclass

from ekya.core.ids import StreamId
from ekya.core.profile import FamilyCost


@dataclass(frozen=True, slots=True)
class StreamCosts:
    """What one camera's frames take.

    Attributes:
        fps: frames a second that the camera gives.
        frame_gpu_s: seconds of a whole GPU (on a CPU machine: of one core) to analyse one typical frame,
            finding its objects included, per λ resolution in pixels.
    """

    fps: float
    frame_gpu_s: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class HostCosts:
    """What a fleet's work takes on this machine. All times are seconds of a whole GPU, or of one core.

    Attributes:
        streams: per camera.
        label_gpu_s: to label one object with the golden model, in the batches that labelling uses.
        families: what training takes per crop, for each family of Γ.
        cores: how many cores this process may use.
    """

    streams: Mapping[StreamId, StreamCosts]
    label_gpu_s: float
    families: tuple[FamilyCost, ...]
    cores: float
