"""Interface between the run of one server and a tier above it that knows other servers."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ekya.control.protocols import Batch, Executor, Planner
from ekya.control.step import StepResult
from ekya.core.commands import StartRetraining
from ekya.core.units import StreamId
from ekya.runtime.mailbox import RunClock
from ekya.runtime.remote_retrainings import MaterialToFetch, RemoteCheckpoint

LEAD_NS = 500_000_000
"""Minimum time between announcing the start of the run to the cameras and the start itself."""


class Exchange(Protocol):
    """Interface for remote retrainings: the material that they need and the weights that come back.

    ``RemoteRetrainings`` implements it.
    """

    def material(self, stream: StreamId) -> MaterialToFetch:
        """Returns references to the inputs of a retraining that would begin now; does not block."""

    def bring(
        self,
        command: StartRetraining,
        accuracies: Sequence[float],
        best: Callable[[], RemoteCheckpoint],
        over: bool,
    ) -> None:
        """Reports the progress of a remote retraining: emits events for new epochs and for the end of γ.

        The inner executor can serve its best weights like any others as soon as it receives the command, also
        after a command to stop the retraining.

        Args:
            command: the loop's command. The inner executor never receives it.
            accuracies: after each epoch so far, on the validation crops of the stream's material.
            best: returns the weights of the best epoch; called only if they are needed.
            over: no further progress will be reported.
        """


class Coordinator(Protocol):
    """Tier above one server. Called only by the thread of the run; an exception ends the run."""

    def begin_ns(self) -> int:
        """Returns when the run begins or resumes, as ``time.monotonic_ns`` of this machine.

        Called when every actor is ready; may wait for other servers. The cameras learn the time when this
        returns, so it should be ``LEAD_NS`` ahead.
        """

    def executor(self, inner: Executor, exchange: Exchange, clock: RunClock) -> Executor:
        """Returns the executor that the loop uses in front of ``inner``; ``clock`` gives run time.

        It must not pass on a ``StartRetraining`` with ``elsewhere`` set, which ``inner`` cannot begin.
        """

    def planner(self, plan: Planner) -> Planner:
        """Returns the planner that the loop uses in front of the scheduler."""

    def observe(self, batch: Batch, result: StepResult) -> None:
        """Called after each step of the loop, when its commands have been given."""


class NullCoordinator:
    """Upper tier of a server that runs alone."""

    def begin_ns(self) -> int:
        """Returns the earliest start that gives the cameras their lead time."""
        return time.monotonic_ns() + LEAD_NS

    def executor(self, inner: Executor, exchange: Exchange, clock: RunClock) -> Executor:
        """Returns ``inner`` unchanged."""
        return inner

    def planner(self, plan: Planner) -> Planner:
        """Returns ``plan`` unchanged."""
        return plan

    def observe(self, batch: Batch, result: StepResult) -> None:
        """Does nothing."""
