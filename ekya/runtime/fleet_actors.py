"""The actors of a run: creates them under readable names for Ray's dashboard, and restarts them."""

import logging
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from ekya.config.fleet_file import FleetConfig
from ekya.core.errors import UserError
from ekya.core.events import Role
from ekya.core.state import DEATHS_WITHIN_US
from ekya.core.units import BASE_VERSION, US_PER_S, ModelVersion, StreamId
from ekya.gpu.backends.backend import Role as JobRole
from ekya.gpu.backends.backend import ShareJob
from ekya.planning.placement.homes import PREPARATION_GPU, Processes
from ekya.runtime.actor_errors import in_words
from ekya.runtime.actor_kinds import (
    INFERENCE,
    PREPARATION,
    RETRAINING,
    SCHEDULER,
    SPARE,
    ActorConfig,
    ActorKind,
    ProcessConfig,
    StreamActorConfig,
)
from ekya.runtime.actor_processes import GPU_PART, Spares, end_process, make_actor
from ekya.runtime.ready import Ready

_LOG = logging.getLogger(__name__)

_GONE_S = 5.0
"""Timeout for a process that Ray has been told to end; afterwards the kernel kills it."""

START_DEATHS_ALLOWED = 2
"""Deaths of one process before the run begins that are followed by a restart."""

ALONE_AFTER_S = DEATHS_WITHIN_US / US_PER_S
"""A shared process that dies twice within this time is split into one process a stream: the cause cannot be
attributed to one of its streams."""

MICRO_PROFILER = "micro-profiler"
THE_SCHEDULER = "scheduler"

_Worker = tuple[Role, StreamId]

_INFERS: JobRole = "inference"
_TRAINS: JobRole = "retraining"
_THE_SPARE = "inference/spare"


@dataclass(slots=True, eq=False)
class StreamActors:
    """A stream's two workers, and what they are restarted from.

    Attributes:
        inference, retraining: actors, which other streams may share.
        weights: object reference to the bytes of the model that serves.
        newest_weights: the same for the model that serves or is about to.
        version: of the newest weights.
    """

    orders: StreamActorConfig
    inference: Any
    retraining: Any
    weights: Any
    newest_weights: Any
    version: ModelVersion

    def worker(self, role: Role) -> Any:
        """Returns the actor of one role."""
        return self.inference if role is Role.INFERENCE else self.retraining

    def put(self, role: Role, actor: Any) -> None:
        """Replaces the actor of one role."""
        if role is Role.INFERENCE:
            self.inference = actor
        else:
            self.retraining = actor


class FleetActors:
    """All actors of a run. Only ``wait_ready``, ``load_serving``, ``try_hand_over`` and ``close`` block.

    Args:
        orders: common to all actors.
        scheduler: its name.
        weights: bytes and version of the weights that serve first, by stream; None for the base model.
    """

    def __init__(
        self,
        orders: ActorConfig,
        scheduler: str,
        weights: Mapping[StreamId, tuple[bytes, ModelVersion]] | None = None,
    ) -> None:
        self._orders = orders
        self._scheduler_name = scheduler
        self._made: dict[str, int] = {}
        self._processes: dict[Any, Any] = {}
        self._inside: dict[Any, tuple[_Worker, ...]] = {}
        self._died_s: dict[str, float] = {}
        self._alone: set[_Worker] = set()
        self._spares = Spares(self._spare)
        self._has_weights = weights is not None
        self.scheduler = self.make_scheduler()
        self.streams: dict[StreamId, StreamActors] = {}
        for place, stream in enumerate(orders.fleet.streams):
            served, version = (weights or {}).get(stream.id, (None, BASE_VERSION))
            reference = None if served is None else ray.put(served)
            own = StreamActorConfig(orders, place, version)
            self.streams[stream.id] = StreamActors(own, None, None, reference, reference, version)
        self._make_workers(Role.INFERENCE)
        self.preparation: Any = None

    def wait_ready(self) -> dict[StreamId, Ready]:
        """Waits until all streams can be analysed, and restarts an actor that dies meanwhile.

        Window 0 needs inference and the scheduler. The other actors are made when these are ready, and load
        while it goes on: on a small machine they would delay the cameras.

        Raises:
            UserError: an actor rejected its input (``unwrapping_user_error``), or a process died too often.
        """
        deaths: Counter[str] = Counter()
        if not self._has_weights:
            self._load_base(deaths)
        asked = {self._begun(actor): (actor, name) for actor, name in self._names().items()}
        known: dict[StreamId, Ready] = {}
        while asked:
            (answer,), _ = ray.wait(list(asked), num_returns=1)
            actor, name = asked.pop(answer)
            try:
                known |= ray.get(answer) or {}
            except RayActorError as error:
                made = self._make_in_place_of(actor, name, error, deaths)
                asked[self._begun(made)] = (made, name)
        self.make_rest()
        return known

    def make_rest(self) -> None:
        """Makes the actors that window 0 does not need; they load at low priority meanwhile."""
        self._make_workers(Role.RETRAINING, patient=True)
        self.preparation = self.make_preparation(patient=True)

    def _make_workers(self, role: Role, patient: bool = False) -> None:
        """Makes the processes of all streams' workers of a role."""
        together: dict[str, list[StreamId]] = {}
        for stream in self.streams:
            together.setdefault(self._process_name(role, stream), []).append(stream)
        for streams in together.values():
            self._put(role, streams, self._hosted(role, streams, patient=patient))

    def _load_base(self, deaths: "Counter[str]") -> None:
        """Has an inference process make the base model of all streams."""
        name, maker = next((self._names()[one], one) for one in self.inferences)
        while True:
            weights, made = maker.base_weights.options(num_returns=2).remote()
            try:
                ray.get(made)
                break
            except RayActorError as error:
                maker = self._make_in_place_of(maker, name, error, deaths)
        for own in self.streams.values():
            own.weights = own.newest_weights = weights

    def _begun(self, actor: Any) -> Any:
        """Asks an actor to load its models; returns the reference of its reply."""
        inside = self._streams_of(Role.INFERENCE, actor)
        if not inside:
            return actor.ready.remote()
        served = list(dict.fromkeys(own.weights for own in inside))
        return actor.load.remote(tuple(served.index(own.weights) for own in inside), *served)

    def _names(self) -> dict[Any, str]:
        """The actors without which a run cannot begin, each once, with their display names."""
        names = {
            own.inference: self._process_name(Role.INFERENCE, stream) for stream, own in self.streams.items()
        }
        return names | {self.scheduler: THE_SCHEDULER}

    def _make_in_place_of(self, dead: Any, name: str, error: RayError, deaths: "Counter[str]") -> Any:
        """Replaces an actor that died before the run began.

        Raises:
            UserError: it has died too often.
        """
        deaths[name] += 1
        _require_another_start(name, deaths[name], in_words(error))
        self._processes.pop(dead, None)
        if dead is self.scheduler:
            self.scheduler = self.make_scheduler()
            return self.scheduler
        role, _ = self._inside[dead][0]
        streams = [stream for _, stream in self._inside.pop(dead)]
        made = self._hosted(role, streams)
        self._put(role, streams, made)
        return made

    def load_serving(self, ready: Mapping[StreamId, Ready]) -> None:
        """Waits until the micro-profiler has loaded the models that serve, which its first window needs."""
        known = [
            self.preparation.know.remote(stream, ready[stream].settings, own.version, own.newest_weights)
            for stream, own in self.streams.items()
        ]
        # If it dies now, the executor handles that like any other death.
        with suppress(RayActorError):
            ray.get(known)

    @property
    def fleet(self) -> FleetConfig:
        """The fleet that the actors serve."""
        return self._orders.fleet

    @property
    def inferences(self) -> tuple[Any, ...]:
        """The actors of all streams' inference, each once."""
        return tuple(dict.fromkeys(own.inference for own in self.streams.values()))

    @property
    def retrainings(self) -> tuple[Any, ...]:
        """The actors of all streams' retraining, each once."""
        return tuple(dict.fromkeys(own.retraining for own in self.streams.values()))

    def beside(self, stream: StreamId, role: Role) -> tuple[StreamId, ...]:
        """Returns the other streams whose worker of this role is in the same process."""
        own = self.streams[stream].worker(role)
        return tuple(one for one, its in self.streams.items() if its.worker(role) is own and one != stream)

    def try_hand_over(self) -> None:
        """Shares each stream's first weights from its trainer to its inference, as later hot swaps will.

        Raises:
            UserError: CUDA IPC does not work on this machine.
        """
        trials = []
        for stream, own in self.streams.items():
            shared = own.retraining.share_first.remote(stream, own.weights)
            received = own.inference.try_receive.remote(stream, shared)
            freed = own.retraining.stop_sharing.remote(stream, own.version, [received])
            trials += [shared, received, freed]
        try:
            ray.get(trials)
        except RayError as error:
            raise UserError(
                f"hand_over: cuda-ipc does not work between two processes here ({in_words(error)}); "
                "use object-store"
            ) from error

    def make_scheduler(self) -> Any:
        """Makes the scheduler's actor; also used to restart it."""
        return make_actor(
            SCHEDULER.actor_class(), self._free_name(THE_SCHEDULER), {}, 0.0, self._scheduler_name
        )

    def make_preparation(self, patient: bool = False) -> Any:
        """Makes the micro-profiler's actor."""
        share_milli = self._orders.fleet.preparation.share_milli
        environment = self._environment(MICRO_PROFILER, "preparation", share_milli, PREPARATION_GPU)
        kind = replace(PREPARATION, patient=patient)
        return self._worker(kind, self._free_name(MICRO_PROFILER), environment, self._orders)

    def make_spares(self) -> None:
        """Makes spare inference processes, where memory allows.

        They wait for the trainers and the micro-profiler, which must be loaded before window 1.
        """
        loading = [actor.ready.remote() for actor in (*self.retrainings, self.preparation)]
        for own in self.streams.values():
            environment = self._environment(_THE_SPARE, _INFERS, 0, own.orders.gpu)
            self._spares.make(environment, own.orders.gpu, own.weights, loading)

    def make_again(self, stream: StreamId, role: Role, started_monotonic_ns: int) -> Any:
        """Restarts a dead worker with the weights that served last, and lets it begin.

        A process of several streams is restarted for the first of them, and the others join it.

        Returns:
            Reference of a reply that comes when it has begun.
        """
        own = self.streams[stream]
        own.newest_weights = own.weights
        if own.worker(role) not in self._processes:
            name = self._process_name(role, stream)
            streams = [
                one for one in (stream, *self.beside(stream, role)) if self._process_name(role, one) == name
            ]
            spare = self._taken_over(streams) if role is Role.INFERENCE else None
            self._put(role, streams, spare or self._hosted(role, streams, joining=True))
        if role is Role.RETRAINING:
            return own.retraining.begin.remote(started_monotonic_ns)
        orders = replace(own.orders, version=own.version)
        return own.inference.join.remote(orders, own.weights, started_monotonic_ns)

    def _process_name(self, role: Role, stream: StreamId) -> str:
        """Returns the name of a worker's process; streams with the same name share it."""
        if self._orders.processes is Processes.STREAM or (role, stream) in self._alone:
            return f"{role}/{stream}"
        return f"{role}/gpu-{self.streams[stream].orders.gpu}"

    def _put(self, role: Role, streams: Sequence[StreamId], actor: Any) -> None:
        """Records that these workers are in this process."""
        self._inside[actor] = tuple((role, stream) for stream in streams)
        for stream in streams:
            self.streams[stream].put(role, actor)

    def _streams_of(self, role: Role, actor: Any) -> list[StreamActors]:
        return [own for own in self.streams.values() if own.worker(role) is actor]

    def _hosted(
        self, role: Role, streams: Sequence[StreamId], joining: bool = False, patient: bool = False
    ) -> Any:
        """Makes a process for workers of these streams; ``joining`` streams come to an inference later."""
        first = self.streams[streams[0]].orders
        name = self._free_name(self._process_name(role, streams[0]))
        kind, job = (INFERENCE, _INFERS) if role is Role.INFERENCE else (RETRAINING, _TRAINS)
        environment = self._environment(name, job, 0, first.gpu)
        there = () if joining and role is Role.INFERENCE else streams
        orders = ProcessConfig(
            self._orders, name, first.gpu, tuple(self.streams[one].orders for one in there)
        )
        return self._worker(replace(kind, patient=patient), name, environment, orders)

    def _taken_over(self, streams: Sequence[StreamId]) -> Any:
        """Takes a spare process for these streams' inference; None if none is ready."""
        gpu = self.streams[streams[0]].orders.gpu
        return self._spares.take(self._environment(_THE_SPARE, _INFERS, 0, gpu))

    def _spare(self, environment: Mapping[str, str], gpu: int, after: Sequence[Any]) -> Any:
        name = self._free_name(_THE_SPARE)
        orders = ProcessConfig(self._orders, name, gpu, ())
        return self._worker(SPARE, name, environment, orders, *after)

    def _worker(self, kind: ActorKind, name: str, environment: Mapping[str, str], *arguments: object) -> Any:
        """Makes an actor that holds shares."""
        gpu_part = GPU_PART if self._orders.device == "cuda" else 0.0
        actor = make_actor(kind.actor_class(), name, environment, gpu_part, *arguments)
        self._processes[actor] = actor.process.remote()
        return actor

    def end(self, actor: Any) -> None:
        """Kills a worker's process, even if it no longer responds; its death is reported later."""
        process = self._processes.pop(actor, None)
        if process is not None:
            end_process(actor, process)

    def has_died(self, actor: Any) -> None:
        """Forgets a worker's process that has ended, whose pid may be reused.

        A shared process that dies twice within ``ALONE_AFTER_S`` is split into one process a stream, so that
        a stream that keeps killing its process affects no others.
        """
        self._processes.pop(actor, None)
        inside = self._inside.pop(actor, ())
        if len(inside) < 2:
            return
        name, now_s = self._process_name(*inside[0]), time.monotonic()
        if now_s - self._died_s.get(name, -math.inf) < ALONE_AFTER_S:
            _LOG.warning("%s has died again, and its streams have a process each from now on", name)
            self._alone.update(inside)
        self._died_s[name] = now_s

    def close(self) -> None:
        """Ends all actors; no process is left when this returns."""
        numbers = list(self._processes.values())
        for actor in (self.scheduler, *self._processes):
            ray.kill(actor)
        known, _ = ray.wait(numbers, num_returns=len(numbers), timeout=0) if numbers else ([], [])
        self._processes.clear()
        ends_s = time.monotonic() + _GONE_S
        for number in known:
            with suppress(RayError, ProcessLookupError):
                process: int = ray.get(number)
                while time.monotonic() < ends_s:
                    os.kill(process, 0)
                    time.sleep(0.01)
                os.kill(process, signal.SIGKILL)

    def _free_name(self, name: str) -> str:
        """Makes a name unique: a dead actor's name is not available immediately."""
        made, self._made[name] = self._made.get(name, 0), self._made.get(name, 0) + 1
        server = f"{self._orders.server}/" if self._orders.server else ""
        return server + name + (f" (restart {made})" if made else "")

    def _environment(self, name: str, role: JobRole, share_milli: int, gpu: int) -> Mapping[str, str]:
        return self._orders.shares.actor_env(ShareJob(name, role, share_milli, gpu))


def _require_another_start(name: str, deaths: int, reason: str) -> None:
    """Logs that a process died while the run started and is restarted.

    Raises:
        UserError: it has died too often.
    """
    if deaths > START_DEATHS_ALLOWED:
        raise UserError(
            f"{name}: its process died {deaths} times while the run started ({reason}); free memory, or run "
            "fewer streams"
        )
    _LOG.warning("%s: its process died while the run started (%s) and is made again", name, reason)
