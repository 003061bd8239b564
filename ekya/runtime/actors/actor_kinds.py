"""Actor classes by name, imported in the actor's process only, and the plain values that construct them."""

import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

from ekya.config.fleet_file import FleetConfig
from ekya.core.host import StreamCosts
from ekya.core.profile import FamilyCost
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.units import FULL_GPU_MILLI, ModelVersion, StreamId
from ekya.gpu.backends.backend import ShareBackend
from ekya.models.edge.forward import PLAIN, ForwardWay
from ekya.pipeline.settings import PreparationSettings
from ekya.planning.placement.homes import Processes
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.actors.actor_messages import make_hosting_class


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
        family_costs: of each family of Γ on this machine.
        keeps_hours: whether answers are written by the hour and nothing is kept for a report: a service.
        trainers, trainer_milli: number of retraining processes of a GPU that its streams share, and the part
            of the GPU to which each is limited.
        variables: values of the environment variables that cameras name; a cluster's nodes have others.
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
    family_costs: tuple[FamilyCost, ...] = ()
    keeps_hours: bool = False
    trainers: int = 1
    trainer_milli: int = FULL_GPU_MILLI
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def audit_frames(self) -> int:
        """Number of frames of a stream's window that are audited: none in a run, which is scored."""
        return self.fleet.golden.audit_frames if self.keeps_hours else 0


@dataclass(frozen=True, slots=True)
class StreamActorConfig:
    """Settings of one stream.

    Attributes:
        common: settings of the run.
        place: position among the fleet's streams.
        version: of the model that serves first.
        alone_until_s: as in ``ModelBatcher.add_stream``.
    """

    common: ActorConfig
    place: int
    version: ModelVersion
    alone_until_s: float = 0.0

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
        answering: path of the driver's ``AnsweringMark``; empty for none.
    """

    common: ActorConfig
    name: str
    gpu: int
    streams: tuple[StreamActorConfig, ...]
    answering: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """Reply of an inference about a stream that can begin.

    Attributes:
        settings: of the stream.
        died: why its recording's decoder died on opening; such a stream has ended before it began.
    """

    settings: PreparationSettings
    died: str | None = None


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
        low_priority: whether it loads at the lowest priority, for a process that nothing waits for.
        title: name in Ray's dashboard and in the process list; empty for ``name``.
    """

    module: str
    name: str
    methods: tuple[str, ...]
    stream_methods: tuple[str, ...] = ()
    low_priority: bool = False
    title: str = ""

    def actor_class(self, name: str) -> type[Any]:
        """Returns a class for Ray that imports the real class when an actor of this name is made from it."""
        load = partial(_load_slowly, self) if self.low_priority else partial(_load, self)
        return make_hosting_class(self.title or self.name, name, load, self.methods, self.stream_methods)


def _load(kind: ActorKind) -> type[Any]:
    loaded: type[Any] = getattr(import_module(kind.module), kind.name)
    return loaded


def _load_slowly(kind: ActorKind) -> type[Any]:
    """Loads in a separate thread of the lowest priority.

    On Linux priority belongs to a thread, and an unprivileged process cannot raise it again.
    """
    with ThreadPoolExecutor(1, initializer=_lower_priority_fully) as threads:
        return threads.submit(_load, kind).result()


def _lower_priority_fully() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LAST)


INFERENCE = ActorKind(
    "ekya.runtime.actors.inference_actor",
    "InferenceActor",
    (
        "process_id",
        "make_base_weights",
        "warm_up",
        "load_streams",
        "start_run",
        "rejoin_stream",
        "admit_stream",
        "remove_stream",
        "window_material",
        "poll",
        "end_run",
    ),
    (
        "set_inference",
        "receive_checkpoint",
        "roll_back",
        "set_paused",
        "set_areas",
        "draw_picture",
        "drain_audit_frames",
    ),
)
SPARE = replace(INFERENCE, low_priority=True, title="SpareInference")
"""Spare inference process that holds no stream yet."""

RETRAINING = ActorKind(
    "ekya.runtime.actors.retraining_actor",
    "RetrainingActor",
    ("process_id", "confirm_ready", "start_run", "admit_stream", "remove_stream", "poll", "finish_saving"),
    (
        "start_retraining",
        "receive_remote_checkpoint",
        "exemplar_memory",
        "resize_retraining",
        "stop_retraining",
        "forget_pictures",
        "send_checkpoint",
    ),
)
PREPARATION = ActorKind(
    "ekya.runtime.actors.preparation_actor",
    "PreparationActor",
    (
        "process_id",
        "confirm_ready",
        "start_run",
        "admit_stream",
        "forget_stream",
        "start_preparation",
        "resize_preparation",
        "load_model",
        "hand_in",
        "hand_in_failed",
        "hand_in_audit",
        "end_preparation",
        "newest_labels",
        "require_class",
        "poll",
    ),
)
