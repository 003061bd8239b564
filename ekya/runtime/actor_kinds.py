"""Actor classes by name, imported in the actor's process only, and the plain values that construct them."""

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from ekya.config.fleet_file import FleetConfig
from ekya.core.host import StreamCosts
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.units import ModelVersion, StreamId
from ekya.gpu.backends.backend import ShareBackend
from ekya.models.edge.forward import PLAIN, ForwardWay
from ekya.planning.placement.homes import Processes
from ekya.results.storage.run_folder import RunFolder


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


_LAST = 19
"""Niceness of the lowest priority."""


@dataclass(frozen=True, slots=True)
class ActorKind:
    """Class of an actor, imported lazily.

    Attributes:
        module: of the class.
        name: of the class.
        methods: those that other processes call.
        stream_methods: the same of each of its ``streams``; their first argument is the stream. They do
            nothing for a stream that is not in the process.
        patient: whether it loads at the lowest priority, for a process that nothing waits for.
        title: name in Ray's dashboard and in the process list; empty for ``name``.
    """

    module: str
    name: str
    methods: tuple[str, ...]
    stream_methods: tuple[str, ...] = ()
    patient: bool = False
    title: str = ""

    def actor_class(self) -> type[Any]:
        """Returns a class for Ray that imports the real class when an actor is made from it."""

        def make(actor: Any, *arguments: object) -> None:
            loaded = _at_last(self._load) if self.patient else self._load()
            actor.works = loaded(*arguments)

        methods = {name: _forwarded(name) for name in self.methods}
        of_streams = {name: _forwarded_to_stream(name) for name in self.stream_methods}
        return type(self.title or self.name, (), {"__init__": make, **methods, **of_streams})

    def _load(self) -> type[Any]:
        found: type[Any] = getattr(import_module(self.module), self.name)
        return found


def _forwarded(name: str) -> Callable[..., Any]:
    def call(actor: Any, *arguments: object) -> Any:
        return getattr(actor.works, name)(*arguments)

    call.__name__ = name
    return call


def _forwarded_to_stream(name: str) -> Callable[..., Any]:
    def call(actor: Any, stream: StreamId, *arguments: object) -> Any:
        one = actor.works.streams.get(stream)
        return None if one is None else getattr(one, name)(*arguments)

    call.__name__ = name
    return call


def _at_last(load: Callable[[], type[Any]]) -> type[Any]:
    """Loads in a separate thread of the lowest priority.

    On Linux priority belongs to a thread, and an unprivileged process cannot raise it again.
    """
    with ThreadPoolExecutor(1, initializer=_lower_priority_fully) as threads:
        return threads.submit(load).result()


def _lower_priority_fully() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LAST)


INFERENCE = ActorKind(
    "ekya.runtime.inference_actor",
    "InferenceActor",
    ("process", "base_weights", "warm_up", "load", "begin", "join", "leave", "material", "poll", "end"),
    ("configure", "receive", "try_receive", "roll_back"),
)
SPARE = replace(INFERENCE, patient=True, title="SpareInference")
"""Spare inference process that holds no stream yet."""

RETRAINING = ActorKind(
    "ekya.runtime.retraining_actor",
    "RetrainingActor",
    ("process", "ready", "begin", "poll", "end"),
    (
        "start",
        "receive",
        "memory",
        "resize",
        "stop",
        "share",
        "share_first",
        "stop_sharing",
        "send",
        "leave",
    ),
)
PREPARATION = ActorKind(
    "ekya.runtime.preparation_actor",
    "PreparationActor",
    (
        "process",
        "ready",
        "begin_run",
        "begin",
        "resize",
        "know",
        "hand_in",
        "hand_in_failed",
        "end",
        "labels",
        "passed",
        "poll",
    ),
)
SCHEDULER = ActorKind("ekya.runtime.planning", "SchedulerActor", ("ready", "plan"))
