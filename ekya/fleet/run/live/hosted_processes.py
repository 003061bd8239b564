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

ANSWERS_WITHIN_S = 60.0
"""A server that does not hand out a process by then has none: torch may have to be loaded first."""


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
        self._guests: dict[SiteName, list[Any]] = {}
        self._lock = threading.Lock()

    def warm(self) -> None:
        """One waits when this returns: loading torch takes longer than a small training."""
        actor = self._processes.take(self._node)
        ray.get(actor.pid.remote())
        self._processes.give_back(self._node, actor)

    def take(self, borrower: SiteName) -> Any:
        """One for a guest of that server."""
        actor = self._processes.take(self._node)
        with self._lock:
            self._guests.setdefault(borrower, []).append(actor)
        return actor

    def give_back(self, borrower: SiteName, actor: Any) -> None:
        """The guest has left it."""
        with self._lock:
            guests = self._guests.get(borrower, [])
            if actor not in guests:
                return  # It was ended, since who borrowed was found dead.
            guests.remove(actor)
        self._processes.give_back(self._node, actor)

    def end_of(self, borrower: SiteName) -> None:
        """That server is dead: whatever its guests do, nobody waits for it, and nobody else will end them."""
        with self._lock:
            left = self._guests.pop(borrower, [])
        for actor in left:
            self._processes.end(actor)

    def close(self) -> None:
        """Ends those that wait."""
        self._processes.close()


class HostedProcesses:
    """A ``ProcessSource`` that asks the servers.

    Args:
        borrower: whose guests they are for.
        servers: actors of all servers, by site.
        otherwise: makes a process where a server does not answer; with its node it never comes to life.
    """

    def __init__(self, borrower: SiteName, servers: Mapping[SiteName, Any], otherwise: Processes) -> None:
        self._borrower, self._servers, self._otherwise = borrower, servers, otherwise

    def take(self, node: FleetNode) -> Any:
        """A process on the node's server."""
        try:
            asked = self._servers[node.site].take_process.remote(self._borrower)
            return ray.get(asked, timeout=ANSWERS_WITHIN_S)
        except RayError:
            return self._otherwise.take(node)

    def give_back(self, node: FleetNode, actor: Any) -> None:
        """It waits on its server for whoever comes next."""
        self._servers[node.site].give_back_process.remote(self._borrower, actor)

    def end(self, actor: Any) -> None:
        """Whatever it does."""
        ray.kill(actor)

    def is_there(self, node: str) -> bool:
        """Whether Ray still has the node."""
        return node_is_there(node)

    def close(self) -> None:
        """Processes are their servers'."""
