"""Queues of frames on virtual time, analysed at the stream's share or by a GPU's server.

Either takes the newest frame of a camera.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ekya.core.speed import LINEAR
from ekya.core.units import US_PER_S
from ekya.models.edge.forward import MOST_CROPS, MOST_IMAGES
from ekya.pipeline.gpu_facts import GpuFacts


class Waiting(Protocol):
    """A frame to be analysed."""

    @property
    def t_us(self) -> int:
        """When it arrived."""


WaitingT = TypeVar("WaitingT", bound=Waiting)


@dataclass(frozen=True, slots=True)
class FrameWork:
    """GPU-seconds of a frame's analysis, and its number of crops; one for a model that detects."""

    gpu_s: float
    crops: int


class QueuedFrames(Protocol[WaitingT]):
    """The frames of one camera, in order; see ``EmulatedStream``."""

    @property
    def next_us(self) -> int | None:
        """When the next frame arrives; None after the last."""

    @property
    def has_waiting(self) -> bool:
        """Whether a frame waits to be analysed, and the stream has a share."""

    @property
    def share_milli(self) -> int:
        """The share for inference."""

    def admit_next_frame(self) -> None:
        """Lets the next frame arrive; it takes the place of the one that waits."""

    def take_waiting(self) -> WaitingT:
        """Takes the frame that waits."""

    def begin_analysis(self, waiting: WaitingT) -> FrameWork:
        """Analyses a frame, or follows boxes into it; returns what that costs."""

    def give_up(self, waiting: WaitingT) -> None:
        """Passes a frame over for which the GPU had no time."""


class FrameQueue(Protocol[WaitingT]):
    """Decides when the frames of its streams are analysed."""

    def add_stream(self, frames: QueuedFrames[WaitingT]) -> None:
        """Adds a camera."""

    def advance(self, now_us: int) -> None:
        """Processes everything before ``now_us``; a frame of that instant is left for what is set then."""

    def resume_stream(self, now_us: int) -> None:
        """Called when a stream gets a share that had none."""


TakesS = Callable[[FrameWork, int], float]
"""Seconds that a frame's work takes at a share in thousandths."""


class AtOwnShare(Generic[WaitingT]):
    """Analyses one camera's frames, one after the other, at its share."""

    def __init__(self, takes_s: TakesS) -> None:
        self._takes_s = takes_s
        self._streams: list[QueuedFrames[WaitingT]] = []
        self._busy_until_us = -1

    def add_stream(self, frames: QueuedFrames[WaitingT]) -> None:
        self._streams = [frames]

    def advance(self, now_us: int) -> None:
        for frames in self._streams:
            while (next_us := frames.next_us) is not None and next_us < now_us:
                self._work_until(frames, next_us)
                frames.admit_next_frame()
            self._work_until(frames, now_us)

    def resume_stream(self, now_us: int) -> None:
        # A frame that has waited without a share begins now, and not when it arrived.
        self._busy_until_us = max(self._busy_until_us, now_us)

    def _work_until(self, frames: QueuedFrames[WaitingT], t_us: int) -> None:
        while self._busy_until_us <= t_us and frames.has_waiting:
            waiting = frames.take_waiting()
            begun_us = max(waiting.t_us, self._busy_until_us)
            takes_s = self._takes_s(frames.begin_analysis(waiting), frames.share_milli)
            self._busy_until_us = begun_us + round(takes_s * US_PER_S)


def queue_of_core() -> AtOwnShare[WaitingT]:
    """Returns the queue of a core: work takes what it counts, at a speed in proportion to its share."""
    return AtOwnShare(lambda work, share_milli: work.gpu_s / LINEAR.speed_at(share_milli))


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """What runs beside a server.

    Attributes:
        slowness: by which work of the host takes longer than on free cores, at least 1.
        trains: whether a retraining or a preparation uses the same GPU.
    """

    slowness: float = 1.0
    trains: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Cut(Generic[WaitingT]):
    """A frame that waits for the GPU, from ``ready_us`` on."""

    frames: QueuedFrames[WaitingT]
    waiting: WaitingT
    ready_us: int


class InferenceServer(Generic[WaitingT]):
    """Analyses the frames of all cameras at home on a GPU, in batches of all that wait.

    One interpreter cuts the frames, the longest waiting camera first, while the GPU analyses those before.

    Args:
        facts: of the GPU and its host.

    Attributes:
        load: what runs beside it, until it is changed.
    """

    def __init__(self, facts: GpuFacts) -> None:
        self._facts = facts
        self._streams: list[QueuedFrames[WaitingT]] = []
        self._waits_since_us: dict[int, int] = {}
        self._cut: list[_Cut[WaitingT]] = []
        self._host_free_us = self._gpu_free_us = 0
        self.load = ServerLoad()

    def add_stream(self, frames: QueuedFrames[WaitingT]) -> None:
        self._streams.append(frames)

    def resume_stream(self, now_us: int) -> None:
        self._host_free_us = max(self._host_free_us, now_us)

    def advance(self, now_us: int) -> None:
        while True:
            # Of what happens at the same time the first is done first.
            acts = [act for act in (self._arrival(), self._batch(), self._cutting()) if act is not None]
            t_us, act = min(acts, key=lambda one: one[0], default=(now_us, _rest))
            if t_us >= now_us:
                return
            act(t_us)

    def _arrival(self) -> "_Due | None":
        ahead = [(t_us, at) for at, one in enumerate(self._streams) if (t_us := one.next_us) is not None]
        if not ahead:
            return None
        t_us, at = min(ahead)
        return t_us, lambda now_us: self._arrive(at, now_us)

    def _arrive(self, at: int, now_us: int) -> None:
        self._streams[at].admit_next_frame()
        if self._streams[at].has_waiting:
            self._waits_since_us.setdefault(at, now_us)

    def _cutting(self) -> "_Due | None":
        read_us = round(self._facts.reading_s * self.load.slowness * US_PER_S)
        # A stream without a share had none when its frame arrived.
        ready = [
            (self._waits_since_us.get(at, self._host_free_us) + read_us, at)
            for at, one in enumerate(self._streams)
            if one.has_waiting
        ]
        if not ready:
            return None
        t_us, at = min(ready)
        return max(t_us, self._host_free_us), lambda now_us: self._cut_frame(at, now_us)

    def _cut_frame(self, at: int, now_us: int) -> None:
        frames = self._streams[at]
        self._waits_since_us.pop(at, None)
        waiting = frames.take_waiting()
        self._host_free_us = now_us + round(self._facts.frame_s * self.load.slowness * US_PER_S)
        self._cut.append(_Cut(frames, waiting, self._host_free_us))

    def _batch(self) -> "_Due | None":
        if not self._cut:
            return None
        return max(self._gpu_free_us, self._cut[0].ready_us), self._analyse_batch

    def _analyse_batch(self, now_us: int) -> None:
        newest = {id(one.frames): one for one in self._cut if one.ready_us <= now_us}
        for older in [one for one in self._cut if newest.get(id(one.frames), one).ready_us > one.ready_us]:
            self._cut.remove(older)
            older.frames.give_up(older.waiting)
        gpu_s, crops, images = self._facts.pass_s, 0, 0
        while self._cut and self._cut[0].ready_us <= now_us and images < MOST_IMAGES and crops < MOST_CROPS:
            one = self._cut.pop(0)
            work = one.frames.begin_analysis(one.waiting)
            gpu_s, crops, images = gpu_s + work.gpu_s, crops + work.crops, images + 1
        speed = self._facts.beside_training if self.load.trains else 1.0
        self._gpu_free_us = now_us + max(round(gpu_s / speed * US_PER_S), 1)


_Due = tuple[int, Callable[[int], None]]
"""A time, and what happens then."""


def _rest(now_us: int) -> None:
    """Does nothing: no stream has a frame any more."""


def wanted_part_of_cores(
    facts: GpuFacts, analysed_per_s: Sequence[float], read_per_s: float, training: float
) -> float:
    """Returns the cores that a server's work wants, as a part of those that there are.

    Args:
        facts: of the server.
        analysed_per_s: frames a second that each inference server is to analyse.
        read_per_s: frames a second of all cameras.
        training: retrainings and preparations at full speed: each holds a core, since it launches kernels.
    """
    servers = sum(min(rate * facts.frame_s, 1.0) for rate in analysed_per_s)
    return (read_per_s * facts.reading_s + servers + training) / facts.cores
