"""Executes one run on Ray actors, from the start of the first to its report."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import ray
from ray.exceptions import RayActorError, RayError
from rich.console import Console

from ekya.config.fleet_file import FleetConfig
from ekya.config.scoring import Scoring
from ekya.control.loop import Observer, run_loop
from ekya.control.protocols import Batch, Executor, Planner
from ekya.control.step import StepResult
from ekya.core import events as ev
from ekya.core.units import BASE_VERSION, ModelVersion, StreamId
from ekya.gpu.backends.backend import ShareBackend
from ekya.gpu.nvml import list_gpus
from ekya.gpu.window_meter import GpuMeter, open_meter
from ekya.pipeline.kept_measurements import keep_refined
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.run_writer import ModelRecord
from ekya.pipeline.setup import first_inference_options, job_places, script_cues
from ekya.planning.placement.homes import PREPARATION_GPU
from ekya.planning.schedulers.registry import make_scheduler, scheduler_word
from ekya.results.metrics.summary import SummaryHost
from ekya.results.progress import ProgressObserver, ScriptLogger, WarningLogger
from ekya.results.report.screen import Show, open_screen
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.results.storage.segmented_journal import SegmentedJournal
from ekya.runtime.actors.actor_kinds import ActorConfig, Ready
from ekya.runtime.actors.actor_messages import RunClock, unwrapping_user_error
from ekya.runtime.driver.executor import RayExecutor, StoppedEarlyError
from ekya.runtime.driver.fleet_actors import FleetActors
from ekya.runtime.driver.fleet_changes import RunLimits
from ekya.runtime.driver.observers import LoopFacts, ModelKeeper, ModelPruner, RunMetrics, WindowKeeper
from ekya.runtime.driver.open_run import OpenRun
from ekya.runtime.driver.operator_control import OperatorControl
from ekya.runtime.driver.places import PlaceAt, on_this_node
from ekya.runtime.driver.planner import ActorPlanner
from ekya.runtime.driver.remote_retrainings import RemoteRetrainings
from ekya.runtime.driver.resuming import is_complete, kept_weights, newest_weights
from ekya.runtime.shares.gpu_memory import BudgetedExecutor, MeteredExecutor, job_sizes, require_inference
from ekya.runtime.shares.share_changes import ledger_for
from ekya.streams.ingest.credentials import named_values
from ekya.system.host import loaded_frozen

_LOG = logging.getLogger(__name__)


LEAD_NS = 500_000_000
"""Minimum time between announcing the start of the run to the cameras and the start itself."""

_END_S = 10.0
"""Time for the workers of a service to end. A run has all the time that its last frames take."""

SEGMENT_BYTES = 32 << 20
"""Size after which a service begins another segment of its journal."""


class RunCoordinator(Protocol):
    """Tier above one server. Called only by the thread of the run; an exception ends the run."""

    def begin_ns(self) -> int:
        """Returns when the run begins or resumes, as ``time.monotonic_ns`` of this machine.

        Called when every actor is ready; may wait for other servers. The cameras learn the time when this
        returns, so it should be ``LEAD_NS`` ahead.
        """

    def wrap_executor(self, inner: Executor, remote: RemoteRetrainings, clock: RunClock) -> Executor:
        """Returns the executor that the loop uses in front of ``inner``; ``clock`` gives run time.

        Retrainings on other servers get their inputs from ``remote``, and report to it. The executor must not
        pass on a ``StartRetraining`` with ``elsewhere`` set, which ``inner`` cannot begin.
        """

    def wrap_planner(self, plan: Planner) -> Planner:
        """Returns the planner that the loop uses in front of the scheduler."""

    def observe_step(self, batch: Batch, result: StepResult) -> None:
        """Called after each step of the loop, when its commands have been given."""


class NullCoordinator:
    """Upper tier of a server that runs alone."""

    def begin_ns(self) -> int:
        """Returns the earliest start that gives the cameras their lead time."""
        return time.monotonic_ns() + LEAD_NS

    def wrap_executor(self, inner: Executor, remote: RemoteRetrainings, clock: RunClock) -> Executor:
        return inner

    def wrap_planner(self, plan: Planner) -> Planner:
        return plan

    def observe_step(self, batch: Batch, result: StepResult) -> None:
        """Does nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class RunSession:
    """One run on actors, on this process's own Ray node.

    This process is connected to Ray, as a driver or as an actor; any of its threads may call.

    Attributes:
        opened: run, not yet started.
        shares: its backend, opened for its GPUs and closed by the caller; other servers' jobs use it too.
        note: a line for the screen.
        server: name of the server, where several share a Ray namespace: a prefix of its actors' names.
        coordinator: tier above this server.
        stop: ends the run early when another thread sets it, as Ctrl-C does: the results until then are
            measured and written as usual.
        attach: called with the run's control when its loop begins.
        alive: called several times a second by the loop, as long as it does not hang.
        may_go_on: whether the loop may take another step; called as often.
        place_at: where actors are.
    """

    opened: OpenRun
    shares: ShareBackend
    note: str = ""
    server: str = ""
    coordinator: RunCoordinator = field(default_factory=NullCoordinator)
    stop: threading.Event = field(default_factory=threading.Event)
    attach: Callable[[OperatorControl], None] = lambda control: None
    alive: Callable[[], None] = lambda: None
    may_go_on: Callable[[], bool] = lambda: True
    place_at: PlaceAt = on_this_node

    def run(self, console: Console) -> Path:
        """Runs all windows, reports, and returns the run folder; see ``run_windows``."""
        return self._report(self.run_windows(console))

    def run_windows(self, console: Console) -> LoopFacts:
        """Runs all windows without a report. Nothing of the run is left on Ray afterwards.

        Args:
            console: for messages to the user; a quiet one shows nothing.

        Raises:
            UserError: an actor rejected its input, or a file cannot be written.
        """
        opened, began_s = self.opened, time.monotonic()
        fleet, constants, resumed = opened.fleet, opened.constants, opened.resumed
        from_us = opened.continue_us
        scheduler = make_scheduler(opened.options.scheduler)
        facts = LoopFacts()
        with ExitStack() as stack:
            # Left in reverse order: the journal and the control first, so that no operator waits for a loop
            # that has ended; then the actors; last the database, in which these are recorded.
            meter = self._open_meter(stack)
            store = stack.enter_context(StateStore(opened.folder.state, of_run=True))
            place = self.place_at(PREPARATION_GPU).strategy
            planner = ActorPlanner(scheduler_word(opened.options.scheduler), scheduler, self.server, place)
            stack.callback(planner.close)
            actors = FleetActors(self._actor_config(), self._first_weights(store), place_at=self.place_at)
            stack.callback(actors.close)
            with console.status("starting the actors"):
                ready = self._wait_ready(actors)
            facts.start_s = time.monotonic() - began_s
            stack.enter_context(loaded_frozen())
            # The clock of a resumed run goes on where it was, so its start lies before this process.
            clock = RunClock(self.coordinator.begin_ns() - from_us * 1000)
            _begin(actors, clock)
            for stream in () if resumed is None else resumed.paused:
                actors.pause_stream(stream, True)
            on_ray = RayExecutor(
                actors,
                ready,
                self._first_events(ready),
                clock,
                partial(_keep_labels, opened.folder, store),
                ledger_for(constants, actors.home_gpu, opened.host.costs.batch_s),
                self.stop,
                partial(kept_weights, opened.folder, store),
                self.alive,
                self.may_go_on,
            )
            on_ray.load_profiler()
            limits = RunLimits(fleet, constants, opened.host.costs, opened.machine)
            control = OperatorControl(on_ray, actors, clock, opened.folder, store, limits)
            stack.callback(control.close)
            self.attach(control)
            executor = self.coordinator.wrap_executor(
                self._metered(on_ray, meter, from_us), on_ray.remote, clock
            )
            facts.planning_ms = planner.planning_ms
            plan = self.coordinator.wrap_planner(planner.plan)

            def planner_of(name: str) -> Planner:
                planner.change_scheduler(name)
                return plan

            with open_screen(console) as show:
                observe = self._observer(show, store, facts)
                state = None if resumed is None else resumed.state
                journal = stack.enter_context(closing(self._journal()))
                try:
                    needs, snapshot = scheduler.needs, journal.write_snapshot
                    run_loop(executor, journal, plan, needs, constants, observe, state, snapshot, planner_of)
                except (KeyboardInterrupt, StoppedEarlyError):
                    follows = "" if opened.options.endless else "; measuring what there is"
                    _LOG.warning("stopped at %.1f s%s", clock.now_us() / 1e6, follows)
            facts.busy_s, facts.run_s = on_ray.busy_s, clock.now_us() / 1e6
            facts.homes = {stream: actors.home_gpu(stream) for stream in actors.streams}
            _end(actors, clock.now_us(), store, _END_S if opened.options.endless else None)
        return facts

    def _journal(self) -> SegmentedJournal:
        """Opens the journal, which goes on where the run is resumed."""
        opened = self.opened
        state = None
        if opened.resumed is not None:
            opened.resumed.truncate_journal(opened.folder)
            state = opened.resumed.state
        segment_bytes = SEGMENT_BYTES if opened.options.endless else None
        scheduler = scheduler_word(opened.options.scheduler)
        return SegmentedJournal(opened.folder, scheduler, opened.constants, segment_bytes, state)

    def _open_meter(self, stack: ExitStack) -> GpuMeter | None:
        """Opens the meter of the run's GPUs, and checks that its inference fits in their memory."""
        opened = self.opened
        meter = open_meter(list_gpus(), opened.gpus) if opened.on_gpus else None
        if meter is not None:
            stack.enter_context(meter)
            places = job_places(opened.fleet, opened.constants.capacity_milli)
            require_inference(opened.fleet, opened.grouping.processes, places, meter)
        return meter

    def _actor_config(self) -> ActorConfig:
        opened = self.opened
        return ActorConfig(
            opened.folder,
            opened.fleet,
            opened.options.seed,
            self.shares,
            opened.chosen.capability.device,
            opened.homes,
            opened.constants.inference_speed,
            self.server,
            opened.host.self_test.way,
            opened.host.costs.streams,
            opened.grouping.processes,
            opened.constants.family_costs,
            trainers=opened.grouping.trainers,
            trainer_milli=opened.grouping.trainer_milli,
            keeps_hours=opened.options.endless,
            variables=named_values(opened.fleet.named_secrets),
        )

    def _first_weights(self, store: StateStore) -> dict[StreamId, tuple[bytes, ModelVersion]]:
        """Returns the weights that streams have served; the others begin with the base model.

        Only workers load that.
        """
        opened = self.opened
        served = newest_weights(opened.folder, opened.fleet)
        for stream in opened.fleet.streams:
            if stream.id not in served:
                ModelRecord(opened.folder, store, stream.id).add_model(BASE_VERSION, None, -1, None, None, 0)
        return served

    def _wait_ready(self, actors: FleetActors) -> dict[StreamId, Ready]:
        opened = self.opened
        # A resumed run prepares a window immediately, and of a recording nothing is missed meanwhile.
        # What a camera shows must be answered at once, and a service answers first.
        waits = not opened.options.endless and (
            opened.resumed is not None or not any(stream.source.live for stream in opened.fleet.streams)
        )
        ready = unwrapping_user_error(partial(actors.wait_ready, loads_all=waits))
        if waits:
            actors.load_serving(ready)
        return ready

    def _first_events(self, ready: dict[StreamId, Ready]) -> Sequence[ev.Event]:
        """Returns the loop's first events, and those that add streams at their time."""
        fleet, host, resumed = self.opened.fleet, self.opened.host, self.opened.resumed
        known = frozenset[StreamId]() if resumed is None else resumed.known
        added = []
        for stream, its in sorted(ready.items()):
            if stream not in known:
                costs = host.costs.streams[stream]
                options = first_inference_options(
                    fleet,
                    stream,
                    its.settings.fps,
                    costs.frame_gpu_s,
                    its.settings.inference_speed,
                    costs.following_gpu_s,
                )
                added.append(ev.StreamAdded(fleet.stream(stream).play.joins_us, stream, options))
        return [*(() if resumed is None else resumed.events), *added]

    def _metered(self, executor: RayExecutor, meter: GpuMeter | None, from_us: int) -> Executor:
        """Adds GPU memory checks and metering; returns the executor unchanged without a GPU meter."""
        if meter is None:
            return executor
        meter.drain_uses()  # discards the start of the actors, which belongs to no window
        fleet, constants = self.opened.fleet, self.opened.constants
        places = job_places(fleet, constants.capacity_milli)
        budgeted = BudgetedExecutor(executor, meter, places, job_sizes(fleet))
        return MeteredExecutor(budgeted, meter, constants.window_us, from_us)

    def _observer(self, show: Show, store: StateStore, facts: LoopFacts) -> Observer:
        """Returns a callback that passes each step of the loop to all that follow the run."""
        warnings = WarningLogger()
        observers: tuple[Observer, ...] = (
            ScriptLogger(script_cues(self.opened.fleet)),
            lambda batch, _: warnings(batch),
            ProgressObserver(show, self.opened.constants, self.note),
            RunMetrics(),
            ModelKeeper(self.opened.folder, store),
            ModelPruner(self.opened.folder, store, self.opened.fleet.retention.models),
            WindowKeeper(store),
            facts,
            self.coordinator.observe_step,
        )

        def observe(batch: Batch, result: StepResult) -> None:
            for observer in observers:
                observer(batch, result)

        return observe

    def _report(self, facts: LoopFacts) -> Path:
        """Scores the run, writes its report, and returns its folder."""
        # The figure libraries are loaded after the run, since loading them would delay its start.
        from ekya.results.finalize import finish_run

        opened = self.opened
        chosen: dict[str, object] = {"processes": opened.grouping.why, "gave_up": list(opened.gave_up)}
        if opened.nodes:
            chosen["nodes"] = opened.summarize_nodes(facts.homes)
        others = {**facts.summary(), **opened.host.summary(), **chosen}
        host = SummaryHost(
            tuple(facts.planning_ms),
            tuple(facts.stalls_ms),
            late_gpu=facts.late_gpu if opened.chosen.on_gpus else None,
            golden_device=opened.host.golden_device,
            others=others,
        )
        options = opened.options
        scheduler = make_scheduler(options.scheduler)
        summary = finish_run(
            opened.folder, opened.fleet, "live", options.seed, host, options.score, scheduler
        )
        keep_refined(opened.chosen, opened.fleet.edge.model, facts.training_speed)
        _LOG.info("mean accuracy %s, in %s", summary["mean_accuracy"], opened.folder.path)
        return opened.folder.path


def report_complete(folder: RunFolder, fleet: FleetConfig) -> bool:
    """Writes the report of a complete run that was stopped before it was there; returns whether it did.

    A report that is there is of the whole run, since ``resume_run`` removes any other. What the host had
    measured is gone.
    """
    from ekya.results.finalize import finish_run

    _, constants, steps = read_journal(folder.journal)
    if not is_complete(steps) or (folder.summary.is_file() and folder.report.is_file()):
        return False
    _LOG.info("%s is complete; its report is written now", folder.path)
    finish_run(folder, fleet, "live", constants.seed, score=Scoring.SAMPLE)
    return True


def _keep_labels(folder: RunFolder, store: StateStore, stream: StreamId, labels: StreamLabels) -> None:
    ModelRecord(folder, store, stream).add_labels(labels)


def _begin(actors: FleetActors, clock: RunClock) -> None:
    """Lets all actors begin; the executor handles one that has died like any other death."""
    started_ns = clock.started_monotonic_ns
    begins = [
        inference.start_run.remote(actors.translate_ns(inference, started_ns))
        for inference in actors.workers(ev.Role.INFERENCE)
    ]
    # Trainers and the micro-profiler may still be loading, so the run does not wait for them.
    for retraining in actors.workers(ev.Role.RETRAINING):
        retraining.start_run.remote(actors.translate_ns(retraining, started_ns))
    actors.preparation.start_run.remote(started_ns)
    for begun in begins:
        with suppress(RayActorError):
            ray.get(begun)


def _end(actors: FleetActors, horizon_us: int, store: StateStore, within_s: float | None) -> None:
    """Ends every stream's inference and stores its frame counts; waits for as long, or without limit."""
    ends = [inference.end_run.remote(horizon_us) for inference in actors.workers(ev.Role.INFERENCE)]
    saved = [retraining.finish_saving.remote() for retraining in actors.workers(ev.Role.RETRAINING)]
    missing = set(actors.streams)
    _, hung = ray.wait([*ends, *saved], num_returns=len(ends) + len(saved), timeout=within_s)
    for reference in ends:
        if reference in hung:
            continue
        try:
            for row in ray.get(reference):
                store.put_stream(row)
                missing.discard(row.stream)
        except RayError as error:
            _LOG.debug("an inference process is dead: %s", error)
    for stream in sorted(missing):
        _LOG.warning("%s: its inference is dead or hangs; what it had written is kept", stream)
