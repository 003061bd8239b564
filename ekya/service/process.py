"""The service process: a fleet on Ray actors that runs until stopped, with what shows and changes it."""

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from types import FrameType

from rich.console import Console

from ekya.config.fleet_file import FleetConfig
from ekya.config.run_options import RunOptions
from ekya.control.loop_state import LoopState, as_asked
from ekya.control.protocols import Batch, Executor, Planner
from ekya.control.step import StepResult
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.units import StreamId
from ekya.fleet.run.live.service_lending import ServiceLending
from ekya.models.edge.architecture_table import Task
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.host_probe import keep_host, kept_host
from ekya.planning.schedulers.registry import scheduler_word
from ekya.results.storage.hour_tables import newest_rows
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.wall_clock import WallClock, record_start
from ekya.runtime.actors.actor_messages import RunClock
from ekya.runtime.driver.open_run import OpenRun, open_run, start_probe
from ekya.runtime.driver.operator_control import OperatorControl
from ekya.runtime.driver.ray_of_run import RayOfRun, opened_ray, settle_address
from ekya.runtime.driver.remote_retrainings import RemoteRetrainings
from ekya.runtime.driver.run_session import LEAD_NS, RunSession
from ekya.service.answers.publisher import Publisher
from ekya.service.backend import ServiceBackend
from ekya.service.history import keep_past, read_past
from ekya.service.host_facts import HostMeter
from ekya.service.http.access import token_of
from ekya.service.http.place import list_for_user
from ekya.service.http.server import HttpServer
from ekya.service.logs import logging_to_folder, secrets_hidden
from ekya.service.metrics import Exposition
from ekya.service.ray_watch import ended_with_ray
from ekya.service.retention import DiskRoom, collect_or_warn
from ekya.service.status_keeper import KnownCameraTerms, KnownFleetTerms, StatusKeeper
from ekya.service.supervised import Heartbeat, die_with_parent, read_restarts

_LOG = logging.getLogger(__name__)

_CLOCK_SET_US = 2_000_000
"""Difference at which the host's clock was set: less is drift, which is corrected slowly."""


def serve_fleet(fleet: FleetConfig, options: RunOptions, with_token: bool, console: Console) -> bool:
    """Serves a fleet until SIGTERM, SIGINT or its last window; goes on with what ``options.resume`` holds.

    Returns whether it is to be started again, with the fleet as its folder has it then.

    Args:
        fleet: to serve.
        options: of the run, which is endless, or ends with a report.
        with_token: whether clients must show the token.
        console: for messages while it starts.

    Raises:
        UserError: the fleet does not fit this machine, or a part of the set-up fails.
    """
    die_with_parent()
    alive, stop = Heartbeat(), threading.Event()
    with secrets_hidden(lambda: fleet.named_secrets), _stopped_by_signals(stop):
        if options.resume is not None:
            # On a disk that the past has filled no window would come, at whose end this is done otherwise.
            cameras = tuple(stream.id for stream in fleet.streams)
            collect_or_warn(RunFolder(options.resume), fleet.retention, None, cameras)
        options = settle_address(options)
        with opened_ray(fleet, options, console) as on_ray:
            run = _open(fleet, options, on_ray, console)
            if stop.is_set():
                return False
            for sentence in run.gave_up:
                console.print(f"Given up: {sentence}", highlight=False, soft_wrap=True)
            # Ray has put a handler before ours that prints a stack trace.
            with (
                _stopped_by_signals(stop),
                ended_with_ray(),
                run.open_shares() as shares,
                ExitStack() as stack,
            ):
                lending = None
                if run.fleet.lending.takes_part:
                    lending = stack.enter_context(closing(ServiceLending(run, shares)))
                service = FleetService(run, with_token, stack, stop, lending)
                session = RunSession(
                    run,
                    shares,
                    coordinator=service,
                    stop=stop,
                    attach=service.attach,
                    alive=alive,
                    may_go_on=DiskRoom(run.folder.path, service.collect),
                    place_at=on_ray.place_at,
                )
                if options.endless:
                    session.run_windows(Console(quiet=True))
                else:
                    session.run(Console(quiet=True))
                return service.starts_again


def _open(fleet: FleetConfig, options: RunOptions, on_ray: RayOfRun, console: Console) -> OpenRun:
    """Starts Ray and opens the run; a service that starts again was measured before."""
    chosen, device = on_ray.chosen, on_ray.chosen.capability.device
    known = None if options.resume is None else kept_host(RunFolder(options.resume).host, fleet, device)
    if known is not None:
        on_ray.connect()
        return open_run(fleet, options, chosen, known, on_ray.nodes)
    # The machine is measured while Ray starts.
    with start_probe(fleet, options, chosen) as probe:
        on_ray.connect()
        with console.status("measuring this machine"):
            host = probe.result()
    run = open_run(fleet, options, chosen, host, on_ray.nodes)
    keep_host(run.folder.host, host, run.fleet, device)
    return run


class FleetService:
    """``RunCoordinator`` of a run that opens what is around it, when its loop begins.

    Args:
        run: not begun.
        with_token: whether clients must show the token.
        stack: closes what was opened.
        stop: ends the run when it is set.
        lending: None where it neither lends nor borrows.

    Attributes:
        starts_again: whether the service is to be started again when the run has ended.
    """

    def __init__(
        self,
        run: OpenRun,
        with_token: bool,
        stack: ExitStack,
        stop: threading.Event,
        lending: ServiceLending | None = None,
    ) -> None:
        self._run, self._with_token, self._stack, self._stop = run, with_token, stack, stop
        self._lending = lending
        self.starts_again = False
        self._classes = fleet_classes(run.fleet)
        self._control: OperatorControl | None = None
        self._keeper: StatusKeeper | None = None
        self._clock = WallClock(((0, 0),))
        self._collecting = threading.Event()
        self._stopping = False

    def begin_ns(self) -> int:
        """Returns the start of the run, and records it for the wall clock."""
        began_ns = time.monotonic_ns() + LEAD_NS
        # On disk before the first frame of this start, whose wall-clock time it gives.
        record_start(self._run.folder, self._run.continue_us, (time.time_ns() + LEAD_NS) // 1000)
        return began_ns

    def wrap_executor(self, inner: Executor, remote: RemoteRetrainings, clock: RunClock) -> Executor:
        """Wraps it where the service lends or borrows."""
        return inner if self._lending is None else self._lending.wrap_executor(inner, remote, clock)

    def wrap_planner(self, plan: Planner) -> Planner:
        """Wraps it likewise."""
        return plan if self._lending is None else self._lending.wrap_planner(plan)

    def observe_step(self, batch: Batch, result: StepResult) -> None:
        """Follows a step of the loop; what is old is removed when a window is over."""
        if self._lending is not None:
            self._lending.observe_step(batch, result)
        if self._keeper is not None:
            self._keeper(batch, result)
        if any(isinstance(command, cmd.StartAgain) for command in result.commands):
            self.starts_again = True
            self._stop.set()
        if any(isinstance(event, ev.WindowClosed) for event in batch.events):
            self.collect()
            self._set_clock()

    def collect(self) -> None:
        """Has what is old removed, in another thread."""
        self._collecting.set()

    def attach(self, control: OperatorControl) -> None:
        """Opens log, metrics, answers and HTTP server of the run."""
        folder, stack = self._run.folder, self._stack
        self._control = control
        self._clock = WallClock.from_folder(folder)
        past = read_past(folder, self._cameras(), time.time())
        keeper = StatusKeeper(folder.name, control.now_us, self._unix_us, self._terms, past)
        self._keeper = keeper
        # The stack closes in reverse: the log is open until all else has ended.
        stack.enter_context(logging_to_folder(folder.path, self._cameras, self._secrets))
        fleet = self._run.fleet
        publisher = Publisher(
            folder,
            fleet.answers,
            self._classes,
            lambda: keeper.status().cameras,
            detects=fleet.edge.task is Task.DETECT,
        )
        meter = HostMeter(
            folder.path,
            lambda: read_restarts(folder.path).count,
            publisher.sink_states,
            self._answered_unix_s,
        )
        # Counters of a killed process would go on a little lower, and Prometheus count all of them again.
        metrics = Exposition(lambda: keeper.status(since_start=True), meter.measure_host)
        desk = None if self._lending is None else self._lending.desk
        backend = ServiceBackend(control, keeper, metrics, folder, self._classes, desk)
        token = token_of(folder.path) if self._with_token else None
        server = HttpServer(backend, folder.path, token, self._run.fleet.http)
        publisher.start()
        stack.callback(publisher.close)
        # A service that goes on must not stay away because another process has its port for a time.
        server.start(patient=self._run.options.resume is not None)
        stack.callback(server.close)
        list_for_user(folder.path)
        collecting = threading.Thread(target=self._collect, args=(keeper,), name="retention", daemon=True)
        collecting.start()
        stack.callback(self._end_collecting, collecting)

    def _terms(self, state: LoopState) -> KnownFleetTerms:
        cameras = {one.stream: KnownCameraTerms(frozen=one.frozen) for one in state.fleet.streams}
        for one in () if self._control is None else self._control.fleet.streams:
            if one.id in cameras:
                cameras[one.id] = replace(
                    cameras[one.id], weight=one.weight, areas=one.areas, analysed_url=one.analysed_url
                )
        scheduler = state.fleet.scheduler or scheduler_word(self._run.options.scheduler)
        capacity_milli = as_asked(self._run.constants, state.fleet).capacity_milli
        return KnownFleetTerms(capacity_milli, scheduler, cameras)

    def _cameras(self) -> tuple[str, ...]:
        return () if self._control is None else tuple(one.id for one in self._control.fleet.streams)

    def _secrets(self) -> str:
        return (self._run.fleet if self._control is None else self._control.fleet).named_secrets

    def _unix_us(self, run_us: int) -> int:
        return self._clock.unix_us(run_us)

    def _set_clock(self) -> None:
        """Records the wall-clock time again after the host's clock was set, or the host has slept."""
        now_us, unix_us = 0 if self._control is None else self._control.now_us(), time.time_ns() // 1000
        has_begun = now_us >= self._run.continue_us  # the loop begins shortly before
        if has_begun and abs(self._unix_us(now_us) - unix_us) > _CLOCK_SET_US:
            _LOG.warning("the clock of this machine was set; times of answers follow it from now on")
            record_start(self._run.folder, now_us, unix_us)
            self._clock = WallClock.from_folder(self._run.folder)

    def _answered_unix_s(self) -> dict[str, float]:
        """Returns the time of the newest frame on disk of each camera."""
        newest = {}
        for camera in self._cameras():
            rows = next(newest_rows(self._run.folder.hours(StreamId(camera))), None)
            if rows is not None and len(rows.t_us):
                newest[camera] = self._unix_us(int(rows.t_us[-1])) / 1e6
        return newest

    def _collect(self, keeper: StatusKeeper) -> None:
        """Removes what is old whenever it is asked to; without this thread the disk would fill."""
        while True:
            self._collecting.wait()
            self._collecting.clear()
            # Read before the past is kept: what is asked for meanwhile sets the event again.
            stopping = self._stopping
            try:
                keep_past(self._run.folder, keeper.past())
            except Exception as error:
                _LOG.warning("what the page shows of the past is not kept (%s)", error)
            if stopping:
                return
            try:
                streams = tuple(StreamId(camera) for camera in self._cameras())
                collect_or_warn(self._run.folder, self._run.fleet.retention, self._unix_us, streams)
            except Exception:
                _LOG.exception("what is old is not removed; the next window tries again")

    def _end_collecting(self, thread: threading.Thread) -> None:
        # Before the event: the thread that it wakes reads this.
        self._stopping = True
        self._collecting.set()
        thread.join()


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Sets an event at SIGTERM and SIGINT, in place of what these do otherwise."""

    def set_stop(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, set_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
