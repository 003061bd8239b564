"""Cost model of a fleet's work on this machine, measured before a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ekya.core.profile import FamilyCost
from ekya.core.units import FULL_GPU_MILLI, StreamId

TYPICAL_OBJECTS = 6.0
"""Objects of a typical frame: assumed for a camera until its own number is measured."""

TYPICAL_FRAME = (360, 640, 3)
"""Height, width and channels of a frame, assumed until a camera has delivered one."""


USABLE_PART = 0.95
"""Part of the host's time that planned frames may take: above it some are late."""

LEAST_CORES = 0.5
"""Cores that inference has whatever reading and training take: the system shares them fairly."""


def host_part_s(frame_s: float, cores: float, reading_cores: float, trainers: int, servers: int) -> float:
    """Returns the seconds of the whole host that a frame takes which is analysed on a GPU.

    What binds is the cores that reading and training leave, or the interpreters of the inference servers.

    Args:
        frame_s: seconds of a server's thread to find, cut and hand over a frame.
        cores: of the host.
        reading_cores: cores that reading the frames of all cameras takes.
        trainers: processes that train, each on a core.
        servers: inference servers, one for each GPU.
    """
    left = max(cores - reading_cores - trainers, LEAST_CORES)
    return frame_s / (USABLE_PART * min(left, servers))


@dataclass(frozen=True, slots=True)
class StreamCosts:
    """Costs of one camera's frames.

    Attributes:
        fps: frames per second of the camera.
        frame_gpu_s: seconds of a whole GPU (on a CPU machine: of one core) to analyse one typical frame,
            object detection included, per λ resolution in pixels; also per ``GOLDEN_RESOLUTION`` where λ of
            the golden detector are offered.
        finding_gpu_s: part of each for object detection, independent of the number of objects.
        per_object: whether the rest is for objects one by one; otherwise for frames, whatever they show.
        following_gpu_s: to follow the boxes of a typical frame into the next, per resolution; boxes of a
            resolution that is not listed stay in place.
        length_s: run time of a recording, seconds; None for an endless one, or if it is not known.
        reading_s: seconds of a core to read one frame; 0.0 if it is not measured.
    """

    fps: float
    frame_gpu_s: Mapping[int, float]
    finding_gpu_s: float = 0.0
    per_object: bool = True
    following_gpu_s: Mapping[int, float] = field(default_factory=dict)
    length_s: float | None = None
    reading_s: float = 0.0

    @property
    def object_gpu_s(self) -> float:
        """Cost of passing one object, or one frame, through the model at the finest resolution."""
        passing = self.frame_gpu_s[max(self.frame_gpu_s)] - self.finding_gpu_s
        return passing / TYPICAL_OBJECTS if self.per_object else passing

    def at_crowd(self, crowd: float) -> dict[int, float]:
        """Returns ``frame_gpu_s`` for a frame with ``crowd`` times the typical number of objects."""
        if not self.per_object:
            return dict(self.frame_gpu_s)
        finding = self.finding_gpu_s
        return {side: finding + (gpu_s - finding) * crowd for side, gpu_s in self.frame_gpu_s.items()}


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Costs of a fleet's work on this machine. All times are seconds of a whole GPU, or of one core.

    Attributes:
        streams: costs per camera.
        label_gpu_s: to label one object with the golden model, in the batch size of labelling; or one frame
            for models that detect.
        families: training cost per crop, or per frame, for each family of Γ.
        cores: number of cores that this process may use.
        batch_s: the longest uninterruptible batch of training, labelling or inference.
        host_part_s: seconds of the whole host, of its cores or its inference servers, for a frame that is
            analysed, beside the GPU's time; 0.0 where cores are the GPUs.
    """

    streams: Mapping[StreamId, StreamCosts]
    label_gpu_s: float
    families: tuple[FamilyCost, ...]
    cores: float
    batch_s: float = 0.0
    host_part_s: float = 0.0

    @property
    def analysing_milli(self) -> float:
        """Thousandths of the host that analysing every frame of all cameras takes; 0.0 where unknown."""
        return FULL_GPU_MILLI * self.host_part_s * sum(of.fps for of in self.streams.values())

    @property
    def reading_cores(self) -> float:
        """Cores that reading the frames of all cameras takes."""
        return sum(of.fps * of.reading_s for of in self.streams.values())
