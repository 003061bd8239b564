"""Processes for guests: each server makes those on its node, held by its own shares, and hands them out."""

import threading
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.names import NodeName, SiteName
from ekya.fleet.run.training.processes import Processes, node_is_there
from ekya.fleet.run.training.protocol import FleetNode
from ekya.gpu.protocol import ShareBackend


class GuestProcesses:
    """Those of one server. Any thread may call.

    Args:
        site: the server's.
        ray_node: on which it is.
        backend: its own, opened.
    """

    def __init__(self, site: SiteName, ray_node: str, backend: ShareBackend) -> None:
        self._node = FleetNode(NodeName(site), site, ray_node, FULL_GPU_MILLI)
        self._processes = Processes(backend)
        self._lock = threading.Lock()

    def warm(self) -> None:
        """One waits when this returns: loading torch takes longer than a small training."""
        actor = self.take()
        ray.get(actor.pid.remote())
        self.give_back(actor)

    def take(self) -> Any:
        """One for a guest."""
        with self._lock:
            return self._processes.take(self._node)

    def give_back(self, actor: Any) -> None:
        """The guest has left it."""
        with self._lock:
            self._processes.give_back(self._node, actor)

    def close(self) -> None:
        """Ends those that wait."""
        with self._lock:
            self._processes.close()


class HostedProcesses:
    """A ``ProcessSource`` that asks the servers.

    Args:
        servers: their actors, by site.
        otherwise: makes a process where a server does not answer; with its node it never comes to life.
    """

    def __init__(self, servers: Mapping[SiteName, Any], otherwise: Processes) -> None:
        self._servers, self._otherwise = servers, otherwise

    def take(self, node: FleetNode) -> Any:
        """A process on the node's server."""
        try:
            return ray.get(self._servers[node.site].take_process.remote())
        except RayError:
            return self._otherwise.take(node)

    def give_back(self, node: FleetNode, actor: Any) -> None:
        """It waits on its server for whoever comes next."""
        self._servers[node.site].give_back_process.remote(actor)

    def end(self, actor: Any) -> None:
        """Whatever it does."""
        ray.kill(actor)

    def is_there(self, node: str) -> bool:
        """Whether Ray still has the node."""
        return node_is_there(node)

    def close(self) -> None:
        """Processes are their servers'."""
