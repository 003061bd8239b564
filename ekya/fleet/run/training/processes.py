"""Makes training processes on the nodes of this process's Ray, and keeps idle ones for the next training."""

import threading
from typing import Any
from uuid import uuid4

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ekya.fleet.run.calls import CallError, Handle, RayHandle
from ekya.fleet.run.training.actors import NEWS, THREADS, TrainingActor
from ekya.fleet.run.training.protocol import FleetNode
from ekya.gpu.backends.backend import ShareBackend, ShareJob
from ekya.runtime.driver.local_ray import ACTOR_VARIABLES

_ALIVE_S = 10.0
"""Timeout of an idle process's heartbeat; afterwards another is made."""


class TrainingProcesses:
    """A ``ProcessSource`` of Ray actors. It keeps idle ones, as loading torch is slow. Thread-safe.

    Args:
        backend: holds their shares.
    """

    def __init__(self, backend: ShareBackend) -> None:
        self._backend = backend
        self._idle: dict[tuple[str, int], list[Handle]] = {}
        self._closed = False
        self._lock = threading.Lock()

    def take_process(self, node: FleetNode) -> Handle:
        """Returns an idle process on the node, or a new one that may not have started yet."""
        while (process := self._waiting_on(node)) is not None:
            try:
                process.call("pid").result(_ALIVE_S)
            except (CallError, TimeoutError):
                process.end_process()
            else:
                return process
        # Two trainers may train on the same nodes, and actor names must be unique.
        name = f"training on {node.name} ({uuid4().hex[:8]})"
        job = ShareJob(name, "retraining", node.share_milli, node.gpu)
        options = {
            "name": name,
            "num_cpus": 0,
            "max_restarts": 0,
            "max_concurrency": THREADS,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node.machine_id, soft=False),
            "runtime_env": {"env_vars": {**self._backend.actor_env(job), **ACTOR_VARIABLES}},
        }
        remote: Any = ray.remote  # Ray's type hints lack concurrency groups.
        made = remote(concurrency_groups={NEWS: 1})(TrainingActor)
        return RayHandle(made.options(**options).remote(name, self._backend, node.gpu))

    def give_back_process(self, node: FleetNode, process: Handle) -> None:
        """Takes back a live process; it holds no GPU resources when this returns."""
        try:
            process.call("release_training").result(_ALIVE_S)
        except (CallError, TimeoutError):
            process.end_process()
            return
        with self._lock:
            if not self._closed:
                self._idle.setdefault(_place(node), []).append(process)
                return
        process.end_process()

    def is_there(self, machine_id: str) -> bool:
        """Returns whether Ray has a live node with this id."""
        nodes: Any = ray.nodes  # Untyped in Ray.
        return any(known["NodeID"] == machine_id and known["Alive"] for known in nodes())

    def close(self) -> None:
        """Ends all idle processes; those that are given back later end too."""
        with self._lock:
            self._closed = True
            waiting = [process for idle in self._idle.values() for process in idle]
            self._idle.clear()
        for process in waiting:
            process.end_process()

    def _waiting_on(self, node: FleetNode) -> Handle | None:
        with self._lock:
            idle = self._idle.get(_place(node))
            return idle.pop() if idle else None


def _place(node: FleetNode) -> tuple[str, int]:
    """Returns the key of idle processes: a process never changes its node and GPU."""
    return node.machine_id, node.gpu
