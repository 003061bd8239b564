"""An actor and its process: made with its environment, and ended even if it answers nothing any more."""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ekya.runtime.complaining import complaining

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
