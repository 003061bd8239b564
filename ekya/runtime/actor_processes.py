"""Creates actors with the environment of their process, ends them, and keeps spare processes."""

import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ekya.runtime.actor_errors import reporting_user_errors
from ekya.system.host import read_host_memory

_THREADS = 6
"""Methods of an actor that may run concurrently in one concurrency group."""

GPU_PART = 0.001
"""GPU fraction that an actor requests from Ray: places it on a node with a GPU, up to a thousand on each.
Constant, since a share can change and Ray's request cannot; Ray does not enforce shares."""

_RAY_SETS_NO_GPU = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
"""Stops Ray from choosing an actor's GPU: the environment names it."""

EVENTS = "events"
"""Concurrency group, with one thread, for polling an actor's events, so that no other call delays them."""

SHARES = "shares"
"""Concurrency group for share orders. They must be answered within a limit, so they must not queue behind
joining streams or weights that are being prepared, of which a process with many streams has many."""

_RUNS = 100
"""Upper bound on runs of one driver process whose actors have the same names."""


def end_process(actor: Any, process: Any) -> None:
    """Kills an actor's process.

    Kills it through the kernel where its pid is available: Ray reports an actor that it ends itself as dead
    immediately, while the process may keep its resources for seconds. A process that the kernel kills is
    reported when it is gone.

    Args:
        actor: to end.
        process: reference to its pid, requested when the actor was made.
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
    """Creates a named actor whose environment is set before its process imports anything.

    It is placed on the Ray node of the calling process, as everything of one server is.
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
    made = remote(concurrency_groups={EVENTS: 1, SHARES: _THREADS})(reporting_user_errors(kind, name))
    for number in range(1, _RUNS):
        # The name of a dead actor of an earlier run stays taken while this process holds a reference to it.
        with suppress(ValueError):
            return made.options(**options, name=f"{name} ({number})" if number > 1 else name).remote(
                *arguments
            )
    return made.options(**options, name=name).remote(*arguments)


_LOG = logging.getLogger(__name__)

_ROOM_BYTES = 2 << 30
"""Free host memory needed to make a spare process: about three times what one takes."""

_Key = frozenset[tuple[str, str]]


class Spares:
    """At most one spare process for each environment, which is fixed when a process starts.

    Args:
        make: makes the actor of a spare process, for a GPU, once some references have replies.
    """

    def __init__(self, make: Callable[[Mapping[str, str], int, Sequence[Any]], Any]) -> None:
        self._make = make
        self._there: dict[_Key, tuple[Any, Any]] = {}

    def make(self, environment: Mapping[str, str], gpu: int, weights: Any, after: Sequence[Any]) -> None:
        """Makes the spare process of an environment, if there is none; it loads at the lowest priority.

        Args:
            environment: of the process.
            gpu: position of its GPU.
            weights: reference to a model for warm-up.
            after: references of replies that it waits for before its process starts.
        """
        key = frozenset(environment.items())
        if key in self._there or read_host_memory().free_bytes < _ROOM_BYTES:
            return
        actor = self._make(environment, gpu, after)
        self._there[key] = (actor, actor.warm_up.remote(weights))

    def take(self, environment: Mapping[str, str]) -> Any:
        """Removes and returns the spare process of an environment; None if none is ready."""
        key = frozenset(environment.items())
        if key not in self._there:
            return None
        actor, warm = self._there[key]
        if not ray.wait([warm], timeout=0)[0]:
            return None
        del self._there[key]
        try:
            ray.get([warm, actor.process.remote()])
        except RayError as error:
            _LOG.warning("a spare process was dead: %s", error)
            return None
        return actor
