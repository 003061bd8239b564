"""The machines of the emulated world: how fast work is at its share, and when frames are analysed.

A core does what its card counts, in proportion to the share. A GPU server does it as its card tells: one
inference server and a few trainers a GPU, beside cores that all of them need. A GPU as the first run used it
has a process for each camera, each held to its share by the wall time of its frames.
"""

from collections.abc import Mapping
from typing import Protocol

from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.units import FULL_GPU_MILLI, StreamId
from ekya.pipeline.gpu_facts import FirstBelief, GpuFacts
from ekya.planning.placement.homes import PREPARATION_GPU
from ekya.simulation.emulated.frame_queues import (
    AtOwnShare,
    FrameQueue,
    FrameWork,
    InferenceServer,
    ServerLoad,
    queue_of_core,
    wanted_part_of_cores,
)
from ekya.simulation.emulated.stream import EmulatedStream, WaitingFrame


class Machine(Protocol):
    """What the emulated world runs on.

    Attributes:
        training_speed: of a retraining, and of a preparation, alone at a share.
    """

    training_speed: SpeedCurve

    def queue_for(self, stream: StreamId) -> FrameQueue[WaitingFrame]:
        """Returns the queue of a stream's frames."""

    def set_load(
        self, cameras: Mapping[StreamId, EmulatedStream], training: Mapping[StreamId, float], prepares: bool
    ) -> None:
        """Sets what runs from now on.

        Args:
            cameras: inference, by stream.
            training: the speeds of retrainings at their shares, as if each were alone.
            prepares: whether a preparation runs.
        """

    def pace_of(self, stream: StreamId) -> float:
        """Returns the speed of a stream's retraining, relative to one alone at its share."""


class Core:
    """A core: work takes what it counts, at a speed in proportion to its share."""

    def __init__(self) -> None:
        self.training_speed = LINEAR

    def queue_for(self, stream: StreamId) -> FrameQueue[WaitingFrame]:
        return queue_of_core()

    def set_load(
        self, cameras: Mapping[StreamId, EmulatedStream], training: Mapping[StreamId, float], prepares: bool
    ) -> None:
        """Does nothing: shares of a core do not disturb each other."""

    def pace_of(self, stream: StreamId) -> float:
        return 1.0


class FirstRunGpu(Core):
    """A GPU as the first run used it: a frame takes what its process was charged, over its share.

    Args:
        first: what that run believed and was charged.
    """

    def __init__(self, first: FirstBelief) -> None:
        self._first = first
        self.training_speed = SpeedCurve(first.training_speed)

    def queue_for(self, stream: StreamId) -> FrameQueue[WaitingFrame]:
        def takes_s(_: FrameWork, share_milli: int) -> float:
            return self._first.charged_frame_s(share_milli) * FULL_GPU_MILLI / share_milli

        return AtOwnShare(takes_s)


class GpuServers:
    """The GPUs of a server: for each one inference server, and trainers; the cores are for all of them.

    Args:
        facts: of the card.
        homes: the GPU of each stream.
        fps: frames a second of all cameras together.
    """

    def __init__(self, facts: GpuFacts, homes: Mapping[StreamId, int], fps: float) -> None:
        self._facts, self._homes, self._fps = facts, homes, fps
        self._servers = {gpu: InferenceServer[WaitingFrame](facts) for gpu in sorted(set(homes.values()))}
        self._trainers = facts.count_trainers(len(self._servers))
        self._training = dict.fromkeys(self._servers, 0.0)
        self._slowness = 1.0
        self.training_speed = facts.training_curve()

    def queue_for(self, stream: StreamId) -> FrameQueue[WaitingFrame]:
        return self._servers[self._homes[stream]]

    def set_load(
        self, cameras: Mapping[StreamId, EmulatedStream], training: Mapping[StreamId, float], prepares: bool
    ) -> None:
        self._training = dict.fromkeys(self._servers, 0.0)
        for stream, speed in training.items():
            self._training[self._homes[stream]] += speed
        rates = dict.fromkeys(self._servers, 0.0)
        for stream, frames in cameras.items():
            rates[self._homes[stream]] += (
                self._fps / len(cameras) / frames.every if frames.share_milli else 0.0
            )
        works = sum(min(speed, self._trainers) for speed in self._training.values()) + int(prepares)
        self._slowness = max(wanted_part_of_cores(self._facts, [*rates.values()], self._fps, works), 1.0)
        for gpu, server in self._servers.items():
            trains = self._training[gpu] > 0.0 or (prepares and gpu == PREPARATION_GPU)
            server.load = ServerLoad(self._slowness, trains)

    def pace_of(self, stream: StreamId) -> float:
        together = max(self._training[self._homes[stream]], 1.0)
        return min(1.0, self._trainers / together) / self._slowness
