"""Upper tier of one live server: offers and borrows, lends, and starts together with the other servers."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from ekya.control.protocols import Batch, Executor, Planner
from ekya.control.step import StepResult
from ekya.core.commands import StartRetraining
from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Way
from ekya.fleet.run.link_sizes import sizes_of
from ekya.fleet.run.live.coordination import RemoteCoordinator
from ekya.fleet.run.live.lent_processes import LentProcesses
from ekya.fleet.run.live.neighbours import Neighbours
from ekya.fleet.run.live.trained_elsewhere import TrainedElsewhere
from ekya.fleet.run.server import LendingServer
from ekya.fleet.run.training.protocol import TrainingBundle
from ekya.fleet.servers_file import ServerConfig
from ekya.models.edge.checkpoints import from_bytes
from ekya.pipeline.stream_preparation import data_of
from ekya.planning.schedulers.registry import make_scheduler
from ekya.runtime.actors.actor_messages import RunClock
from ekya.runtime.driver.open_run import OpenRun
from ekya.runtime.driver.remote_retrainings import RemoteRetrainings, StreamRetrainInputs

FETCHED_WITHIN_S = 20.0
"""Timeout for collecting crops and exemplars; later ones would be of no use."""


def gather_bundles(
    retrainings: RemoteRetrainings,
) -> Callable[[StartRetraining], Callable[[], TrainingBundle]]:
    """Returns what collects the inputs of streams' retrainings from other processes of their server."""

    def gather(command: StartRetraining) -> Callable[[], TrainingBundle]:
        material = retrainings.inputs_for_retraining(command.stream)
        return lambda: bundle_of(command, material.fetch(FETCHED_WITHIN_S))

    return gather


def bundle_of(command: StartRetraining, material: StreamRetrainInputs) -> TrainingBundle:
    """Returns what a retraining needs, the same as at home: labelled crops, or a detector's small frames.

    Args:
        command: of the stream's loop.
        material: of the stream at the time of the command.

    Raises:
        UserError: the weights are damaged.
    """
    start = from_bytes(material.weights)
    data = data_of(start, material.labels, material.memory, material.settings, command.window)
    return TrainingBundle(command.config, material.weights, data)


LISTENS_EVERY_US = 200_000
"""Interval in which a waiting server polls for news of other servers."""


class AboveServer:
    """A ``RunCoordinator``.

    Args:
        server: of the run.
        run: that is about to begin.
        guests: processes for others' trainings; closed with this.
        coordinator: None: the server works alone.
        neighbours: the other servers; changes as they come and go.
        begins: waits until all servers are ready; returns the start of the run, as ``time.monotonic_ns``.

    Attributes:
        lending: the server's connection to the coordinator; None before it runs.
    """

    def __init__(
        self,
        server: ServerConfig,
        run: OpenRun,
        guests: LentProcesses,
        coordinator: RemoteCoordinator | None,
        neighbours: Neighbours,
        begins: Callable[[], int],
    ) -> None:
        self._server, self._run, self._coordinator = server, run, coordinator
        self._neighbours, self._begins = neighbours, begins
        self._open = ExitStack()
        self.guests = guests
        self._open.callback(guests.close)
        self.lending: LendingServer | None = None

    def begin_ns(self) -> int:
        """Waits for the common start and returns its time; a process for guests is ready before."""
        if self._coordinator is not None and self._server.terms.takes_guests:
            self.guests.warm_process()
        return self._begins()

    def wrap_executor(self, inner: Executor, remote: RemoteRetrainings, clock: RunClock) -> Executor:
        """Wraps the executor so that the server lends to others and follows its own jobs elsewhere."""
        run, site, above = self._run, self._server.terms.site, self._coordinator

        def moved_since(stream: StreamId, moved_mb: Mapping[Way, float]) -> None:
            if above is not None:
                above.add_later_traffic(site, stream, moved_mb)

        awaited = TrainedElsewhere(
            site, self._neighbours, gather_bundles(remote), remote.report_progress, moved_since
        )
        if above is not None:
            self._open.callback(above.wait_heard)
        self._open.callback(awaited.close)
        self.lending = LendingServer(
            self._server.terms,
            make_scheduler(run.options.scheduler),
            run.constants,
            sizes_of(run.fleet, run.options.seed),
            above,
            inner,
            awaited,
            LISTENS_EVERY_US,
        )
        self._open.callback(self.lending.executor.give_up_all)
        return self.lending.executor

    def wrap_planner(self, plan: Planner) -> Planner:
        """Wraps the planner so that retrainings can go to other servers."""
        lending = self.lending
        if lending is None:
            raise RuntimeError("a plan is made before there is anything that carries it out")
        return lambda view: lending.plan_window(view, plan)

    def observe_step(self, batch: Batch, result: StepResult) -> None:
        """Passes the new state on: the capacity that the server could lend may have changed."""
        self.guests.end_silent()
        if self.lending is not None:
            self.lending.follow_state(result.state)

    def close(self) -> None:
        """Gives up its remote retrainings, of which the coordinator hears, and ends every guest here."""
        self._open.close()
