"""Processes for guests: each server makes them on its node, under its own share backend."""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psutil
import ray
from ray.exceptions import RayError

from ekya.fleet.policy.names import NodeName, SiteName
from ekya.fleet.run.training.processes import NoProcessError, Processes, node_is_there
from ekya.fleet.run.training.protocol import FleetNode
from ekya.gpu.backends.backend import ShareBackend
from ekya.runtime.actor_errors import in_words
from ekya.system.processes import find_process, still_runs

ANSWERS_WITHIN_S = 60.0
"""Timeout of a request for a process: the server may have to load torch first."""

_GONE_WITHIN_S = 5.0
"""Time in which processes are gone after Ray was told to end them."""

_SAYS_WHO_S = 1.0
"""Time in which a live process returns its pid."""


class GuestProcesses:
    """Guest processes of one server. Thread-safe.

    Args:
        site: the server's.
        ray_node: id of the Ray node of the server and of this process.
        backend: the server's, opened; it is closed after this.
        gpu: index of the server's GPU for guests.
    """

    def __init__(self, site: SiteName, ray_node: str, backend: ShareBackend, gpu: int) -> None:
        # A process outlives the shares of its users, and begins with none.
        self._node = FleetNode(NodeName(site), site, ray_node, 0, gpu)
        self._processes = Processes(backend)
        self._guests: dict[SiteName, list[Any]] = {}
        self._made: list[Any] = []
        self._closed = False
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Makes one idle process before it is needed: loading torch takes longer than a small training."""
        actor = self._processes.take(self._node)
        with self._lock:
            self._made.append(actor)
        ray.get(actor.pid.remote())
        self._processes.give_back(self._node, actor)

    def take(self, borrower: SiteName) -> Any:
        """Returns a process for a guest of that server.

        Raises:
            LookupError: the server is closing.
        """
        actor = self._processes.take(self._node)
        with self._lock:
            if not self._closed:
                self._guests.setdefault(borrower, []).append(actor)
                if actor not in self._made:
                    self._made.append(actor)
                return actor
        self._processes.end(actor)
        raise LookupError("this server takes no guests any more")

    def give_back(self, borrower: SiteName, actor: Any) -> None:
        """Takes a process back from a guest."""
        with self._lock:
            guests = self._guests.get(borrower, [])
            if actor not in guests:
                return  # It was ended before, after the borrower's death or when this was closed.
            guests.remove(actor)
        self._processes.give_back(self._node, actor)

    def end_of(self, borrower: SiteName) -> None:
        """Ends the processes of a dead server's guests, which no other server would end."""
        with self._lock:
            left = self._guests.pop(borrower, [])
        for actor in left:
            self._processes.end(actor)

    def close(self) -> None:
        """Ends all processes, also busy ones, and waits until they are gone."""
        with self._lock:
            self._closed = True
            left = [actor for guests in self._guests.values() for actor in guests]
            self._guests.clear()
        living = _processes_of(self._made)
        for actor in left:
            self._processes.end(actor)
        self._processes.close()
        ends_s = time.monotonic() + _GONE_WITHIN_S
        while any(still_runs(process) for process in living) and time.monotonic() < ends_s:
            time.sleep(0.01)


class HostedProcesses:
    """A ``ProcessSource`` that requests processes from the servers, which hold them to their shares.

    Args:
        borrower: server whose trainings use the processes.
        servers: actors of all servers, by site.
    """

    def __init__(self, borrower: SiteName, servers: Mapping[SiteName, Any]) -> None:
        self._borrower, self._servers = borrower, servers

    def take(self, node: FleetNode) -> Any:
        """Returns a process on the node's server.

        Raises:
            NoProcessError: the server does not reply, or takes no guests.
        """
        try:
            asked = self._servers[node.site].take_process.remote(self._borrower)
            return ray.get(asked, timeout=ANSWERS_WITHIN_S)
        except RayError as error:
            raise NoProcessError(f"{node.site} gives no process away: {in_words(error)}") from error

    def give_back(self, node: FleetNode, actor: Any) -> None:
        """Returns a process to its server for the next guest."""
        self._servers[node.site].give_back_process.remote(self._borrower, actor)

    def end(self, actor: Any) -> None:
        """Ends a process, also a busy one."""
        ray.kill(actor)

    def is_there(self, node: str) -> bool:
        """Returns whether Ray still has the node."""
        return node_is_there(node)

    def close(self) -> None:
        """Does nothing: idle processes belong to their servers."""


def _processes_of(actors: Sequence[Any]) -> list[psutil.Process]:
    """Returns the processes that are alive; every actor is on this machine."""
    asked = [actor.pid.remote() for actor in actors]
    known, _ = ray.wait(asked, num_returns=len(asked), timeout=_SAYS_WHO_S) if asked else ([], [])
    found = []
    for number in known:
        with suppress(RayError):
            found.append(find_process(ray.get(number)))
    return [process for process in found if process is not None]
