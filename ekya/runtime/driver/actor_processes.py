"""Creates actors with the environment of their process, and ends them."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ekya.system.ray_environment import OF_ACTOR

_THREADS = 6
"""Methods of an actor that may run concurrently in one concurrency group."""

GPU_PART = 0.001
"""GPU fraction that an actor requests from Ray: places it on a node with a GPU, up to a thousand on each.
Constant, since a share can change and Ray's request cannot; Ray does not enforce shares."""

EVENTS = "events"
"""Concurrency group, with one thread, for polling an actor's events, so that no other call delays them."""

SHARES = "shares"
"""Concurrency group for share orders. They must be answered within a limit, so they must not queue behind
joining streams or weights that are being prepared, of which a process with many streams has many."""

_ENDED_WITHIN_S = 5.0
"""Timeout for processes that Ray ends; afterwards the kernel kills them."""

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


def wait_ended(processes: Sequence[Any]) -> None:
    """Waits until processes that Ray ends are gone; the kernel kills those that take too long.

    Args:
        processes: references to their pids; one without a reply has not started.
    """
    if not processes:
        return
    known, _ = ray.wait(list(processes), num_returns=len(processes), timeout=0)
    ends_s = time.monotonic() + _ENDED_WITHIN_S
    for reference in known:
        with suppress(RayError, ProcessLookupError):
            pid: int = ray.get(reference)
            while time.monotonic() < ends_s:
                os.kill(pid, 0)
                time.sleep(0.01)
            os.kill(pid, signal.SIGKILL)


def make_actor(
    actor_class: type[Any], name: str, environment: Mapping[str, str], gpu_part: float, *arguments: object
) -> Any:
    """Creates a named actor whose environment is set before its process imports anything.

    It is placed on the Ray node of the calling process, as everything of one server is.
    """
    here = ray.get_runtime_context().get_node_id()
    remote: Any = ray.remote  # Ray's own types do not know of groups.
    made = remote(
        concurrency_groups={EVENTS: 1, SHARES: _THREADS},
        num_cpus=0,
        num_gpus=gpu_part,
        max_concurrency=_THREADS,
        max_restarts=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
        runtime_env={"env_vars": {**environment, **OF_ACTOR}} if environment else {},
    )(actor_class)
    for number in range(1, _RUNS):
        # The name of a dead actor of an earlier run stays taken while this process holds a reference to it.
        with suppress(ValueError):
            return made.options(name=f"{name} ({number})" if number > 1 else name).remote(*arguments)
    return made.options(name=name).remote(*arguments)
