"""Source of training processes: makes them on their nodes and keeps idle ones for the next training."""

import threading
from typing import Any, Protocol
from uuid import uuid4

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ekya.fleet.run.training.actors import NEWS, THREADS, TrainingActor
from ekya.fleet.run.training.protocol import FleetNode
from ekya.gpu.backends.backend import ShareBackend, ShareJob
from ekya.system.ray_environment import OF_ACTOR

_ALIVE_S = 10.0
"""Timeout of an idle process's heartbeat; afterwards another is made."""


class NoProcessError(Exception):
    """A node provides no process; the message says why, in one line."""


class ProcessSource(Protocol):
    """Source of the processes of trainings."""

    def take(self, node: FleetNode) -> Any:
        """Returns a process on a node; it may not have started yet, and errors appear in calls to it.

        Raises:
            NoProcessError: there is none for this training.
        """

    def give_back(self, node: FleetNode, actor: Any) -> None:
        """Takes back a live process that is not used any more."""

    def end(self, actor: Any) -> None:
        """Ends a process that must not be used again."""

    def is_there(self, node: str) -> bool:
        """Returns whether Ray still has the node."""

    def close(self) -> None:
        """Ends all idle processes."""


class Processes:
    """Makes processes on nodes, and keeps idle ones for the next training, as loading torch is slow.

    Thread-safe.

    Args:
        backend: holds their shares.
    """

    def __init__(self, backend: ShareBackend) -> None:
        self._backend = backend
        self._idle: dict[tuple[str, int], list[Any]] = {}
        self._closed = False
        self._lock = threading.Lock()

    def take(self, node: FleetNode) -> Any:
        """Returns an idle process on the node, or a new one that may not have started yet."""
        while (actor := self._waiting_on(node)) is not None:
            try:
                ray.get(actor.pid.remote(), timeout=_ALIVE_S)
            except RayError:
                self.end(actor)
            else:
                return actor
        # Two trainers may train on the same nodes, and actor names must be unique.
        name = f"training on {node.name} ({uuid4().hex[:8]})"
        job = ShareJob(name, "retraining", node.share_milli, node.gpu)
        options = {
            "name": name,
            "num_cpus": 0,
            "max_restarts": 0,
            "max_concurrency": THREADS,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node.machine_id, soft=False),
            "runtime_env": {"env_vars": {**self._backend.actor_env(job), **OF_ACTOR}},
        }
        remote: Any = ray.remote  # Ray's type hints lack concurrency groups.
        made = remote(concurrency_groups={NEWS: 1})(TrainingActor)
        return made.options(**options).remote(name, self._backend, node.gpu)

    def give_back(self, node: FleetNode, actor: Any) -> None:
        """Takes back a live process; it holds no GPU resources when this returns."""
        try:
            ray.get(actor.rest.remote(), timeout=_ALIVE_S)
        except RayError:
            self.end(actor)
            return
        with self._lock:
            if not self._closed:
                self._idle.setdefault(_place(node), []).append(actor)
                return
        self.end(actor)

    def end(self, actor: Any) -> None:
        """Ends a process that must not be used again."""
        ray.kill(actor)

    def is_there(self, node: str) -> bool:
        """Returns whether Ray still has the node."""
        return node_is_there(node)

    def close(self) -> None:
        """Ends all idle processes; those that are given back later end too."""
        with self._lock:
            self._closed = True
            waiting = [actor for actors in self._idle.values() for actor in actors]
            self._idle.clear()
        for actor in waiting:
            self.end(actor)

    def _waiting_on(self, node: FleetNode) -> Any | None:
        with self._lock:
            idle = self._idle.get(_place(node))
            return idle.pop() if idle else None


def _place(node: FleetNode) -> tuple[str, int]:
    """Returns the key of idle processes: a process never changes its node and GPU."""
    return node.machine_id, node.gpu


def node_is_there(node: str) -> bool:
    """Returns whether Ray has a live node with this id."""
    nodes: Any = ray.nodes  # Untyped in Ray.
    return any(known["NodeID"] == node and known["Alive"] for known in nodes())
