"""Lending of one service: it offers and borrows, and lends to others, beside its run."""

import threading
from collections.abc import Callable
from contextlib import ExitStack

import ray

from ekya.control.protocols import Batch, Executor, Planner
from ekya.control.step import StepResult
from ekya.core.commands import StartRetraining
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.registry import TIERS
from ekya.fleet.run.link_sizes import sizes_of
from ekya.fleet.run.live.lender import lenders_of
from ekya.fleet.run.live.lending_desk import LendingDesk
from ekya.fleet.run.live.own_coordinator import OwnCoordinator
from ekya.fleet.run.live.trained_elsewhere import TrainedElsewhere
from ekya.fleet.run.server import LendingServer, ServerTerms
from ekya.fleet.run.training.bundle_file import TrainingBundle
from ekya.fleet.run.training.processes import TrainingProcesses
from ekya.gpu.backends.backend import ShareBackend
from ekya.models.edge.checkpoints import from_bytes
from ekya.pipeline.stream_preparation import data_of
from ekya.planning.schedulers.registry import make_scheduler
from ekya.runtime.actors.actor_messages import RunClock
from ekya.runtime.driver.open_run import OpenRun
from ekya.runtime.driver.remote_retrainings import RemoteRetrainings, StreamRetrainInputs

FETCHED_WITHIN_S = 20.0
"""Timeout for collecting crops and exemplars; later ones would be of no use."""

LISTENS_EVERY_US = 200_000
"""Interval in which a waiting server polls for news of other servers."""

LOANS = "loans.jsonl"
"""File of a service's loans in its folder."""


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


class ServiceLending:
    """Wraps the loop of a service, as a ``RunCoordinator`` does.

    Args:
        run: that is about to begin.
        shares: its backend, opened; closed after this.

    Attributes:
        desk: for others that borrow.

    Raises:
        UserError: the service's folder cannot be used, or its file of loans is damaged.
    """

    def __init__(self, run: OpenRun, shares: ShareBackend) -> None:
        self._run, self._site = run, SiteName(run.folder.name)
        self._clock: RunClock | None = None
        self._lending: LendingServer | None = None
        self._open = ExitStack()
        config = run.fleet.lending
        processes = TrainingProcesses(ray.get_runtime_context().get_node_id(), shares, run.guests_gpu)
        self._open.callback(processes.close)
        self.desk = LendingDesk(run.folder.path / "lent", processes, self._now_us)
        self._open.callback(self.desk.close)
        self._above: OwnCoordinator | None = None
        if config.borrow_from:
            self._above = OwnCoordinator(
                self._site,
                lenders_of(config.borrow_from, self._now_us),
                TIERS[config.tier],
                run.options.seed,
                run.folder.path / LOANS,
                self._now_us,
            )
            self._open.callback(self._above.close)
        if config.lend:
            threading.Thread(target=processes.warm_process, name="warm", daemon=True).start()

    def wrap_executor(self, inner: Executor, remote: RemoteRetrainings, clock: RunClock) -> Executor:
        """Wraps the executor so that the service lends to others and follows its own jobs elsewhere."""
        run, above, self._clock = self._run, self._above, clock

        def lose_host(site: SiteName) -> None:
            if above is not None:
                above.lose_host(site)

        lenders = {} if above is None else above.lenders
        awaited = TrainedElsewhere(
            self._site, lenders, gather_bundles(remote), remote.report_progress, lose_host
        )
        self._open.callback(awaited.close)
        config = run.fleet.lending
        lending = self._lending = LendingServer(
            ServerTerms(self._site, config.samples_may_leave, config.lend),
            make_scheduler(run.options.scheduler),
            run.constants,
            sizes_of(run.fleet, run.options.seed),
            None if above is None else above.coordinator,
            inner,
            awaited,
            LISTENS_EVERY_US,
        )
        self._open.callback(lending.executor.give_up_all)
        if config.lend:
            self.desk.open_for(lending)
        if above is not None:
            above.open_for(lending.executor)
        return lending.executor

    def wrap_planner(self, plan: Planner) -> Planner:
        """Wraps the planner so that retrainings can go to other services."""
        lending = self._lending
        if lending is None:
            raise RuntimeError("a plan is made before there is anything that carries it out")
        return lambda view: lending.plan_window(view, plan)

    def observe_step(self, batch: Batch, result: StepResult) -> None:
        """Passes the new state on: the capacity that the service could lend may have changed."""
        self.desk.end_silent()
        if self._lending is not None:
            self._lending.follow_state(result.state)

    def close(self) -> None:
        """Gives up its remote retrainings, and ends every guest here."""
        self._open.close()

    def _now_us(self) -> int:
        return 0 if self._clock is None else self._clock.now_us()
