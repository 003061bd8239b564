"""What actors are made from: plain values that travel to their processes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ekya.config import FleetConfig
from ekya.core.host import StreamCosts
from ekya.core.ids import ModelVersion, StreamId
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.gpu.protocol import ShareBackend
from ekya.learning.forward import PLAIN, ForwardWay
from ekya.placement.homes import Processes
from ekya.runfolder import RunFolder


@dataclass(frozen=True, slots=True)
class ActorOrders:
    """Common to all actors of a run.

    Attributes:
        folder, fleet, seed: the run's.
        shares: enforces shares in the actor's process.
        device: torch's name of where models run.
        homes: position of the GPU on which each stream's processes stay, in the order of the streams.
        inference_speed: what a share is worth to an inference.
        server: whose run it is, where several share a Ray namespace; empty for one that is alone.
        way: how models that serve run their forward passes on the device.
        costs: what a frame of each stream takes on this machine.
        processes: which streams share a process.
    """

    folder: RunFolder
    fleet: FleetConfig
    seed: int
    shares: ShareBackend
    device: str
    homes: tuple[int, ...]
    inference_speed: SpeedCurve = LINEAR
    server: str = ""
    way: ForwardWay = PLAIN
    costs: Mapping[StreamId, StreamCosts] = field(default_factory=dict)
    processes: Processes = Processes.STREAM


@dataclass(frozen=True, slots=True)
class StreamOrders:
    """One stream's.

    Attributes:
        common: see there.
        place: position among the fleet's streams.
        version: number of the model that serves first.
    """

    common: ActorOrders
    place: int
    version: ModelVersion

    @property
    def gpu(self) -> int:
        """Position of the GPU on which the stream's processes stay."""
        return self.common.homes[self.place]

    @property
    def stream(self) -> StreamId:
        """Whose they are."""
        return self.common.fleet.streams[self.place].id


@dataclass(frozen=True, slots=True)
class ProcessOrders:
    """Those of a process in which streams' inference runs, or their retraining.

    Attributes:
        common: see there.
        name: what people call its actor.
        gpu: position of the GPU on which it stays.
        streams: those that are there from the beginning; none in a spare one.
    """

    common: ActorOrders
    name: str
    gpu: int
    streams: tuple[StreamOrders, ...]
