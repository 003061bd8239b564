"""The actors of a run: creates them under readable names for Ray's dashboard, and restarts them."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
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
from ekya.runtime.driver.places import PlaceAt, on_this_node
from ekya.streams.ingest.credentials import named_values

_LOG = logging.getLogger(__name__)

START_DEATHS_ALLOWED = 2
"""Deaths of one process before the run begins that are followed by a restart."""

ALONE_AFTER_S = DEATHS_WITHIN_US / US_PER_S
"""A stream to which two deaths of a shared process are charged within this time has its own from then on."""

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
        left_gpu: its home before, which went with its node; None of one that has not moved.
        trainer: number of its retraining process among those that the streams of its GPU share.
    """

    config: StreamActorConfig
    inference: Any
    retraining: Any
    weights: Any
    newest_weights: Any
    version: ModelVersion
    paused: bool = False
    left_gpu: int | None = None
    trainer: int = 0

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
        place_at: where actors are.
    """

    def __init__(
        self,
        config: ActorConfig,
        weights: Mapping[StreamId, tuple[bytes, ModelVersion]] = MappingProxyType({}),
        now_s: Callable[[], float] = time.monotonic,
        place_at: PlaceAt = on_this_node,
    ) -> None:
        self._config, self._now_s = config, now_s
        self._processes = ProcessTable(config, place_at)
        self._died_s: dict[tuple[Role, StreamId], float] = {}
        self._alone_until_s: dict[StreamId, float] = {}
        self._charged: dict[Any, frozenset[StreamId]] = {}
        self._alone: set[tuple[Role, StreamId]] = set()
        self._spares = SpareProcesses(self._processes)
        self.preparation: Any = None
        self.streams: dict[StreamId, StreamActors] = {}
        for place, stream in enumerate(config.fleet.streams):
            served, version = weights.get(stream.id, (None, BASE_VERSION))
            reference = None if served is None else ray.put(served)
            own = StreamActorConfig(config, place, version)
            trainer = self._emptiest_trainer(own.gpu)
            self.streams[stream.id] = StreamActors(
                own, None, None, reference, reference, version, trainer=trainer
            )
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

        Where its node is gone, the stream is at home elsewhere from then on. A process of several streams is
        restarted for the first of them, and the others join it.

        Returns:
            Reference of a reply that comes when it has begun.
        """
        own = self.streams[stream]
        if self._is_lost(own.config.gpu):
            self._leave_home(stream)
        # What was on its way to the dead process is lost, and no retraining may start from it.
        own.newest_weights = own.weights
        if not self._processes.is_running(own.worker(role)):
            name = self._process_name(role, stream)
            together = (stream, *self.streams_sharing_process(stream, role))
            streams = [one for one in together if self._process_name(role, one) == name]
            self._join_process(role, streams)
        if role is Role.RETRAINING:
            return own.retraining.admit_stream.remote(
                own.config, self.translate_ns(own.retraining, started_monotonic_ns)
            )
        alone_until_s = self._alone_until_s.get(stream, 0.0)
        config = replace(own.config, version=own.version, alone_until_s=alone_until_s)
        return own.inference.rejoin_stream.remote(
            config, own.weights, self.translate_ns(own.inference, started_monotonic_ns)
        )

    def move_retraining(
        self, stream: StreamId, training: Collection[StreamId], started_monotonic_ns: int
    ) -> Any:
        """Moves a stream's retraining to the trainer of its GPU with fewest jobs, where its own has more.

        It stays while weights that it has sent do not serve yet.

        Args:
            stream: without a job.
            training: the streams with one.
            started_monotonic_ns: start of the run.

        Returns:
            Reference of a reply that comes when the other one has taken it; None if it stays.
        """
        own = self.streams[stream]
        if self._has_own_process(Role.RETRAINING, stream) or own.newest_weights is not own.weights:
            return None
        jobs = Counter(
            its.trainer
            for one, its in self.streams.items()
            if one in training and its.config.gpu == own.config.gpu
            if not self._has_own_process(Role.RETRAINING, one)
        )
        emptiest = min(range(self._config.trainers), key=lambda at: (jobs[at], at != own.trainer, at))
        if emptiest == own.trainer:
            return None
        own.retraining.remove_stream.remote(stream)
        self._processes.take_out(own.retraining, stream)
        own.trainer = emptiest
        self._join_process(Role.RETRAINING, [stream])
        there_ns = self.translate_ns(own.retraining, started_monotonic_ns)
        return own.retraining.admit_stream.remote(own.config, there_ns)

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
        variables = named_values(fleet.named_secrets)
        self._config = replace(self._config, fleet=fleet, homes=in_order, costs=known, variables=variables)
        place = [one.id for one in fleet.streams].index(stream)
        config = StreamActorConfig(self._config, place, BASE_VERSION)
        trainer = self._emptiest_trainer(gpu)
        own = StreamActors(config, None, None, None, None, BASE_VERSION, trainer=trainer)
        self.streams[stream] = own
        for role in Role:
            self._join_process(role, [stream])
        own.weights, _ = own.inference.make_base_weights.options(num_returns=2).remote(stream)
        own.newest_weights = own.weights
        self.preparation.admit_stream.remote(stream, costs)
        there_ns = self.translate_ns(own.inference, started_monotonic_ns)
        admitted = own.retraining.admit_stream.remote(config, there_ns)
        return own.inference.admit_stream.remote(config, own.weights, there_ns), admitted

    def translate_ns(self, actor: Any, monotonic_ns: int) -> int:
        """Returns a time by the monotonic clock of an actor's node."""
        return monotonic_ns + self._processes[actor].place.ahead_ns

    def home_gpu(self, stream: StreamId) -> int:
        """Returns the GPU of a stream's processes."""
        return self.streams[stream].config.gpu

    def _home_of_next(self) -> int:
        """Returns the GPU with most capacity for one more stream; of cores, one that has a process."""
        living = Counter(own.config.gpu for own in self.streams.values())
        if self._config.device == "cuda":
            return home_of_next(living, self.fleet.capacity_milli)
        there = (one for one in living if not self._is_lost(one))
        return min(there, key=lambda one: (living[one], one), default=PREPARATION_GPU)

    def _leave_home(self, stream: StreamId) -> None:
        """Moves the home of a stream, whose workers follow when they are started again."""
        own, gpu = self.streams[stream], self._home_of_next()
        homes = {one.id: self.streams[one.id].config.gpu for one in self.fleet.streams} | {stream: gpu}
        self._config = replace(self._config, homes=tuple(homes.values()))
        own.left_gpu, own.trainer = own.config.gpu, self._emptiest_trainer(gpu)
        own.config = StreamActorConfig(self._config, list(homes).index(stream), own.config.version)
        saved = self._config.folder.model(stream, own.version)
        if saved.is_file():
            # What only the store of that node had is lost with it.
            own.weights = ray.put(saved.read_bytes())

    def _is_lost(self, gpu: int) -> bool:
        return self._processes.is_lost(self._processes.place_at(gpu).node)

    def _join_process(self, role: Role, streams: Sequence[StreamId]) -> None:
        """Puts workers of one process into it where it runs, or makes it."""
        actor = self._processes.find_running(self._process_name(role, streams[0]))
        if actor is None:
            self._take_or_make_process(role, streams)
        else:
            self._put(actor, role, (*self._processes[actor].streams, *streams))

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

    def end_lost(self) -> None:
        """Ends processes on nodes that are gone."""
        self._processes.end_lost()

    def note_death(self, actor: Any, suspects: Collection[StreamId] = ()) -> frozenset[StreamId]:
        """Forgets a worker's process that has ended, whose pid may be reused, and charges its death.

        It is charged to the suspects, else to the streams whose requests its inference was answering, else,
        since nothing is known, to all of its streams. A stream to which two deaths of shared processes are
        charged within ``ALONE_AFTER_S`` has a process of its own from then on, so that it affects no others.

        Args:
            actor: that has died.
            suspects: streams that it is known to have worked for.

        Returns:
            The streams to which the death is charged, also for a death that is noted again.
        """
        process, answering = self._processes.forget_process(actor)
        if process is None:
            return self._charged.get(actor, frozenset())
        known = answering.intersection(process.streams) if answering and not suspects else suspects
        charged = frozenset(known).intersection(process.streams) or frozenset(process.streams)
        self._charged[actor] = charged
        if len(process.streams) < 2:
            return charged
        now_s = self._now_s()
        for stream in charged:
            worker = process.role, stream
            if now_s - self._died_s.get(worker, -math.inf) < ALONE_AFTER_S:
                _LOG.warning(
                    "%s: its %s process has died again, and it has its own from now on", stream, process.role
                )
                self._alone.add(worker)
            self._died_s[worker] = now_s
            if answering:
                # The next death then names one of them.
                self._alone_until_s[stream] = now_s + ALONE_AFTER_S
        return charged

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
        spare = self._spares.take_spare(gpu) if role is Role.INFERENCE and self._may_take(streams) else None
        if spare is None:
            self._make_process(role, streams, joining=True)
        else:
            self._put(spare, role, streams)

    def _may_take(self, streams: Sequence[StreamId]) -> bool:
        """Returns whether the spare process is for these: a shared one that has died comes before others."""
        name = self._process_name(Role.INFERENCE, streams[0])
        gpu = self.streams[streams[0]].config.gpu
        return not any(
            its.config.gpu == gpu
            and not self._has_own_process(Role.INFERENCE, one)
            and self._process_name(Role.INFERENCE, one) != name
            and not self._processes.is_running(its.inference)
            for one, its in self.streams.items()
        )

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
        share_milli = (
            self._config.trainer_milli if role is Role.RETRAINING and self._config.trainers > 1 else 0
        )
        job = ShareJob(name, job_role, share_milli, gpu)
        actor = self._processes.start_actor(kind, name, job, config)
        self._put(actor, role, streams)
        return actor

    def _put(self, actor: Any, role: Role, streams: Sequence[StreamId]) -> None:
        """Records that these workers are in this process."""
        process = self._processes[actor]
        process.name, process.role = self._process_name(role, streams[0]), role
        process.streams = tuple(streams)
        for stream in streams:
            self.streams[stream].replace_worker(role, actor)

    def _process_name(self, role: Role, stream: StreamId) -> str:
        """Returns the name of a worker's process; streams with the same name share it."""
        if self._has_own_process(role, stream):
            return f"{role}/{stream}"
        own = self.streams[stream]
        is_one_of = role is Role.RETRAINING and self._config.trainers > 1
        return f"{role}/gpu-{own.config.gpu}" + (f"/{own.trainer}" if is_one_of else "")

    def _has_own_process(self, role: Role, stream: StreamId) -> bool:
        return self._config.processes is Processes.STREAM or (role, stream) in self._alone

    def _emptiest_trainer(self, gpu: int) -> int:
        """Returns the number of the trainer of a GPU that has fewest streams."""
        streams = Counter(its.trainer for its in self.streams.values() if its.config.gpu == gpu)
        return min(range(self._config.trainers), key=lambda at: streams[at])


_WORKERS: Mapping[Role, tuple[ActorKind, JobRole]] = {
    Role.INFERENCE: (INFERENCE, "inference"),
    Role.RETRAINING: (RETRAINING, "retraining"),
}
