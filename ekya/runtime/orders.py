"""What actors are made from: plain values that travel to their processes."""

from dataclasses import dataclass

from ekya.config import FleetConfig
from ekya.core.ids import ModelVersion, StreamId
from ekya.gpu.protocol import ShareBackend
from ekya.runfolder import RunFolder


@dataclass(frozen=True, slots=True)
class ActorOrders:
    """Common to all actors of a run.

    Attributes:
        folder, fleet, seed: the run's.
        shares: enforces shares in the actor's process.
        device: torch's name of where models run.
        gpus: how many GPUs the run uses; the last may be used in part.
    """

    folder: RunFolder
    fleet: FleetConfig
    seed: int
    shares: ShareBackend
    device: str
    gpus: int = 1

    def gpu_of(self, place: int) -> int:
        """Position of the GPU on which a stream's processes stay; streams are dealt out one by one."""
        return place % self.gpus


@dataclass(frozen=True, slots=True)
class StreamOrders:
    """One stream's.

    Attributes:
        common: see there.
        place: position among the fleet's streams.
        weights: of the model that serves first, as safetensors bytes.
        version: its number.
    """

    common: ActorOrders
    place: int
    weights: bytes
    version: ModelVersion

    @property
    def stream(self) -> StreamId:
        """Whose they are."""
        return self.common.fleet.streams[self.place].id
