"""Constructor arguments of actors: plain values that are sent to their processes."""

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
class ActorConfig:
    """Settings that all actors of a run have in common.

    Attributes:
        folder, fleet, seed: of the run.
        shares: enforces shares in the actor's process.
        device: torch's name of the device of the models.
        homes: position of the GPU of each stream's processes, in the order of the streams.
        inference_speed: speed of an inference over its share.
        server: name of the server, where several share a Ray namespace; empty for a single one.
        way: how models that serve run their forward passes on the device.
        costs: cost of a frame of each stream on this machine.
        processes: how streams are grouped into processes.
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
class StreamActorConfig:
    """Settings of one stream.

    Attributes:
        common: settings of the run.
        place: position among the fleet's streams.
        version: of the model that serves first.
    """

    common: ActorConfig
    place: int
    version: ModelVersion

    @property
    def gpu(self) -> int:
        """Position of the GPU of the stream's processes."""
        return self.common.homes[self.place]

    @property
    def stream(self) -> StreamId:
        """Name of the stream."""
        return self.common.fleet.streams[self.place].id


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """Settings of a process that runs the inference of streams, or their retraining.

    Attributes:
        common: settings of the run.
        name: display name of its actor.
        gpu: position of its GPU.
        streams: streams that it starts with; none for a spare process.
    """

    common: ActorConfig
    name: str
    gpu: int
    streams: tuple[StreamActorConfig, ...]
