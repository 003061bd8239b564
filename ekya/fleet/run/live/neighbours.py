"""Servers of a fleet as one of them reaches the others, and the processes that it takes from them."""

import threading
from collections.abc import Mapping
from contextlib import suppress

from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import CallError, Handle
from ekya.fleet.run.live.orders import Neighbour
from ekya.fleet.run.training.protocol import Host, NoProcessError

ANSWERS_WITHIN_S = 60.0
"""Timeout of a request for a process: the server may have to load torch first."""

_SAYS_MACHINE_S = 5.0
"""Time in which a live server returns its machine's id."""


class Neighbours:
    """All servers of the fleet, as known at the moment. Thread-safe.

    It is a ``ProcessSource``: it requests processes from the servers, which hold them to their shares.

    Args:
        borrower: server whose trainings use the processes.
    """

    def __init__(self, borrower: SiteName) -> None:
        self._borrower = borrower
        self._known: Mapping[SiteName, Neighbour] = {}
        self._lock = threading.Lock()

    def add_neighbours(self, neighbours: Mapping[SiteName, Neighbour]) -> None:
        """Adds servers, or replaces those that have moved."""
        with self._lock:
            self._known = {**self._known, **neighbours}

    def neighbour_at(self, site: SiteName) -> Neighbour:
        """Returns a server.

        Raises:
            CallError: it is not known.
        """
        if site not in self._known:
            raise CallError(f"{site} is not reached")
        return self._known[site]

    def take_process(self, host: Host) -> Handle:
        """Returns a process on the host.

        Raises:
            NoProcessError: the server does not reply, or takes no guests.
        """
        try:
            asked = self.neighbour_at(host.site).server.call("take_process", self._borrower)
            process: Handle = asked.result(ANSWERS_WITHIN_S)
        except (CallError, TimeoutError) as error:
            why = str(error) or f"no answer for {ANSWERS_WITHIN_S:g} s"
            raise NoProcessError(f"{host.site} gives no process away: {why}") from error
        return process

    def give_back_process(self, host: Host, process: Handle) -> None:
        """Returns a process to its server for the next guest."""
        with suppress(CallError):
            self.neighbour_at(host.site).server.call("give_back_process", self._borrower, process)

    def is_there(self, machine_id: str) -> bool:
        """Returns whether the server that had this machine answers, and has it still."""
        for one in self._known.values():
            if one.machine == machine_id:
                try:
                    return bool(one.server.call("machine_id").result(_SAYS_MACHINE_S) == machine_id)
                except (CallError, TimeoutError):
                    return False
        return False
