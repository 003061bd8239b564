"""`ekya run`: a fleet on Ray actors, on the wall clock."""

import logging
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from rich.console import Console

from ekya.config import FleetConfig, RunOptions, dump_fleet
from ekya.control.loop import run_loop
from ekya.control.options import LoopOptions, StreamHome
from ekya.control.protocols import Batch, Executor
from ekya.control.step import Turn
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.commands import Command
from ekya.core.ids import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.core.plan import Plan
from ekya.core.speed import SpeedCurve
from ekya.core.units import FULL_GPU_MILLI
from ekya.core.view import WindowView
from ekya.files import write_text_atomic
from ekya.finishing import RunEnd, finish_run
from ekya.gpu.nvml import list_gpus
from ekya.gpu.registry import choose_backend
from ekya.gpu.window_meter import GpuMeter, open_meter
from ekya.journal import FileJournal
from ekya.learning.checkpoints import to_bytes
from ekya.measuring.summary import HostFacts
from ekya.placement.homes import deal
from ekya.report.screen import open_screen
from ekya.runfolder import RunFolder
from ekya.runstate import ModelRow, StateStore
from ekya.runtime.budget import BudgetedExecutor
from ekya.runtime.complaining import or_complaint
from ekya.runtime.executor import RayExecutor
from ekya.runtime.fleet_actors import FleetActors
from ekya.runtime.fleet_memory import job_sizes, require_inference
from ekya.runtime.lending import require_gpu
from ekya.runtime.mailbox import RunClock
from ekya.runtime.metering import MeteredExecutor
from ekya.runtime.metrics import RunMetrics
from ekya.runtime.orders import ActorOrders
from ekya.runtime.ready import Ready
from ekya.runtime.resuming import Resumed, newest_weights, resume, same_weights
from ekya.runtime.share_changes import ledger_for
from ekya.scheduling.registry import make_scheduler
from ekya.setup import (
    base_model,
    first_inference_options,
    job_places,
    loop_options,
    script_cues,
    with_classes,
)
from ekya.speeds import inference_speed, keep_refined, kept_speeds, training_speed
from ekya.watching import ScriptTeller, Watcher
from ekya.workers.costs import load_card
from ekya.workers.labels import StreamLabels
from ekya.workers.record import ModelRecord

_LOG = logging.getLogger(__name__)
_LEAD_NS = 500_000_000
"""Between telling the cameras when the run begins, and its beginning."""

_OBJECT_STORE_BYTES = 1024**3


def run_live(fleet: FleetConfig, options: RunOptions, console: Console) -> Path:
    """Runs a fleet on Ray actors and returns its run folder.

    Ctrl-C ends the run early; what has happened until then is measured and written as ever.
    """
    resumed = None
    if options.resume is None:
        fleet = with_classes(fleet)
        folder = RunFolder.create(options.runs, options.name or fleet.name)
        write_text_atomic(folder.fleet, dump_fleet(fleet))
    else:
        folder = RunFolder.open(options.resume)
        resumed = resume(folder)
        options = replace(options, scheduler=resumed.scheduler, seed=resumed.seed)
        _LOG.info("goes on at %.1f s, with %s", resumed.from_us / 1e6, resumed.scheduler)
    chosen = choose_backend(options.shares)
    _LOG.info("shares: %s", chosen.why)
    if fleet.hand_over == "cuda-ipc":
        require_gpu(chosen.capability.device)
    constants = loop_options(
        fleet,
        load_card().of(fleet.edge.model),
        options.seed,
        chosen.capability.step_milli,
        chosen.capability.capacity_milli,
        chosen.capability.groups,
    )
    # A run that goes on is planned as it was: what was measured since then is for the next one.
    speeds = kept_speeds(chosen, fleet.edge.model)
    constants = replace(
        constants,
        training_speed=resumed.training_speed if resumed else training_speed(speeds),
        inference_speed=resumed.inference_speed if resumed else inference_speed(speeds),
    )
    gpus = max(1, -(-constants.capacity_milli // FULL_GPU_MILLI))
    homes = deal(len(fleet.streams), constants.capacity_milli)
    on_gpus = chosen.capability.device == "cuda"
    if on_gpus and gpus > 1:
        at_home = [StreamHome(stream.id, gpu) for stream, gpu in zip(fleet.streams, homes, strict=True)]
        constants = replace(constants, homes=tuple(at_home))
    with ExitStack() as stack:
        meter = open_meter(list_gpus(), gpus) if on_gpus else None
        if meter is not None:
            require_inference(fleet, job_places(fleet, constants.capacity_milli), stack.enter_context(meter))
        # Before Ray, so that it outlives every actor.
        shares = stack.enter_context(chosen.backend.open(gpus))
        dashboard = _start_ray(options.dashboard, gpus if on_gpus else 0)
        stack.callback(ray.shutdown)
        store = stack.enter_context(StateStore(folder.state))
        journal = FileJournal(folder.journal, options.scheduler, constants)
        stack.callback(journal.close)
        orders = ActorOrders(
            folder,
            fleet,
            options.seed,
            shares,
            chosen.capability.device,
            homes,
            constants.inference_speed,
        )
        run = _Run(orders, options, constants, store, journal, dashboard, resumed, meter)
        host = run.go(console)
    finished = finish_run(folder, fleet, RunEnd("live", options.seed, host))
    keep_refined(chosen, fleet.edge.model, run.training_speed)
    _LOG.info("mean accuracy %s, in %s", finished.summary["mean_accuracy"], folder.path)
    return folder.path


def _start_ray(dashboard: bool, gpus: int) -> str:
    """Starts Ray here, with so many GPUs to place actors on, and returns where its dashboard is."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    context = ray.init(
        # Its own, and not one that somebody else has running on this machine.
        address="local",
        num_gpus=gpus,
        include_dashboard=dashboard,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=_OBJECT_STORE_BYTES,
        configure_logging=True,
    )
    url = str(context.dashboard_url or "")
    return f"dashboard: http://{url}" if url else ""


@dataclass(slots=True, eq=False)
class _Run:
    """One run from its actors to their end.

    Attributes:
        training_speed: what its retrainings have made of the curve so far; None while they said nothing.
    """

    orders: ActorOrders
    options: RunOptions
    constants: LoopOptions
    store: StateStore
    journal: FileJournal
    dashboard: str
    resumed: Resumed | None
    meter: GpuMeter | None
    planning_ms: list[float] = field(default_factory=list)
    stalls_ms: list[float] = field(default_factory=list)
    training_speed: SpeedCurve | None = None

    def go(self, console: Console) -> HostFacts:
        """Runs all windows; what the host's clock measured of it."""
        began_s = time.monotonic()
        weights = self._first_weights()
        on_the_gpu = self.orders.fleet.hand_over == "cuda-ipc"
        actors = FleetActors(self.orders, self.options.scheduler, weights)
        with console.status("starting the actors"):
            ready = or_complaint(actors.wait_ready)
            if on_the_gpu:
                actors.try_hand_over()
        ready_s = time.monotonic()
        from_us = 0 if self.resumed is None else self.resumed.from_us
        clock = RunClock(time.monotonic_ns() + _LEAD_NS - from_us * 1000)
        _begin(actors, clock, ready)
        events = self._first_events(ready)
        ledger = ledger_for(self.constants)
        ray_executor = RayExecutor(actors, ready, events, clock, self._keep_labels, ledger, on_the_gpu)
        executor = _Timed(self._by_the_gpus(ray_executor, from_us))
        needs = make_scheduler(self.options.scheduler).needs
        metrics, models = RunMetrics(), _ModelKeeper(self.orders.folder, self.store)
        with open_screen(console) as screen:
            watcher = Watcher(screen, self.constants, self.dashboard)
            tell_script = ScriptTeller(script_cues(self.orders.fleet))

            def observe(batch: Batch, turn: Turn) -> None:
                tell_script(batch, turn)
                watcher(batch, turn)
                metrics(batch, turn)
                models(batch, turn)
                self._note_stalls(batch)
                self.training_speed = turn.state.training_speed

            try:
                state = None if self.resumed is None else self.resumed.state
                planner = self._planner(actors)
                run_loop(executor, self.journal, planner, needs, self.constants, observe, state)
            except KeyboardInterrupt:
                _LOG.warning("stopped at %.1f s; measuring what there is", clock.now_us() / 1e6)
        run_s = clock.now_us() / 1e6
        self._end(actors, clock.now_us())
        return HostFacts(
            planning_ms=tuple(self.planning_ms),
            swap_ms=tuple(self.stalls_ms),
            others={
                "start_s": round(ready_s - began_s, 3),
                "run_s": round(run_s, 3),
                "control_ms": round(executor.busy_s * 1000, 1),
                "control_part": round(executor.busy_s / run_s, 5) if run_s > 0 else None,
            },
        )

    def _by_the_gpus(self, executor: Executor, from_us: int) -> Executor:
        """As it is where no GPU can be asked."""
        if self.meter is None:
            return executor
        self.meter.take()  # what it cost to start the actors belongs to no window
        fleet = self.orders.fleet
        places = job_places(fleet, self.constants.capacity_milli)
        budgeted = BudgetedExecutor(executor, self.meter, places, job_sizes(fleet))
        return MeteredExecutor(budgeted, self.meter, self.constants.window_us, from_us)

    def _first_weights(self) -> dict[StreamId, tuple[bytes, ModelVersion]]:
        fleet = self.orders.fleet
        if self.resumed is not None:
            return newest_weights(self.orders.folder, fleet)
        base = base_model(fleet, self.options.seed)
        for stream in fleet.streams:
            record = ModelRecord(self.orders.folder, self.store, stream.id)
            record.add_model(BASE_VERSION, base, -1, None, None, 0)
        return same_weights(fleet, to_bytes(base))

    def _first_events(self, ready: dict[StreamId, Ready]) -> Sequence[ev.Event]:
        """What the loop is told before anything has happened, and when streams join."""
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
                    known.frame_gpu_s,
                    known.settings.inference_speed,
                ),
            )
            for stream, known in sorted(ready.items())
            if stream not in known_already
        ]
        return [*again, *added]

    def _planner(self, actors: FleetActors) -> Any:
        def plan(view: WindowView) -> Plan:
            try:
                made, took_ms = ray.get(actors.scheduler.plan.remote(view))
            except RayError:
                _LOG.exception("the scheduler died and is started again")
                actors.scheduler = actors.make_scheduler()
                made, took_ms = ray.get(actors.scheduler.plan.remote(view))
            self.planning_ms.append(took_ms)
            decided: Plan = made
            return decided

        return plan

    def _keep_labels(self, stream: StreamId, labels: StreamLabels) -> None:
        ModelRecord(self.orders.folder, self.store, stream).add_labels(labels)

    def _note_stalls(self, batch: Batch) -> None:
        for event in batch.events:
            if isinstance(event, ev.ModelSwapped | ev.RolledBack):
                self.stalls_ms.append(event.stall_us / 1000)

    def _end(self, actors: FleetActors, horizon_us: int) -> None:
        """Ends every stream's inference and keeps what it counted."""
        ends = [inference.end.remote(horizon_us) for inference in actors.inferences]
        saved = [own.retraining.end.remote() for own in actors.streams.values()]
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


class _Timed:
    """An executor, and how long the loop keeps it waiting: the loop's own work."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._came_back_s: float | None = None
        self.busy_s = 0.0

    def wait(self, until_us: int) -> Batch:
        """As the executor's."""
        if self._came_back_s is not None:
            self.busy_s += time.monotonic() - self._came_back_s
        batch = self._executor.wait(until_us)
        self._came_back_s = time.monotonic()
        return batch

    def execute(self, commands: Sequence[Command]) -> None:
        """As the executor's."""
        self._executor.execute(commands)


class _ModelKeeper:
    """Writes down which model served from when; its weights are in the run folder already."""

    def __init__(self, folder: RunFolder, store: StateStore) -> None:
        self._folder = folder
        self._store = store
        self._started: dict[JobId, cmd.StartRetraining] = {}

    def __call__(self, batch: Batch, turn: Turn) -> None:
        """Follows a turn."""
        for command in turn.commands:
            if isinstance(command, cmd.StartRetraining):
                self._started[command.job] = command
        for event in batch.events:
            if isinstance(event, ev.RolledBack):
                record = ModelRecord(self._folder, self._store, event.stream)
                record.serve_again(event.version, event.of, event.t_us)
            if isinstance(event, ev.ModelSwapped) and event.job in self._started:
                started = self._started[event.job]
                path = self._folder.model(event.stream, event.version)
                self._store.put_model(
                    ModelRow(
                        stream=event.stream,
                        version=event.version,
                        window=started.window,
                        path=self._folder.relative(path),
                        gamma=started.config,
                        validation_accuracy=event.validation_accuracy,
                        served_from_us=event.t_us,
                    )
                )


def _begin(actors: FleetActors, clock: RunClock, ready: dict[StreamId, Ready]) -> None:
    started_ns = clock.started_monotonic_ns
    begins = [inference.begin.remote(started_ns) for inference in actors.inferences]
    begins += [own.retraining.begin.remote(started_ns) for own in actors.streams.values()]
    costs = {stream: known.frame_gpu_s for stream, known in ready.items()}
    ray.get([*begins, actors.preparation.begin_run.remote(started_ns, costs)])
