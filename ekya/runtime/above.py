"""The seam between the run of one server and whoever knows other servers: a tier above it."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ekya.control.protocols import Batch, Executor, Planner
from ekya.control.step import Turn
from ekya.core.commands import StartRetraining
from ekya.core.ids import StreamId
from ekya.runtime.brought import Brought
from ekya.runtime.mailbox import RunClock
from ekya.runtime.material import MaterialToFetch

LEAD_NS = 500_000_000
"""Between telling the cameras when the run begins, and its beginning."""


class Exchange(Protocol):
    """What a retraining takes along to another server, and what comes back. ``RayExecutor`` is one."""

    def material(self, stream: StreamId) -> MaterialToFetch:
        """What a retraining of the stream would be made of if it began now; waits for nothing."""

    def bring(
        self, command: StartRetraining, accuracies: Sequence[float], best: Callable[[], Brought], over: bool
    ) -> None:
        """What a retraining has come to by now; its loop is told of epochs that are news, and of γ's end.

        Its best weights serve as any others as soon as the inner executor is asked for them, also if it was
        told to stop it by then.

        Args:
            command: what the loop had asked for. The inner executor never sees it.
            accuracies: after each epoch so far, on the validation crops of the stream's material.
            best: makes the weights of the best of them, if they are wanted.
            over: nothing more will come.
        """


class Above(Protocol):
    """Called by the thread of the run, and by no other. What it raises ends the run."""

    def begin_ns(self) -> int:
        """Every actor is ready: when the run begins, or goes on, as ``time.monotonic_ns`` of this machine.

        May wait for others. The cameras learn it when this returns, so it should be ``LEAD_NS`` ahead.
        """

    def executor(self, inner: Executor, exchange: Exchange, clock: RunClock) -> Executor:
        """What stands between the loop and the executor; ``clock`` gives run time and knows its beginning.

        A ``StartRetraining`` that says ``elsewhere`` is to be kept from the inner one, which cannot begin it.
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

    def executor(self, inner: Executor, exchange: Exchange, clock: RunClock) -> Executor:
        """As it is."""
        return inner

    def planner(self, plan: Planner) -> Planner:
        """As it is."""
        return plan

    def observe(self, batch: Batch, turn: Turn) -> None:
        """Nobody looks."""
