"""Processes for guests: each server makes those on its node, held by its own shares, and hands them out."""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from ekya.fleet.policy.names import NodeName, SiteName
from ekya.fleet.run.training.processes import NoProcessError, Processes, node_is_there
from ekya.fleet.run.training.protocol import FleetNode
from ekya.gpu.processes import Process, look_at, still_runs
from ekya.gpu.protocol import ShareBackend
from ekya.runtime.complaining import in_words

ANSWERS_WITHIN_S = 60.0
"""A server that does not hand out a process by then has none: torch may have to be loaded first."""

_GONE_WITHIN_S = 5.0
"""Processes that Ray has been told to end are gone by then."""

_SAYS_WHO_S = 1.0
"""A process that lives says its number within this."""


class GuestProcesses:
    """Those of one server. Any thread may call.

    Args:
        site: the server's.
        ray_node: on which it is, as this process.
        backend: its own, opened; it is closed after this.
        gpu: on which of its GPUs guests are at home.
    """

    def __init__(self, site: SiteName, ray_node: str, backend: ShareBackend, gpu: int) -> None:
        # A process outlives the shares of those whom it serves, and begins at none.
        self._node = FleetNode(NodeName(site), site, ray_node, 0, gpu)
        self._processes = Processes(backend)
        self._guests: dict[SiteName, list[Any]] = {}
        self._made: list[Any] = []
        self._closed = False
        self._lock = threading.Lock()

    def warm(self) -> None:
        """One waits when this returns: loading torch takes longer than a small training."""
        actor = self._processes.take(self._node)
        with self._lock:
            self._made.append(actor)
        ray.get(actor.pid.remote())
        self._processes.give_back(self._node, actor)

    def take(self, borrower: SiteName) -> Any:
        """One for a guest of that server.

        Raises:
            LookupError: guests come no more.
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
        """The guest has left it."""
        with self._lock:
            guests = self._guests.get(borrower, [])
            if actor not in guests:
                return  # It was ended, since who borrowed was found dead, or everybody's were.
            guests.remove(actor)
        self._processes.give_back(self._node, actor)

    def end_of(self, borrower: SiteName) -> None:
        """That server is dead: whatever its guests do, nobody waits for it, and nobody else will end them."""
        with self._lock:
            left = self._guests.pop(borrower, [])
        for actor in left:
            self._processes.end(actor)

    def close(self) -> None:
        """Ends all of them, whatever their guests do; no process is left when this returns."""
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
    """A ``ProcessSource`` that asks the servers: only a server knows how its shares hold a process there.

    Args:
        borrower: whose guests they are for.
        servers: actors of all servers, by site.
    """

    def __init__(self, borrower: SiteName, servers: Mapping[SiteName, Any]) -> None:
        self._borrower, self._servers = borrower, servers

    def take(self, node: FleetNode) -> Any:
        """A process on the node's server.

        Raises:
            NoProcessError: it does not answer, or takes no guests.
        """
        try:
            asked = self._servers[node.site].take_process.remote(self._borrower)
            return ray.get(asked, timeout=ANSWERS_WITHIN_S)
        except RayError as error:
            raise NoProcessError(f"{node.site} gives no process away: {in_words(error)}") from error

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


def _processes_of(actors: Sequence[Any]) -> list[Process]:
    """Those that live; every actor is on this machine."""
    asked = [actor.pid.remote() for actor in actors]
    known, _ = ray.wait(asked, num_returns=len(asked), timeout=_SAYS_WHO_S) if asked else ([], [])
    found = []
    for number in known:
        with suppress(RayError):
            found.append(look_at(ray.get(number)))
    return [process for process in found if process is not None]
