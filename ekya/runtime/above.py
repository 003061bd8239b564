"""The seam between the run of one server and whoever knows other servers: a tier above it."""

import time
from typing import Protocol

from ekya.control.protocols import Batch, Executor, Planner
from ekya.control.step import Turn
from ekya.runtime.mailbox import RunClock

LEAD_NS = 500_000_000
"""Between telling the cameras when the run begins, and its beginning."""


class Above(Protocol):
    """Called by the thread of the run, and by no other. What it raises ends the run."""

    def begin_ns(self) -> int:
        """Every actor is ready: when the run begins, or goes on, as ``time.monotonic_ns`` of this machine.

        May wait for others. The cameras learn it when this returns, so it should be ``LEAD_NS`` ahead.
        """

    def executor(self, inner: Executor, clock: RunClock) -> Executor:
        """What stands between the loop and the executor; ``clock`` gives run time and knows its beginning.

        Its ``wait`` must not wait longer than the inner one's.
        """

    def planner(self, plan: Planner) -> Planner:
        """What stands between the loop and the scheduler."""

    def observe(self, batch: Batch, turn: Turn) -> None:
        """A turn has been taken and its commands given."""


class NobodyAbove:
    """A server that is alone."""

    def begin_ns(self) -> int:
        """As soon as the cameras know."""
        return time.monotonic_ns() + LEAD_NS

    def executor(self, inner: Executor, clock: RunClock) -> Executor:
        """As it is."""
        return inner

    def planner(self, plan: Planner) -> Planner:
        """As it is."""
        return plan

    def observe(self, batch: Batch, turn: Turn) -> None:
        """Nobody looks."""
