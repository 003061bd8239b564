"""Training processes on other servers, for the trainings of one."""

from contextlib import suppress

from ekya.fleet.policy.names import SiteName
from ekya.fleet.run.calls import CallError, Handle
from ekya.fleet.run.live.neighbours import Neighbours
from ekya.fleet.run.training.crew import NoProcessError
from ekya.fleet.run.training.protocol import FleetNode

ANSWERS_WITHIN_S = 60.0
"""Timeout of a request for a process: the server may have to load torch first."""

_SAYS_MACHINE_S = 5.0
"""Time in which a live server returns its machine's id."""


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
