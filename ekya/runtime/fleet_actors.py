"""The actors of a run: made, named so that a person finds them in Ray's dashboard, and made again."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError

from ekya.core.events import Role
from ekya.core.ids import ModelVersion, StreamId
from ekya.errors import UserError
from ekya.gpu.protocol import Role as JobRole
from ekya.gpu.protocol import ShareJob
from ekya.placement.homes import PREPARATION_GPU
from ekya.runtime.complaining import complaining, in_words
from ekya.runtime.inference_actor import InferenceActor, Ready
from ekya.runtime.orders import ActorOrders, StreamOrders
from ekya.runtime.preparation_actor import PreparationActor
from ekya.runtime.retraining_actor import RetrainingActor
from ekya.runtime.scheduler_actor import SchedulerActor

_THREADS = 6
"""Methods of an actor that may run at once."""

GPU_PART = 0.001
"""Of a GPU, as Ray counts them: an actor that uses one is placed where one is, and a thousand of them fit.
The same for all, since a share can change and this cannot; how much an actor gets is not Ray's matter."""

_RAY_SETS_NO_GPU = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
"""Ray would name an actor's GPU by an index of its choice; which one it is stands in the environment."""

NEWS = "news"
"""The group of threads, one, on which an actor is asked for news: no order may hold it up."""

MICRO_PROFILER = "micro-profiler"
SCHEDULER = "scheduler"


@dataclass(slots=True, eq=False)
class StreamActors:
    """A stream's two workers, and what they would be made from again.

    Attributes:
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
    """All actors of a run. Nothing here waits, but for ``wait_ready``."""

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
        for place, stream in enumerate(orders.fleet.streams):
            first, version = weights[stream.id]
            reference = ray.put(first)
            own = StreamOrders(orders, place, first, version)
            self.streams[stream.id] = StreamActors(
                own, self._inference(own), self._retraining(own), reference, reference, version
            )
        self.preparation = self.make_preparation()

    def wait_ready(self) -> dict[StreamId, Ready]:
        """Waits until every actor has its models.

        Raises:
            UserError: what an actor found wrong with its input, as ``or_complaint`` gives it back.
        """
        ready = {stream: actors.inference.ready.remote() for stream, actors in self.streams.items()}
        rest = [actors.retraining.ready.remote() for actors in self.streams.values()]
        known = {stream: ray.get(reference) for stream, reference in ready.items()}
        ray.get([*rest, self.preparation.ready.remote(), self.scheduler.ready.remote()])
        return known

    def try_hand_over(self) -> None:
        """Lends each stream's first weights from its trainer to its inference, as the run will lend others.

        Raises:
            UserError: this machine does not let them pass.
        """
        trials = []
        for own in self.streams.values():
            lent = own.retraining.lend_first.remote()
            taken = own.inference.try_loan.remote(lent)
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

    def make_again(self, stream: StreamId, role: Role) -> Any:
        """A worker in place of a dead one, with the weights that served last."""
        actors = self.streams[stream]
        weights: bytes = ray.get(actors.weights)
        actors.newest_weights = actors.weights
        orders = replace(actors.orders, weights=weights, version=actors.version)
        if role is Role.INFERENCE:
            actors.inference = self._inference(orders)
            return actors.inference
        actors.retraining = self._retraining(orders)
        return actors.retraining

    def _inference(self, orders: StreamOrders) -> Any:
        name = self._free_name(f"inference/{orders.stream}")
        environment = self._environment(name, "inference", 0, orders.gpu)
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

    def _free_name(self, name: str) -> str:
        """The name, or one like it: a dead actor's name is not free at once for its successor."""
        made, self._made[name] = self._made.get(name, 0), self._made.get(name, 0) + 1
        return name + (f" (restart {made})" if made else "")

    def _environment(self, name: str, role: JobRole, share_milli: int, gpu: int) -> Mapping[str, str]:
        return self._orders.shares.actor_env(ShareJob(name, role, share_milli, gpu))


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
    """An actor under a name, with its environment set before anything is imported in its process."""
    options = {
        "name": name,
        "num_cpus": 0,
        "num_gpus": gpu_part,
        "max_concurrency": _THREADS,
        "max_restarts": 0,
        "runtime_env": {"env_vars": {**environment, **_RAY_SETS_NO_GPU}} if environment else {},
    }
    remote: Any = ray.remote  # Ray's own types do not know of groups.
    return remote(concurrency_groups={NEWS: 1})(complaining(kind)).options(**options).remote(*arguments)
