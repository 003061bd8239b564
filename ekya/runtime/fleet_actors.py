"""The actors of a run: made, named so that a person finds them in Ray's dashboard, and made again."""

import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ekya.config import FleetConfig
from ekya.core.events import Role
from ekya.core.ids import ModelVersion, StreamId
from ekya.errors import UserError
from ekya.gpu.protocol import Role as JobRole
from ekya.gpu.protocol import ShareJob
from ekya.placement.homes import PREPARATION_GPU, InferenceProcess
from ekya.runtime.complaining import complaining, in_words
from ekya.runtime.inference_actor import InferenceActor
from ekya.runtime.orders import ActorOrders, ProcessOrders, StreamOrders
from ekya.runtime.preparation_actor import PreparationActor
from ekya.runtime.ready import Ready
from ekya.runtime.retraining_actor import RetrainingActor
from ekya.runtime.scheduler_actor import SchedulerActor

_LOG = logging.getLogger(__name__)

_THREADS = 6
"""Methods of an actor that may run at once, in a group of threads."""

GPU_PART = 0.001
"""Of a GPU, as Ray counts them: an actor that uses one is placed where one is, and a thousand of them fit.
The same for all, since a share can change and this cannot; how much an actor gets is not Ray's matter."""

_RAY_SETS_NO_GPU = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
"""Ray would name an actor's GPU by an index of its choice; which one it is stands in the environment."""

NEWS = "news"
"""The group of threads, one, on which an actor is asked for news: no order may hold it up."""

SHARES = "shares"
"""The group of threads on which orders about shares come: they are answered within a limit, and must not wait
behind streams that join or weights that are made ready, of which a process of many streams has many."""

_RUNS = 100
"""Of one process whose actors have the same names."""

_GONE_S = 5.0
"""A process that Ray has been told to end is gone within this, or the kernel ends it."""

START_DEATHS_ALLOWED = 2
"""Of one process before the run begins; it is made again after each."""

MICRO_PROFILER = "micro-profiler"
SCHEDULER = "scheduler"


@dataclass(slots=True, eq=False)
class StreamActors:
    """A stream's two workers, and what they would be made from again.

    Attributes:
        inference: perhaps that of other streams too.
        weights: object reference to the bytes of the model that serves.
        newest_weights: the same of the model that serves or is about to.
        version: of the newest weights.
    """

    orders: StreamOrders
    inference: Any
    retraining: Any
    weights: Any
    newest_weights: Any
    version: ModelVersion

    def worker(self, role: Role) -> Any:
        """One of the two."""
        return self.inference if role is Role.INFERENCE else self.retraining


class FleetActors:
    """All actors of a run. Nothing here waits, but for ``wait_ready`` and ``close``."""

    def __init__(
        self,
        orders: ActorOrders,
        scheduler: str,
        weights: Mapping[StreamId, tuple[bytes, ModelVersion]],
    ) -> None:
        self._orders = orders
        self._scheduler_name = scheduler
        self._made: dict[str, int] = {}
        self._processes: dict[Any, Any] = {}
        self.scheduler = self.make_scheduler()
        self.streams: dict[StreamId, StreamActors] = {}
        together: dict[str, list[StreamOrders]] = {}
        for place, stream in enumerate(orders.fleet.streams):
            own = StreamOrders(orders, place, *weights[stream.id])
            together.setdefault(self._process_name(own), []).append(own)
        for streams in together.values():
            inference = self._inference(streams[0], streams)
            for own in streams:
                reference = ray.put(own.weights)
                self.streams[own.stream] = StreamActors(
                    own, inference, self._retraining(own), reference, reference, own.version
                )
        self.preparation = self.make_preparation()

    def wait_ready(self) -> dict[StreamId, Ready]:
        """Waits until every actor has its models, and makes one that dies meanwhile again.

        Raises:
            UserError: what an actor found wrong with its input, as ``or_complaint`` gives it back; or one
                died again and again.
        """
        names = self._names()
        asked = {actor.ready.remote(): (actor, name, 0) for actor, name in names.items()}
        known: dict[StreamId, Ready] = {}
        while asked:
            (answer,), _ = ray.wait(list(asked), num_returns=1)
            actor, name, deaths = asked.pop(answer)
            try:
                known |= ray.get(answer) or {}
            except RayActorError as error:
                deaths += 1
                _require_another_start(name, deaths, in_words(error))
                actor = self._make_in_place_of(actor)
                asked[actor.ready.remote()] = (actor, name, deaths)
        return known

    def _names(self) -> dict[Any, str]:
        """Every actor, each once, with what people call it."""
        names = {own.inference: self._process_name(own.orders) for own in self.streams.values()}
        names |= {own.retraining: f"retraining/{stream}" for stream, own in self.streams.items()}
        return names | {self.preparation: MICRO_PROFILER, self.scheduler: SCHEDULER}

    def _make_in_place_of(self, dead: Any) -> Any:
        """An actor like one that died before the run began."""
        self.has_died(dead)
        if dead is self.scheduler:
            self.scheduler = self.make_scheduler()
            return self.scheduler
        if dead is self.preparation:
            self.preparation = self.make_preparation()
            return self.preparation
        inside = [own for own in self.streams.values() if own.inference is dead]
        made = self._inference(inside[0].orders, [own.orders for own in inside]) if inside else None
        for own in inside:
            own.inference = made
        for own in self.streams.values():
            if own.retraining is dead:
                made = own.retraining = self._retraining(own.orders)
        return made

    def load_serving(self, ready: Mapping[StreamId, Ready]) -> None:
        """Waits until the micro-profiler has loaded the models that serve, which its first window needs."""
        known = [
            self.preparation.know.remote(stream, ready[stream].settings, own.version, own.newest_weights)
            for stream, own in self.streams.items()
        ]
        # Should it die now, whoever runs the fleet hears of it as of any other death.
        with suppress(RayActorError):
            ray.get(known)

    @property
    def fleet(self) -> FleetConfig:
        """The fleet that they work for."""
        return self._orders.fleet

    @property
    def inferences(self) -> tuple[Any, ...]:
        """The actors of all streams' inference, each once."""
        return tuple(dict.fromkeys(actors.inference for actors in self.streams.values()))

    def beside(self, stream: StreamId) -> tuple[StreamId, ...]:
        """The other streams whose inference is in the same process."""
        own = self.streams[stream].inference
        return tuple(one for one, its in self.streams.items() if its.inference is own and one != stream)

    def try_hand_over(self) -> None:
        """Lends each stream's first weights from its trainer to its inference, as the run will lend others.

        Raises:
            UserError: this machine does not let them pass.
        """
        trials = []
        for stream, own in self.streams.items():
            lent = own.retraining.lend_first.remote()
            taken = own.inference.try_loan.remote(stream, lent)
            trials += [lent, taken, own.retraining.end_loan.remote(own.version, [taken])]
        try:
            ray.get(trials)
        except RayError as error:
            raise UserError(
                f"hand_over: cuda-ipc does not work between two processes here ({in_words(error)}); "
                "use object-store"
            ) from error

    def make_scheduler(self) -> Any:
        """The scheduler's actor; again, where it died."""
        return make_actor(SchedulerActor, self._free_name(SCHEDULER), {}, 0.0, self._scheduler_name)

    def make_preparation(self) -> Any:
        """The micro-profiler's actor."""
        share_milli = self._orders.fleet.preparation.share_milli
        environment = self._environment(MICRO_PROFILER, "preparation", share_milli, PREPARATION_GPU)
        return self._worker(PreparationActor, self._free_name(MICRO_PROFILER), environment, self._orders)

    def make_again(self, stream: StreamId, role: Role, started_monotonic_ns: int) -> Any:
        """A worker in place of a dead one, with the weights that served last, which begins at once.

        A process of several streams' inference is made again for the first of them, and the others join it.

        Returns:
            Reference of an answer that comes when it has begun.
        """
        actors = self.streams[stream]
        weights: bytes = ray.get(actors.weights)
        actors.newest_weights = actors.weights
        orders = replace(actors.orders, weights=weights, version=actors.version)
        if role is Role.RETRAINING:
            actors.retraining = self._retraining(orders)
            return actors.retraining.begin.remote(started_monotonic_ns)
        if actors.inference not in self._processes:
            made = self._inference(orders, ())
            for one in (*self.beside(stream), stream):
                self.streams[one].inference = made
        return actors.inference.join.remote(orders, started_monotonic_ns)

    def _process_name(self, orders: StreamOrders) -> str:
        """Streams for which it is the same share a process."""
        if self._orders.fleet.inference.process is InferenceProcess.STREAM:
            return f"inference/{orders.stream}"
        return f"inference/gpu-{orders.gpu}"

    def _inference(self, home_of: StreamOrders, streams: Sequence[StreamOrders]) -> Any:
        """The process in which a stream is at home, with these in it from the beginning."""
        name = self._free_name(self._process_name(home_of))
        environment = self._environment(name, "inference", 0, home_of.gpu)
        orders = ProcessOrders(self._orders, name, home_of.gpu, tuple(streams))
        return self._worker(InferenceActor, name, environment, orders)

    def _retraining(self, orders: StreamOrders) -> Any:
        name = self._free_name(f"retraining/{orders.stream}")
        environment = self._environment(name, "retraining", 0, orders.gpu)
        return self._worker(RetrainingActor, name, environment, orders)

    def _worker(self, kind: type[Any], name: str, environment: Mapping[str, str], orders: object) -> Any:
        """An actor that holds shares."""
        gpu_part = GPU_PART if self._orders.device == "cuda" else 0.0
        actor = make_actor(kind, name, environment, gpu_part, orders)
        self._processes[actor] = actor.process.remote()
        return actor

    def end(self, actor: Any) -> None:
        """Ends a worker's process, even if it answers nothing any more; that it has ended is heard later."""
        process = self._processes.pop(actor, None)
        if process is not None:
            end_process(actor, process)

    def has_died(self, actor: Any) -> None:
        """A worker's process has ended: its number may be another's by now."""
        self._processes.pop(actor, None)

    def close(self) -> None:
        """Ends all of them; no process is left when this returns."""
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
        """The name, or one like it: a dead actor's name is not free at once for its successor."""
        made, self._made[name] = self._made.get(name, 0), self._made.get(name, 0) + 1
        server = f"{self._orders.server}/" if self._orders.server else ""
        return server + name + (f" (restart {made})" if made else "")

    def _environment(self, name: str, role: JobRole, share_milli: int, gpu: int) -> Mapping[str, str]:
        return self._orders.shares.actor_env(ShareJob(name, role, share_milli, gpu))


def _require_another_start(name: str, deaths: int, reason: str) -> None:
    """Says that a process has died while the run started, and is made again.

    Raises:
        UserError: it has died too often.
    """
    if deaths > START_DEATHS_ALLOWED:
        raise UserError(
            f"{name}: its process died {deaths} times while the run started ({reason}); free memory, or run "
            "fewer streams"
        )
    _LOG.warning("%s: its process died while the run started (%s) and is made again", name, reason)


def end_process(actor: Any, process: Any) -> None:
    """Ends an actor's process.

    Of an actor that Ray ends it tells at once, while its process may go on for seconds, with all that it
    holds; of one whose process the kernel ends it tells when that is gone.

    Args:
        actor: it.
        process: reference to the number of its process, as it was asked for when it was made.
    """
    known, _ = ray.wait([process], timeout=0)
    try:
        if known:
            os.kill(ray.get(process), signal.SIGKILL)
            return
    except (RayError, ProcessLookupError):
        return  # It is dead already.
    ray.kill(actor)


def make_actor(
    kind: type[Any], name: str, environment: Mapping[str, str], gpu_part: float, *arguments: object
) -> Any:
    """An actor under a name, with its environment set before anything is imported in its process.

    It lives on the Ray node of the process that makes it, as everything of one server does.
    """
    here = ray.get_runtime_context().get_node_id()
    options = {
        "num_cpus": 0,
        "num_gpus": gpu_part,
        "max_concurrency": _THREADS,
        "max_restarts": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False),
        "runtime_env": {"env_vars": {**environment, **_RAY_SETS_NO_GPU}} if environment else {},
    }
    remote: Any = ray.remote  # Ray's own types do not know of groups.
    made = remote(concurrency_groups={NEWS: 1, SHARES: _THREADS})(complaining(kind, name))
    for number in range(1, _RUNS):
        # Where this process still holds the actor of a run before, its name is taken although it is dead.
        with suppress(ValueError):
            return made.options(**options, name=f"{name} ({number})" if number > 1 else name).remote(
                *arguments
            )
    return made.options(**options, name=name).remote(*arguments)
