"""Servers of a fleet as one of them reaches the others."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from ekya.fleet.policy.names import SiteName
from ekya.fleet.run.calls import CallError, Handle


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One server of the fleet.

    Attributes:
        server: its ``SiteRun``.
        machine: identifies its process; a site that was started again has another.
    """

    server: Handle
    machine: str


class Neighbours:
    """All servers of the fleet, as known at the moment. Thread-safe."""

    def __init__(self) -> None:
        self._known: Mapping[SiteName, Neighbour] = {}
        self._lock = threading.Lock()

    def meet(self, neighbours: Mapping[SiteName, Neighbour]) -> None:
        """Adds servers, or replaces those that have moved."""
        with self._lock:
            self._known = {**self._known, **neighbours}

    def server(self, site: SiteName) -> Handle:
        """Returns a server.

        Raises:
            CallError: it is not known.
        """
        return self._of(site).server

    def machine(self, site: SiteName) -> str:
        """Returns what identifies a server's process.

        Raises:
            CallError: it is not known.
        """
        return self._of(site).machine

    def is_there(self, machine: str, within_s: float) -> bool:
        """Returns whether a server that this identifies answers."""
        for one in self._known.values():
            if one.machine == machine:
                try:
                    return bool(one.server.call("machine").result(within_s) == machine)
                except (CallError, TimeoutError):
                    return False
        return False

    def _of(self, site: SiteName) -> Neighbour:
        if site not in self._known:
            raise CallError(f"{site} is not reached")
        return self._known[site]
