"""Processes of actors, made with their environment and a free name and ended, and calls to them in flight."""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ekya.core.events import Role
from ekya.core.units import StreamId
from ekya.gpu.backends.backend import ShareJob
from ekya.runtime.actors.actor_kinds import SPARE, ActorConfig, ActorKind, ProcessConfig
from ekya.runtime.actors.actor_messages import in_words
from ekya.runtime.actors.answering import AnsweringMark
from ekya.runtime.driver.local_ray import ACTOR_VARIABLES
from ekya.runtime.driver.places import (
    ENDED_WITHIN_S,
    Place,
    PlaceAt,
    call_on_node,
    is_node_lost,
    kill_pid,
    on_this_node,
    wait_gone,
)
from ekya.system.host import read_host_memory
from ekya.system.processes import find_process

_LOG = logging.getLogger(__name__)

_THREADS, _MOST_THREADS = 6, 48
"""Methods of an actor that may run concurrently in one concurrency group; on a GPU as many as it has streams,
which all open their cameras again when their process has died."""

GPU_PART = 0.001
"""GPU fraction that an actor requests from Ray: places it on a node with a GPU, up to a thousand on each.
Constant, since a share can change and Ray's request cannot; Ray does not enforce shares."""

EVENTS = "events"
"""Concurrency group, with one thread, for polling an actor's events, so that no other call delays them."""

SHARES = "shares"
"""Concurrency group for share orders. They must be answered within a limit, so they must not queue behind
joining streams or weights that are being prepared, of which a process with many streams has many."""

_RUNS = 100
"""Upper bound on runs of one driver process whose actors have the same names."""

_SPARE = "inference/spare"

_SPARE_BYTES = 2 << 30
"""Free host memory needed to make a spare process: about three times what one takes."""


def end_process(actor: Any, process: Any, node: str = "") -> None:
    """Kills an actor's process.

    Kills it through the kernel where its pid is available: Ray reports an actor that it ends itself as dead
    immediately, while the process may keep its resources for seconds. A process that the kernel kills is
    reported when it is gone.

    Args:
        actor: to end.
        process: reference to its pid, requested when the actor was made.
        node: that it is on; empty for the node of this process.
    """
    known, _ = ray.wait([process], timeout=0)
    try:
        if known:
            pid = ray.get(process)
            if node:
                call_on_node(node, kill_pid, pid)
            else:
                kill_pid(pid)
            return
    except (RayError, ProcessLookupError):
        return  # It is dead already.
    ray.kill(actor)


def wait_ended(processes: Mapping[Any, str]) -> None:
    """Waits until processes that Ray ends are gone; the kernel kills those that take too long.

    Args:
        processes: nodes by references to pids, as in ``end_process``; one without a reply has not started.
    """
    if not processes:
        return
    known, _ = ray.wait(list(processes), num_returns=len(processes), timeout=0)
    pids = defaultdict[str, list[int]](list)
    for reference in known:
        with suppress(RayError):
            pids[processes[reference]].append(ray.get(reference))
    here = pids.pop("", [])
    there = [call_on_node(node, wait_gone, its) for node, its in pids.items()]
    wait_gone(here)
    if there:
        ray.wait(there, num_returns=len(there), timeout=2 * ENDED_WITHIN_S)


def make_actor(
    actor_class: type[Any],
    name: str,
    environment: Mapping[str, str],
    gpu_part: float,
    *arguments: object,
    strategy: Any = None,
    threads: int = _THREADS,
) -> Any:
    """Creates a named actor whose environment is set before its process imports anything.

    Args:
        actor_class: of the actor.
        name: readable name.
        environment: of its process.
        gpu_part: part of a GPU that it requests from Ray.
        arguments: of the class.
        strategy: Ray's, which says where it is; None for the node of this process.
        threads: number of its methods that may run concurrently.
    """
    here = ray.get_runtime_context().get_node_id()
    remote: Any = ray.remote  # Ray's own types do not know of groups.
    made = remote(
        concurrency_groups={EVENTS: 1, SHARES: _THREADS},
        num_cpus=0,
        num_gpus=gpu_part,
        max_concurrency=threads,
        max_restarts=0,
        scheduling_strategy=strategy or NodeAffinitySchedulingStrategy(here, soft=False),
        runtime_env={"env_vars": {**environment, **ACTOR_VARIABLES}} if environment else {},
    )(actor_class)
    for number in range(1, _RUNS):
        # The name of a dead actor of an earlier run stays taken while this process holds a reference to it.
        with suppress(ValueError):
            return made.options(name=f"{name} ({number})" if number > 1 else name).remote(*arguments)
    return made.options(name=name).remote(*arguments)


@dataclass(slots=True, eq=False)
class ActorProcess:
    """Process of an actor that holds shares.

    Attributes:
        pid: object reference to its process number; None once it was killed.
        place: where it is.
        answering: written by an inference process of this machine; None of another.
        name: group of its workers; processes of one name follow each other.
        role: of the workers in it.
        streams: of these workers; none in the micro-profiler and in a spare process.
    """

    pid: Any
    place: Place
    answering: AnsweringMark | None = None
    name: str = ""
    role: Role = Role.INFERENCE
    streams: tuple[StreamId, ...] = ()


class ProcessTable:
    """The processes of a run's actors that hold shares. Only ``close`` blocks.

    Args:
        config: of the run, as it begins.
        place_at: where actors are.
    """

    def __init__(self, config: ActorConfig, place_at: PlaceAt = on_this_node) -> None:
        self._shares, self._server, self.place_at = config.shares, config.server, place_at
        on_gpu = config.device == "cuda"
        self._gpu_part = GPU_PART if on_gpu else 0.0
        most = max(Counter(config.homes).values(), default=0) if on_gpu else 0
        self._threads = min(max(_THREADS, most), _MOST_THREADS)
        self._lost: set[str] = set()
        self._names: Counter[str] = Counter()
        self._processes: dict[Any, ActorProcess] = {}

    def __getitem__(self, actor: Any) -> ActorProcess:
        """Returns the process of an actor that has not died."""
        return self._processes[actor]

    def start_actor(self, kind: ActorKind, name: str, job: ShareJob, config: object, *loaded: object) -> Any:
        """Makes an actor that holds shares."""
        mark, place = None, self.place_at(job.gpu)
        if job.role == "inference" and isinstance(config, ProcessConfig) and not place.node:
            mark = AnsweringMark()
            config = replace(config, answering=mark.path)
        environment = self._shares.actor_env(job)
        made = kind.actor_class(name)
        actor = make_actor(
            made,
            name,
            environment,
            self._gpu_part,
            config,
            *loaded,
            strategy=place.strategy,
            threads=self._threads,
        )
        self._processes[actor] = ActorProcess(actor.process_id.remote(), place, mark)
        return actor

    def is_lost(self, node: str) -> bool:
        """Returns whether the node of a place is gone; it does not come back."""
        if node and node not in self._lost and is_node_lost(node):
            _LOG.error("a node of the cluster is gone; its streams move to others")
            self._lost.add(node)
        return node in self._lost

    def end_lost(self) -> None:
        """Ends processes on nodes that are gone: one that was to start there would be awaited for ever."""
        lost = {node for node in {one.place.node for one in self._processes.values()} if self.is_lost(node)}
        for actor, process in self._processes.items():
            if process.place.node in lost:
                self.kill_process(actor)

    def find_running(self, name: str) -> Any:
        """Returns the actor of the running process of this name; None without one."""
        named = (actor for actor, process in self._processes.items() if process.name == name)
        return next((actor for actor in named if self.is_running(actor)), None)

    def free_name(self, name: str) -> str:
        """Makes a name unique: a dead actor's name is not available immediately."""
        made = self._names[name]
        self._names[name] += 1
        server = f"{self._server}/" if self._server else ""
        return server + name + (f" (restart {made})" if made else "")

    def is_running(self, actor: Any) -> bool:
        """Returns whether an actor has a process that was not killed; one that was set aside has none."""
        process = self._processes.get(actor)
        return process is not None and process.pid is not None

    def remove_stream(self, stream: StreamId) -> None:
        """Takes note that a stream has no workers any more."""
        for actor in self._processes:
            self.take_out(actor, stream)

    def take_out(self, actor: Any, stream: StreamId) -> None:
        """Takes note that a stream has no worker any more in the process of an actor, if it has one."""
        process = self._processes.get(actor)
        if process is not None:
            process.streams = tuple(one for one in process.streams if one != stream)

    def kill_process(self, actor: Any) -> None:
        """Kills an actor's process, even if it no longer responds; its death is reported later."""
        process = self._processes.get(actor)
        if process is not None and process.pid is not None:
            end_process(actor, process.pid, process.place.node)
            # The kernel may give the number to another process, which a second kill would hit.
            process.pid = None

    def forget_process(self, actor: Any) -> tuple[ActorProcess | None, frozenset[StreamId]]:
        """Removes a process that has ended, whose pid may be reused.

        Returns:
            The process, and the streams that it was answering; None and none if it was forgotten before.
        """
        process = self._processes.pop(actor, None)
        if process is not None and process.place.node:
            ray.kill(actor)  # Only the connection to it may have failed.
        if process is None or process.answering is None:
            return process, frozenset()
        answering = process.answering.read_streams()
        process.answering.close()
        return process, answering

    def close(self) -> None:
        """Ends all actors; no process is left when this returns."""
        for actor in self._processes:
            ray.kill(actor)
        known = (process for process in self._processes.values() if process.pid is not None)
        wait_ended({process.pid: process.place.node for process in known})
        for actor in tuple(self._processes):
            self.forget_process(actor)


class SpareProcesses:
    """Inference processes without streams, one a GPU here, which have loaded already. No method blocks.

    Args:
        processes: of the run.
    """

    def __init__(self, processes: ProcessTable) -> None:
        self._processes = processes
        # By GPU: the actor, and the reference of its warm-up.
        self._spares: dict[int, tuple[Any, Any]] = {}

    def renew_spares(self, config: ActorConfig, weights: Mapping[int, Any], loading: Sequence[Any]) -> None:
        """Makes the spare processes that lack, where memory allows; they load at low priority.

        One that has died since the last call is replaced.

        Args:
            config: of the run.
            weights: by GPU, with which they warm up.
            loading: actors that must be loaded before window 1, for which they wait.
        """
        for gpu, (spare, warm) in tuple(self._spares.items()):
            if ray.wait([warm], timeout=0)[0] and not self._is_alive(spare, warm):
                _LOG.warning("a spare process has died and is made again")
                del self._spares[gpu]
        for gpu, served in weights.items():
            if gpu in self._spares or self._processes.place_at(gpu).node:
                continue
            if read_host_memory().free_bytes < _SPARE_BYTES:
                continue
            name = self._processes.free_name(_SPARE)
            loaded = [actor.confirm_ready.remote() for actor in loading if self._processes.is_running(actor)]
            # Its share is that of any inference on this GPU.
            job = ShareJob(_SPARE, "inference", 0, gpu)
            empty = ProcessConfig(config, name, gpu, ())
            spare = self._processes.start_actor(SPARE, name, job, empty, *loaded)
            self._spares[gpu] = (spare, spare.warm_up.remote(served))

    def take_spare(self, gpu: int) -> Any:
        """Removes and returns the spare process of a GPU; None if none is ready."""
        spare, warm = self._spares.get(gpu, (None, None))
        if spare is None or not ray.wait([warm], timeout=0)[0]:
            return None
        del self._spares[gpu]
        return spare if self._is_alive(spare, warm) else None

    def _is_alive(self, spare: Any, warm: Any) -> bool:
        """Returns whether a spare process that has replied still runs; one that does not is forgotten.

        The replies of a process stay readable after its death, so the kernel is asked.
        """
        try:
            _, pid = ray.get([warm, self._processes[spare].pid])
        except RayError as error:
            _LOG.warning("a spare process was dead: %s", error)
        else:
            if find_process(pid) is not None:
                return True
        self._processes.forget_process(spare)
        return False


_GATHER_S = 0.005
"""After the first reply, how long to collect others: planning once is better than twice."""

Callback = Callable[[Any, RayError | None], None]
"""Receives the value of a reply and None, or None and the error that the call failed with."""


class RemoteCalls:
    """Table of references and callbacks; only ``wait_replies`` blocks."""

    def __init__(self) -> None:
        self._callbacks: dict[Any, Callback] = {}

    def add_call(self, reference: Any, callback: Callback) -> None:
        """Adds a call in flight; its callback is called once, by ``wait_replies``."""
        self._callbacks[reference] = callback

    def wait_replies(self, timeout_s: float) -> None:
        """Waits for the first reply, collects others that come with it, and calls back for each."""
        done, _ = ray.wait(list(self._callbacks), timeout=timeout_s, num_returns=1)
        if not done:
            return
        more, _ = ray.wait(list(self._callbacks), timeout=_GATHER_S, num_returns=len(self._callbacks))
        for reference in more or done:
            callback = self._callbacks.pop(reference)
            try:
                value = ray.get(reference)
            except RayError as error:
                callback(None, error)
            else:
                callback(value, None)


def log_failure(what: str, _value: Any, error: RayError | None) -> None:
    """Logs the failure of a call, except for a dead actor, which is handled elsewhere."""
    if error is not None and not isinstance(error, RayActorError):
        _LOG.error("%s failed: %s", what, in_words(error))
