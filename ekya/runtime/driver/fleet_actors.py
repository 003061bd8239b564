"""The actors of a run: creates them under readable names for Ray's dashboard, and restarts them."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from ekya.config.fleet_file import FleetConfig
from ekya.core.areas import Areas
from ekya.core.errors import UserError
from ekya.core.events import Role
from ekya.core.host import StreamCosts
from ekya.core.stream_faults import DEATHS_WITHIN_US
from ekya.core.units import BASE_VERSION, US_PER_S, ModelVersion, StreamId
from ekya.gpu.backends.backend import Role as JobRole
from ekya.gpu.backends.backend import ShareJob
from ekya.planning.placement.homes import PREPARATION_GPU, Processes, home_of_next
from ekya.runtime.actors.actor_kinds import (
    INFERENCE,
    PREPARATION,
    RETRAINING,
    ActorConfig,
    ActorKind,
    ProcessConfig,
    Ready,
    StreamActorConfig,
)
from ekya.runtime.actors.actor_messages import in_words
from ekya.runtime.driver.actor_processes import ProcessTable, SpareProcesses

_LOG = logging.getLogger(__name__)

START_DEATHS_ALLOWED = 2
"""Deaths of one process before the run begins that are followed by a restart."""

ALONE_AFTER_S = DEATHS_WITHIN_US / US_PER_S
"""A shared process that dies twice within this time is split into one process a stream: the cause cannot be
attributed to one of its streams."""

_MICRO_PROFILER = "micro-profiler"


@dataclass(slots=True, eq=False)
class StreamActors:
    """A stream's two workers, and what they are restarted from.

    Attributes:
        inference, retraining: actors, which other streams may share.
        weights: object reference to the bytes of the model that serves.
        newest_weights: the same for the model that serves or is about to.
        version: of the newest weights.
        paused: whether its camera is closed.
    """

    config: StreamActorConfig
    inference: Any
    retraining: Any
    weights: Any
    newest_weights: Any
    version: ModelVersion
    paused: bool = False

    def worker(self, role: Role) -> Any:
        """Returns the actor of one role."""
        return self.inference if role is Role.INFERENCE else self.retraining

    def replace_worker(self, role: Role, actor: Any) -> None:
        """Replaces the actor of one role."""
        if role is Role.INFERENCE:
            self.inference = actor
        else:
            self.retraining = actor


class FleetActors:
    """All actors of a run. Only ``wait_ready``, ``load_serving`` and ``close`` block.

    Args:
        config: common to all actors.
        weights: bytes and version of the weights that serve first, by stream; others serve the base model.
    """

    def __init__(
        self,
        config: ActorConfig,
        weights: Mapping[StreamId, tuple[bytes, ModelVersion]] = MappingProxyType({}),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._now_s = config, now_s
        self._processes = ProcessTable(config)
        self._died_s: dict[str, float] = {}
        self._alone: set[tuple[Role, StreamId]] = set()
        self._spares = SpareProcesses(self._processes)
        self.preparation: Any = None
        self.streams: dict[StreamId, StreamActors] = {}
        for place, stream in enumerate(config.fleet.streams):
            served, version = weights.get(stream.id, (None, BASE_VERSION))
            reference = None if served is None else ray.put(served)
            own = StreamActorConfig(config, place, version)
            self.streams[stream.id] = StreamActors(own, None, None, reference, reference, version)
        self._make_workers(Role.INFERENCE)

    # Before the run

    def wait_ready(self, loads_all: bool) -> dict[StreamId, Ready]:
        """Waits until all streams can be analysed, and restarts an actor that dies meanwhile.

        Args:
            loads_all: the other actors load meanwhile, for a caller that waits for them too. Else they are
                made when these are ready: on a small machine they would delay the cameras.

        Raises:
            UserError: an actor rejected its input (``unwrapping_user_error``), a process died too often, or
                the decoders of all streams have died.
        """
        deaths: Counter[str] = Counter()
        if loads_all:
            self.make_remaining_actors()
        if any(own.weights is None for own in self.streams.values()):
            self._load_base(deaths)
        loading = {self._load(actor): actor for actor in self.workers(Role.INFERENCE)}
        known: dict[StreamId, Ready] = {}
        while loading:
            (reply,), _ = ray.wait(list(loading), num_returns=1)
            actor = loading.pop(reply)
            try:
                known |= ray.get(reply)
            except RayActorError as error:
                made = self._replace(actor, error, deaths)
                loading[self._load(made)] = made
        if all(one.died is not None for one in known.values()):
            stream, first = min(known.items())
            raise UserError(
                f"no stream can be decoded, {stream} since its decoder died ({first.died}); convert or "
                "replace the files"
            )
        if not loads_all:
            self.make_remaining_actors()
        return known

    def make_remaining_actors(self) -> None:
        """Makes the actors that answer no frames; they load at low priority."""
        self._make_workers(Role.RETRAINING, low_priority=True)
        self.preparation = self.make_preparation(low_priority=True)

    def _make_workers(self, role: Role, low_priority: bool = False) -> None:
        """Makes the processes of all streams' workers of a role."""
        together: dict[str, list[StreamId]] = {}
        for stream in self.streams:
            together.setdefault(self._process_name(role, stream), []).append(stream)
        for streams in together.values():
            self._make_process(role, streams, low_priority=low_priority)

    def _load_base(self, deaths: Counter[str]) -> None:
        """Has an inference process make the base model of all streams without weights."""
        actor = self.workers(Role.INFERENCE)[0]
        while True:
            weights, made = actor.make_base_weights.options(num_returns=2).remote()
            try:
                ray.get(made)
                break
            except RayActorError as error:
                actor = self._replace(actor, error, deaths)
        for own in self.streams.values():
            if own.weights is None:
                own.weights = own.newest_weights = weights

    def _load(self, actor: Any) -> Any:
        """Has an inference process load its models; returns the reference of its reply."""
        inside = [self.streams[stream].weights for stream in self._processes[actor].streams]
        served = list(dict.fromkeys(inside))
        return actor.load_streams.remote(tuple(served.index(weights) for weights in inside), *served)

    def _replace(self, dead: Any, error: RayError, deaths: Counter[str]) -> Any:
        """Replaces an inference process that died before the run began.

        Raises:
            UserError: it has died too often.
        """
        process = self._processes[dead]
        self._processes.forget_process(dead)
        name = self._process_name(process.role, process.streams[0])
        deaths[name] += 1
        if deaths[name] > START_DEATHS_ALLOWED:
            raise UserError(
                f"{name}: its process died {deaths[name]} times while the run started ({in_words(error)}); "
                "free memory, or run fewer streams"
            )
        _LOG.warning(
            "%s: its process died while the run started (%s) and is made again", name, in_words(error)
        )
        return self._make_process(process.role, process.streams)

    def load_serving(self, ready: Mapping[StreamId, Ready]) -> None:
        """Waits until trainers, and the micro-profiler with the models that serve, have loaded."""
        load = self.preparation.load_model
        known = [trainers.confirm_ready.remote() for trainers in self.workers(Role.RETRAINING)]
        for stream, own in self.streams.items():
            known.append(load.remote(stream, ready[stream].settings, own.version, own.newest_weights))
        # If it dies now, the executor handles that like any other death.
        with suppress(RayActorError):
            ray.get(known)

    # During the run

    @property
    def fleet(self) -> FleetConfig:
        """The fleet that the actors serve."""
        return self._config.fleet

    def change_fleet(self, sections: Mapping[str, object]) -> None:
        """Has actors that are made from now on find these sections of the fleet."""
        self._config = replace(self._config, fleet=self._config.fleet.model_copy(update=dict(sections)))

    @property
    def audits(self) -> bool:
        """True if answers are audited."""
        return self._config.audit_frames > 0

    def workers(self, role: Role) -> tuple[Any, ...]:
        """Returns the actors of all streams' workers of a role, each once."""
        return tuple(dict.fromkeys(own.worker(role) for own in self.streams.values()))

    def streams_sharing_process(self, stream: StreamId, role: Role) -> tuple[StreamId, ...]:
        """Returns the other streams whose worker of this role is in the same process."""
        own = self.streams[stream].worker(role)
        return tuple(one for one, its in self.streams.items() if its.worker(role) is own and one != stream)

    def remake_worker(self, stream: StreamId, role: Role, started_monotonic_ns: int) -> Any:
        """Restarts a dead worker with the weights that served last, and lets it begin.

        A process of several streams is restarted for the first of them, and the others join it.

        Returns:
            Reference of a reply that comes when it has begun.
        """
        own = self.streams[stream]
        # What was on its way to the dead process is lost, and no retraining may start from it.
        own.newest_weights = own.weights
        if not self._processes.is_running(own.worker(role)):
            name = self._process_name(role, stream)
            together = (stream, *self.streams_sharing_process(stream, role))
            streams = [one for one in together if self._process_name(role, one) == name]
            self._take_or_make_process(role, streams)
        if role is Role.RETRAINING:
            return own.retraining.admit_stream.remote(own.config, started_monotonic_ns)
        config = replace(own.config, version=own.version)
        return own.inference.rejoin_stream.remote(config, own.weights, started_monotonic_ns)

    def pause_stream(self, stream: StreamId, paused: bool) -> None:
        """Closes the camera of a stream, or opens it again."""
        own = self.streams[stream]
        own.paused = paused
        own.inference.set_paused.remote(stream, paused)

    def change_areas(self, stream: StreamId, areas: Areas) -> None:
        """Has workers of a stream that are made from now on know where its objects count."""
        streams = tuple(
            one.model_copy(update={"mask": areas.mask, "zone": areas.zone}) if one.id == stream else one
            for one in self.fleet.streams
        )
        self.change_fleet({"streams": streams})
        place = [one.id for one in streams].index(stream)
        own = self.streams[stream]
        own.config = StreamActorConfig(self._config, place, own.config.version)

    def send_areas(self, stream: StreamId, areas: Areas) -> None:
        """Tells a stream's inference where its objects count from the next frame on."""
        self.streams[stream].inference.set_areas.remote(stream, areas)

    def add_stream(
        self, fleet: FleetConfig, stream: StreamId, costs: StreamCosts, started_monotonic_ns: int
    ) -> tuple[Any, Any]:
        """Adds a stream, which serves the base model.

        Args:
            fleet: with the stream; the others are as before.
            stream: the new one.
            costs: of its frames.
            started_monotonic_ns: start of the run.

        Returns:
            References of its ``Ready``, which comes when its inference has begun, and of the reply of its
            trainer.
        """
        gpu = self._home_of_next()
        homes = {one: own.config.gpu for one, own in self.streams.items()} | {stream: gpu}
        known = {**self._config.costs, stream: costs}
        in_order = tuple(homes[one.id] for one in fleet.streams)
        self._config = replace(self._config, fleet=fleet, homes=in_order, costs=known)
        place = [one.id for one in fleet.streams].index(stream)
        config = StreamActorConfig(self._config, place, BASE_VERSION)
        own = StreamActors(config, None, None, None, None, BASE_VERSION)
        self.streams[stream] = own
        for role in Role:
            self._join_process(stream, role)
        own.weights, _ = own.inference.make_base_weights.options(num_returns=2).remote(stream)
        own.newest_weights = own.weights
        self.preparation.admit_stream.remote(stream, costs)
        admitted = own.retraining.admit_stream.remote(config, started_monotonic_ns)
        return own.inference.admit_stream.remote(config, own.weights, started_monotonic_ns), admitted

    def home_gpu(self, stream: StreamId) -> int:
        """Returns the GPU of a stream's processes."""
        return self.streams[stream].config.gpu

    def _home_of_next(self) -> int:
        """Returns the GPU with most capacity for one more stream; of cores, one that has a process."""
        living = Counter(own.config.gpu for own in self.streams.values())
        if self._config.device == "cuda":
            return home_of_next(living, self.fleet.capacity_milli)
        return min(living, key=lambda one: (living[one], one), default=PREPARATION_GPU)

    def _join_process(self, stream: StreamId, role: Role) -> None:
        """Puts a worker into the process that streams of its GPU share, or makes a process for it."""
        name = self._process_name(role, stream)
        for one, its in self.streams.items():
            actor = its.worker(role)
            if self._processes.is_running(actor) and self._process_name(role, one) == name:
                self._put(actor, role, (*self._processes[actor].streams, stream))
                return
        self._take_or_make_process(role, [stream])

    def remove_stream(self, stream: StreamId) -> None:
        """Forgets a stream whose workers have ended."""
        del self.streams[stream]
        self._processes.remove_stream(stream)
        others = tuple(one for one in self.fleet.streams if one.id != stream)
        homes = tuple(self.streams[one.id].config.gpu for one in others)
        fleet = self.fleet.model_copy(update={"streams": others})
        self._config = replace(self._config, fleet=fleet, homes=homes)

    def kill_process(self, actor: Any) -> None:
        """Kills a worker's process, even if it no longer responds; its death is reported later."""
        self._processes.kill_process(actor)

    def note_death(self, actor: Any) -> None:
        """Forgets a worker's process that has ended, whose pid may be reused.

        A shared process that dies twice within ``ALONE_AFTER_S`` is split into one process a stream, so that
        a stream that keeps killing its process affects no others.
        """
        process = self._processes.forget_process(actor)
        if process is None or len(process.streams) < 2:
            return
        name, now_s = self._process_name(process.role, process.streams[0]), self._now_s()
        if now_s - self._died_s.get(name, -math.inf) < ALONE_AFTER_S:
            _LOG.warning("%s has died again, and its streams have a process each from now on", name)
            self._alone.update((process.role, stream) for stream in process.streams)
        self._died_s[name] = now_s

    def close(self) -> None:
        """Ends all actors; no process is left when this returns."""
        self._processes.close()

    def make_spares(self) -> None:
        """Makes a spare inference process for each GPU; see ``SpareProcesses.renew_spares``."""
        weights: dict[int, Any] = {}
        for own in self.streams.values():
            weights.setdefault(own.config.gpu, own.weights)
        self._spares.renew_spares(self._config, weights, (*self.workers(Role.RETRAINING), self.preparation))

    def _take_or_make_process(self, role: Role, streams: Sequence[StreamId]) -> None:
        """Puts workers that join later into the spare process of their GPU, or into one that is made."""
        gpu = self.streams[streams[0]].config.gpu
        spare = self._spares.take_spare(gpu) if role is Role.INFERENCE else None
        if spare is None:
            self._make_process(role, streams, joining=True)
        else:
            self._put(spare, role, streams)

    def make_preparation(self, low_priority: bool = False) -> Any:
        """Makes the micro-profiler's actor."""
        share_milli = self.fleet.preparation.share_milli
        job = ShareJob(_MICRO_PROFILER, "preparation", share_milli, PREPARATION_GPU)
        kind = replace(PREPARATION, low_priority=low_priority)
        name = self._processes.free_name(_MICRO_PROFILER)
        return self._processes.start_actor(kind, name, job, self._config)

    def _make_process(
        self, role: Role, streams: Sequence[StreamId], joining: bool = False, low_priority: bool = False
    ) -> Any:
        """Makes a process for workers of these streams; ``joining`` streams come to an inference later."""
        gpu = self.streams[streams[0]].config.gpu
        name = self._processes.free_name(self._process_name(role, streams[0]))
        kind, job_role = _WORKERS[role]
        inside = () if joining and role is Role.INFERENCE else streams
        configs = tuple(self.streams[stream].config for stream in inside)
        config = ProcessConfig(self._config, name, gpu, configs)
        kind = replace(kind, low_priority=low_priority)
        actor = self._processes.start_actor(kind, name, ShareJob(name, job_role, 0, gpu), config)
        self._put(actor, role, streams)
        return actor

    def _put(self, actor: Any, role: Role, streams: Sequence[StreamId]) -> None:
        """Records that these workers are in this process."""
        process = self._processes[actor]
        process.role, process.streams = role, tuple(streams)
        for stream in streams:
            self.streams[stream].replace_worker(role, actor)

    def _process_name(self, role: Role, stream: StreamId) -> str:
        """Returns the name of a worker's process; streams with the same name share it."""
        if self._config.processes is Processes.STREAM or (role, stream) in self._alone:
            return f"{role}/{stream}"
        return f"{role}/gpu-{self.streams[stream].config.gpu}"


_WORKERS: Mapping[Role, tuple[ActorKind, JobRole]] = {
    Role.INFERENCE: (INFERENCE, "inference"),
    Role.RETRAINING: (RETRAINING, "retraining"),
}
