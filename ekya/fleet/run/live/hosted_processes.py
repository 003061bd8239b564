"""Processes for guests: each server makes them on its node, under its own share backend."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import suppress

import psutil

from ekya.fleet.policy.names import NodeName, SiteName
from ekya.fleet.run.calls import CallError, Handle
from ekya.fleet.run.live.neighbours import Neighbours
from ekya.fleet.run.training.crew import SILENT_S, NoProcessError
from ekya.fleet.run.training.processes import Processes
from ekya.fleet.run.training.protocol import FleetNode
from ekya.gpu.backends.backend import ShareBackend
from ekya.system.processes import find_process, still_runs

ANSWERS_WITHIN_S = 60.0
"""Timeout of a request for a process: the server may have to load torch first."""

_SAYS_MACHINE_S = 5.0
"""Time in which a live server returns its machine's id."""

_GONE_WITHIN_S = 5.0
"""Time in which processes are gone after Ray was told to end them."""

_SAYS_WHO_S = 1.0
"""Time in which a live process returns its pid."""


class GuestProcesses:
    """Guest processes of one server. Thread-safe.

    Args:
        site: the server's.
        machine_id: of the server; with Ray, the id of this process's node.
        backend: the server's, opened; it is closed after this.
        gpu: index of the server's GPU for guests.
    """

    def __init__(self, site: SiteName, machine_id: str, backend: ShareBackend, gpu: int) -> None:
        # A process outlives the shares of its users, and begins with none.
        self._node = FleetNode(NodeName(site), site, machine_id, 0, gpu)
        self._processes = Processes(backend)
        self._guests: dict[SiteName, list[Handle]] = {}
        self._heard_s: dict[SiteName, float] = {}
        self._made: list[Handle] = []
        self._closed = False
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Makes one idle process before it is needed: loading torch takes longer than a small training."""
        process = self._processes.take(self._node)
        with self._lock:
            self._made.append(process)
        process.call("pid").result()
        self._processes.give_back(self._node, process)

    def take(self, borrower: SiteName) -> Handle:
        """Returns a process for a guest of that server.

        Raises:
            LookupError: the server is closing.
        """
        process = self._processes.take(self._node)
        self.heard(borrower)
        with self._lock:
            if not self._closed:
                self._guests.setdefault(borrower, []).append(process)
                if process not in self._made:
                    self._made.append(process)
                return process
        process.end()
        raise LookupError("this server takes no guests any more")

    def give_back(self, borrower: SiteName, process: Handle) -> None:
        """Takes a process back from a guest."""
        self.heard(borrower)
        with self._lock:
            guests = self._guests.get(borrower, [])
            if process not in guests:
                return  # It was ended before, after the borrower's death or when this was closed.
            guests.remove(process)
        self._processes.give_back(self._node, process)

    def heard(self, borrower: SiteName) -> None:
        """Notes that a borrower has called one of its processes; taking and giving back count as well."""
        with self._lock:
            self._heard_s[borrower] = time.monotonic()

    def end_silent(self, now_s: float) -> list[SiteName]:
        """Ends the processes of borrowers that were not heard for ``SILENT_S`` by ``time.monotonic``.

        Returns:
            These borrowers.
        """
        with self._lock:
            silent = [one for one in self._guests if now_s - self._heard_s[one] > SILENT_S]
            left = [process for one in silent for process in self._guests.pop(one)]
        for process in left:
            process.end()
        return silent

    def end_of(self, borrower: SiteName) -> None:
        """Ends the processes of a dead server's guests, which no other server would end."""
        with self._lock:
            left = self._guests.pop(borrower, [])
        for process in left:
            process.end()

    def close(self) -> None:
        """Ends all processes, also busy ones, and waits until they are gone."""
        with self._lock:
            self._closed = True
            left = [process for guests in self._guests.values() for process in guests]
            self._guests.clear()
        living = _processes_of(self._made)
        for process in left:
            process.end()
        self._processes.close()
        ends_s = time.monotonic() + _GONE_WITHIN_S
        while any(still_runs(process) for process in living) and time.monotonic() < ends_s:
            time.sleep(0.01)


class HostedProcesses:
    """A ``ProcessSource`` that requests processes from the servers, which hold them to their shares.

    Args:
        borrower: server whose trainings use the processes.
        neighbours: the servers.
    """

    def __init__(self, borrower: SiteName, neighbours: Neighbours) -> None:
        self._borrower, self._neighbours = borrower, neighbours

    def take(self, node: FleetNode) -> Handle:
        """Returns a process on the node's server.

        Raises:
            NoProcessError: the server does not reply, or takes no guests.
        """
        try:
            asked = self._neighbours.server(node.site).call("take_process", self._borrower)
            process: Handle = asked.result(ANSWERS_WITHIN_S)
        except (CallError, TimeoutError) as error:
            why = str(error) or f"no answer for {ANSWERS_WITHIN_S:g} s"
            raise NoProcessError(f"{node.site} gives no process away: {why}") from error
        return process

    def give_back(self, node: FleetNode, process: Handle) -> None:
        """Returns a process to its server for the next guest."""
        with suppress(CallError):
            self._neighbours.server(node.site).call("give_back_process", self._borrower, process)

    def is_there(self, machine_id: str) -> bool:
        """Returns whether the server that had this machine answers, and has it still."""
        return self._neighbours.is_there(machine_id, _SAYS_MACHINE_S)

    def close(self) -> None:
        """Does nothing: idle processes belong to their servers."""


def _processes_of(guests: Sequence[Handle]) -> list[psutil.Process]:
    """Returns the processes that are alive; all are on this machine."""
    known, _ = wait([guest.call("pid") for guest in guests], _SAYS_WHO_S)
    found = []
    for number in known:
        with suppress(CallError):
            found.append(find_process(number.result()))
    return [process for process in found if process is not None]
