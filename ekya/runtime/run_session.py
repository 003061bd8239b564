"""Executes one run on Ray actors, from the start of the first to the end of the last."""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import ray
from ray.exceptions import RayActorError, RayError
from rich.console import Console

from ekya.config.fleet_file import RunOptions
from ekya.control.loop import run_loop
from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch, Executor
from ekya.control.step import StepResult
from ekya.core import events as ev
from ekya.core.speed import SpeedCurve
from ekya.core.units import BASE_VERSION, ModelVersion, StreamId
from ekya.gpu.window_meter import GpuMeter
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.probe import ProbedHost
from ekya.pipeline.record import ModelRecord
from ekya.pipeline.setup import first_inference_options, job_places, script_cues
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.metrics.summary import HostFacts
from ekya.results.progress import ProgressObserver, ScriptLogger, WarningLogger
from ekya.results.report.screen import open_screen
from ekya.results.storage.journal import FileJournal
from ekya.results.storage.run_state import StateStore
from ekya.runtime.actor_errors import unwrapping_user_error
from ekya.runtime.actor_kinds import ActorConfig
from ekya.runtime.coordinator import Coordinator
from ekya.runtime.executor import RayExecutor
from ekya.runtime.executor_layers import MeteredExecutor, Stoppable, StoppedEarlyError, TimedExecutor
from ekya.runtime.fleet_actors import FleetActors
from ekya.runtime.gpu_memory import BudgetedExecutor, job_sizes
from ekya.runtime.mailbox import RunClock
from ekya.runtime.metrics import RunMetrics
from ekya.runtime.model_keeper import ModelKeeper
from ekya.runtime.planning import ActorPlanner
from ekya.runtime.ready import Ready, require_frames
from ekya.runtime.resuming import Resumed, newest_weights
from ekya.runtime.share_changes import ledger_for
from ekya.system.memory import loaded_frozen

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class RunSession:
    """One run on actors.

    Attributes:
        note: for the screen.
        host: measured costs of its work on this machine.
        coordinator: tier above this server.
        stop: ends the run early, as Ctrl-C does.
        training_speed: speed curve as refined by its retrainings; None until one has refined it.
    """

    orders: ActorConfig
    options: RunOptions
    constants: LoopOptions
    store: StateStore
    journal: FileJournal
    note: str
    resumed: Resumed | None
    host: ProbedHost
    meter: GpuMeter | None
    coordinator: Coordinator
    stop: threading.Event
    planning_ms: list[float] = field(default_factory=list)
    stalls_ms: list[float] = field(default_factory=list)
    training_speed: SpeedCurve | None = None

    def run(self, console: Console) -> HostFacts:
        """Runs all windows and returns the host's measurements. No actor is left when this returns."""
        began_s = time.monotonic()
        actors = FleetActors(self.orders, self.options.scheduler, self._first_weights())
        try:
            on_the_gpu = self.orders.fleet.hand_over == "cuda-ipc"
            with console.status("starting the actors"):
                ready = unwrapping_user_error(actors.wait_ready)
                require_frames(ready)
                if on_the_gpu:
                    actors.try_hand_over()
                if self.resumed is not None:
                    # A resumed run prepares a window immediately.
                    actors.load_serving(ready)
            ready_s = time.monotonic()
            from_us = 0 if self.resumed is None else self.resumed.from_us
            with loaded_frozen():
                clock = RunClock(self.coordinator.begin_ns() - from_us * 1000)
                _begin(actors, clock)
                actors.make_spares()
                events, ledger = (
                    self._first_events(ready),
                    ledger_for(self.constants, self.host.costs.batch_s),
                )
                on_ray = RayExecutor(actors, ready, events, clock, self._keep_labels, ledger, on_the_gpu)
                executor = self.coordinator.executor(self._by_the_gpus(on_ray, from_us), on_ray, clock)
                timed = TimedExecutor(Stoppable(executor, self.stop))
                self._loop(timed, actors, console, clock)
                run_s = clock.now_us() / 1e6
                self._end(actors, clock.now_us())
        finally:
            actors.close()
        return HostFacts(
            planning_ms=tuple(self.planning_ms),
            swap_ms=tuple(self.stalls_ms),
            others={
                "start_s": round(ready_s - began_s, 3),
                "run_s": round(run_s, 3),
                "control_ms": round(timed.busy_s * 1000, 1),
                "control_part": round(timed.busy_s / run_s, 5) if run_s > 0 else None,
                **self.host.summary(),
            },
        )

    def _loop(self, executor: Executor, actors: FleetActors, console: Console, clock: RunClock) -> None:
        """Runs the control loop until the last window has closed, or the run is ended early."""
        scheduler = make_scheduler(self.options.scheduler)
        on_actor = ActorPlanner(actors, scheduler)
        self.planning_ms = on_actor.planning_ms
        metrics, models = RunMetrics(), ModelKeeper(self.orders.folder, self.store)
        with open_screen(console) as show:
            watcher = ProgressObserver(show, self.constants, self.note)
            log_script = ScriptLogger(script_cues(self.orders.fleet))
            log_warnings = WarningLogger()

            def observe(batch: Batch, turn: StepResult) -> None:
                log_script(batch, turn)
                log_warnings(batch)
                watcher(batch, turn)
                metrics(batch, turn)
                models(batch, turn)
                self._note_stalls(batch)
                self.training_speed = turn.state.training_speed
                self.coordinator.observe(batch, turn)

            try:
                state = None if self.resumed is None else self.resumed.state
                planner = self.coordinator.planner(on_actor.plan)
                run_loop(executor, self.journal, planner, scheduler.needs, self.constants, observe, state)
            except (KeyboardInterrupt, StoppedEarlyError):
                _LOG.warning("stopped at %.1f s; measuring what there is", clock.now_us() / 1e6)

    def _by_the_gpus(self, executor: Executor, from_us: int) -> Executor:
        """Adds GPU memory checks and metering; returns the executor unchanged without a GPU meter."""
        if self.meter is None:
            return executor
        self.meter.take()  # discards the start of the actors, which belongs to no window
        fleet = self.orders.fleet
        places = job_places(fleet, self.constants.capacity_milli)
        budgeted = BudgetedExecutor(executor, self.meter, places, job_sizes(fleet))
        return MeteredExecutor(budgeted, self.meter, self.constants.window_us, from_us)

    def _first_weights(self) -> dict[StreamId, tuple[bytes, ModelVersion]] | None:
        """Returns the first weights of a resumed run; None for the base model, which only workers load."""
        if self.resumed is not None:
            return newest_weights(self.orders.folder, self.orders.fleet)
        for stream in self.orders.fleet.streams:
            record = ModelRecord(self.orders.folder, self.store, stream.id)
            record.note_model(BASE_VERSION, -1, None, None, 0)
        return None

    def _first_events(self, ready: dict[StreamId, Ready]) -> Sequence[ev.Event]:
        """Returns the loop's first events, and those that add streams at their time."""
        fleet = self.orders.fleet
        again = () if self.resumed is None else self.resumed.events
        there = () if self.resumed is None else self.resumed.state.fleet.streams
        known_already = {state.stream for state in there}
        added = [
            ev.StreamAdded(
                fleet.stream(stream).play.joins_us,
                stream,
                first_inference_options(
                    fleet,
                    stream,
                    known.settings.fps,
                    self.host.costs.streams[stream].frame_gpu_s,
                    known.settings.inference_speed,
                ),
            )
            for stream, known in sorted(ready.items())
            if stream not in known_already
        ]
        return [*again, *added]

    def _keep_labels(self, stream: StreamId, labels: StreamLabels) -> None:
        ModelRecord(self.orders.folder, self.store, stream).add_labels(labels)

    def _note_stalls(self, batch: Batch) -> None:
        for event in batch.events:
            if isinstance(event, ev.ModelSwapped | ev.RolledBack):
                self.stalls_ms.append(event.stall_us / 1000)

    def _end(self, actors: FleetActors, horizon_us: int) -> None:
        """Ends every stream's inference and stores its frame counts."""
        ends = [inference.end.remote(horizon_us) for inference in actors.inferences]
        saved = [retraining.end.remote() for retraining in actors.retrainings]
        gone = set(actors.streams)
        for reference in ends:
            try:
                for row in ray.get(reference):
                    self.store.put_stream(row)
                    gone.discard(row.stream)
            except RayError as error:
                _LOG.debug("a process of inference is gone: %s", error)
        for stream in sorted(gone):
            _LOG.warning("%s: its inference is gone; what it had written is kept", stream)
        ray.wait(saved, num_returns=len(saved))


def _begin(actors: FleetActors, clock: RunClock) -> None:
    """Lets all actors begin; the executor handles one that has died like any other death."""
    started_ns = clock.started_monotonic_ns
    begins = [inference.begin.remote(started_ns) for inference in actors.inferences]
    # Trainers and the micro-profiler may still be loading, so the run does not wait for them.
    for retraining in actors.retrainings:
        retraining.begin.remote(started_ns)
    actors.preparation.begin_run.remote(started_ns)
    for begun in begins:
        with suppress(RayActorError):
            ray.get(begun)
