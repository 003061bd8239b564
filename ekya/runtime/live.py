"""`ekya run`: a fleet on Ray actors and the wall clock, from its folder to its report."""

import logging
import os
import threading
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import ray
from rich.console import Console

from ekya.config.fleet_file import FleetConfig, RunOptions, dump_fleet
from ekya.config.sizing import fitted
from ekya.control.options import LoopOptions, StreamHome
from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.backend import ShareBackend
from ekya.gpu.backends.registry import MPS_BACKENDS, ChosenBackend, choose_backend
from ekya.gpu.cuda_ipc import require_gpu
from ekya.gpu.nvml import list_gpus
from ekya.gpu.window_meter import open_meter
from ekya.pipeline.probe import Probe, ProbedHost
from ekya.pipeline.setup import job_places, loop_options
from ekya.pipeline.speeds import inference_speed, keep_refined, kept_speeds, training_speed
from ekya.planning.placement.homes import Processes, deal, guests_gpu
from ekya.planning.profiling.sizes import Machine
from ekya.results.storage.journal import FileJournal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.runtime.actor_kinds import ActorConfig
from ekya.runtime.coordinator import Coordinator, NullCoordinator
from ekya.runtime.gpu_memory import require_inference
from ekya.runtime.object_store import object_store_bytes
from ekya.runtime.resuming import Resumed, resume
from ekya.runtime.run_session import RunSession
from ekya.system.files import write_text_atomic
from ekya.system.host import cpu_limit, read_host_memory

_LOG = logging.getLogger(__name__)

_PROCESS_BYTES = 3 << 30
"""Host memory of a process that has loaded torch and CUDA, with a margin."""


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that can begin or resume: it has its folder, and no process yet.

    Attributes:
        folder, fleet, options: of the run; of a resumed run, as it began.
        constants: of its loop.
        chosen: share backend.
        resumed: state to resume from; None for a new run.
        host: measured costs of its work on this machine.
        gave_up: sentences on what was given up to fit the machine.
    """

    folder: RunFolder
    fleet: FleetConfig
    options: RunOptions
    constants: LoopOptions
    chosen: ChosenBackend
    resumed: Resumed | None
    host: ProbedHost
    gave_up: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """Number of GPUs that it uses at least in part; CPU cores replace them where there are none."""
        return max(1, -(-self.constants.capacity_milli // FULL_GPU_MILLI))

    @property
    def on_gpus(self) -> bool:
        """True if it computes on GPUs."""
        return self.chosen.on_gpus

    @property
    def homes(self) -> tuple[int, ...]:
        """The GPU of every stream."""
        return deal(len(self.fleet.streams), self.constants.capacity_milli)

    @property
    def guests_gpu(self) -> int:
        """The GPU for other servers' jobs; its loop lends spare capacity of this GPU."""
        return guests_gpu(self.constants.capacity_milli)

    @property
    def processes(self) -> Processes:
        """Grouping of streams into processes: as the fleet says, or as this machine's memory allows."""
        if self.fleet.processes is not Processes.AUTO:
            return self.fleet.processes
        memory = read_host_memory()
        # Two processes for each stream, the micro-profiler's and a spare one.
        needed_bytes = (2 * len(self.fleet.streams) + 2) * _PROCESS_BYTES
        has_room = memory is None or memory.free_bytes >= needed_bytes
        return Processes.STREAM if has_room and self.chosen.name in MPS_BACKENDS else Processes.GPU

    def open_shares(self) -> AbstractContextManager[ShareBackend]:
        """Opens the share backend around every process that holds a share, for the run and its guests.

        Raises:
            UserError: it could not be started.
        """
        return self.chosen.backend.open(self.gpus)


def start_probe(fleet: FleetConfig, options: RunOptions, chosen: ChosenBackend) -> Probe:
    """Begins to measure this machine, where the run will be, in the background."""
    return Probe(fleet, chosen.capability.device, cpu_limit(), options.seed)


def open_run(fleet: FleetConfig, options: RunOptions, chosen: ChosenBackend, host: ProbedHost) -> OpenRun:
    """Makes the folder of a run, or opens that of ``options.resume`` and reads where to resume.

    Must be called on the machine of the run, whose hardware limits what the run can use.

    Args:
        fleet: as the user gave it; of a resumed run, as it began.
        options: of the run.
        chosen: share backend.
        host: measured costs on the machine.

    Raises:
        UserError: the fleet does not fit this machine, or a part of the set-up fails.
    """
    resumed: Resumed | None = None
    gave_up: tuple[str, ...] = ()
    if options.resume is None:
        machine = Machine(chosen.capability.capacity_milli, on_cores=not chosen.on_gpus)
        fleet, gave_up = fitted(fleet, host.costs, machine, overload=options.overload)
        fleet = fleet.model_copy(update={"classes": host.classes})
        folder = RunFolder.create(options.runs, options.name or fleet.name)
        write_text_atomic(folder.fleet, dump_fleet(fleet))
    else:
        folder = RunFolder.open(options.resume)
        resumed = resume(folder)
        options = replace(options, scheduler=resumed.scheduler, seed=resumed.seed)
        _LOG.info("goes on at %.1f s, with %s", resumed.from_us / 1e6, resumed.scheduler)
        _LOG.info("its first window has no labels: frames that were kept for them went with the process")
    _LOG.info("forward passes: %s", host.self_test.way)
    _LOG.info("shares: %s", chosen.why)
    if fleet.hand_over == "cuda-ipc":
        require_gpu(chosen.capability.device)
    constants = _constants(fleet, options, chosen, resumed, host)
    run = OpenRun(folder, fleet, options, constants, chosen, resumed, host, gave_up)
    if not run.on_gpus or run.gpus == 1:
        return run
    at_home = [StreamHome(stream.id, gpu) for stream, gpu in zip(fleet.streams, run.homes, strict=True)]
    return replace(run, constants=replace(run.constants, homes=tuple(at_home)))


def _constants(
    fleet: FleetConfig,
    options: RunOptions,
    chosen: ChosenBackend,
    resumed: Resumed | None,
    host: ProbedHost,
) -> LoopOptions:
    constants = loop_options(
        fleet,
        host.costs.families,
        options.seed,
        chosen.capability.step_milli,
        chosen.capability.capacity_milli,
        chosen.capability.groups,
    )
    # A resumed run keeps its speeds: later measurements apply to the next run.
    speeds = kept_speeds(chosen, fleet.edge.model)
    return replace(
        constants,
        training_speed=resumed.training_speed if resumed else training_speed(speeds),
        inference_speed=resumed.inference_speed if resumed else inference_speed(speeds),
    )


def run_on_ray(
    run: OpenRun,
    shares: ShareBackend,
    console: Console,
    *,
    server: str = "",
    coordinator: Coordinator | None = None,
    stop: threading.Event | None = None,
    note: str = "",
) -> Path:
    """Runs a fleet on actors on this process's own Ray node, and returns its run folder.

    This process is connected to Ray, as a driver or as an actor; any of its threads may call. Nothing of the
    run is left on Ray when this returns or raises.

    Args:
        run: not yet started.
        shares: its backend, opened for its GPUs and closed by the caller; other servers' jobs use it too.
        console: for messages to the user; a quiet one shows nothing.
        server: name of the server, where several share a Ray namespace: a prefix of its actors' names.
        coordinator: tier above this server.
        stop: ends the run early when another thread sets it, as Ctrl-C does: the results until then are
            measured and written as usual.
        note: a line for the screen.

    Raises:
        UserError: an actor rejected its input, or a file cannot be written.
    """
    fleet, folder, constants = run.fleet, run.folder, run.constants
    with ExitStack() as stack:
        meter = open_meter(list_gpus(), run.gpus) if run.on_gpus else None
        if meter is not None:
            places = job_places(fleet, constants.capacity_milli)
            require_inference(fleet, run.processes, places, stack.enter_context(meter))
        store = stack.enter_context(StateStore(folder.state))
        journal = FileJournal(folder.journal, run.options.scheduler, constants)
        stack.callback(journal.close)
        orders = ActorConfig(
            folder,
            fleet,
            run.options.seed,
            shares,
            run.chosen.capability.device,
            run.homes,
            constants.inference_speed,
            server,
            run.host.self_test.way,
            run.host.costs.streams,
            processes=run.processes,
        )
        session = RunSession(
            orders,
            run.options,
            constants,
            store,
            journal,
            note,
            run.resumed,
            run.host,
            meter,
            coordinator or NullCoordinator(),
            stop or threading.Event(),
        )
        host = session.run(console)
    # The figure libraries are loaded after the run, since loading them would delay its start.
    from ekya.results.finalize import finish_run

    host = replace(host, others={**host.others, "gave_up": list(run.gave_up)})
    summary = finish_run(folder, fleet, "live", run.options.seed, host)
    keep_refined(run.chosen, fleet.edge.model, session.training_speed)
    _LOG.info("mean accuracy %s, in %s", summary["mean_accuracy"], folder.path)
    return folder.path


def run_live(fleet: FleetConfig, options: RunOptions, console: Console) -> Path:
    """Runs a fleet on a separate local Ray and returns its run folder.

    Ctrl-C ends the run early; the results until then are measured and written as usual.
    """
    chosen = choose_backend(options.shares)
    try:
        # The machine is measured while Ray starts.
        with start_probe(fleet, options, chosen) as probe:
            dashboard = _start_ray(options.dashboard, chosen)
            with console.status("measuring this machine"):
                run = open_run(fleet, options, chosen, probe.result())
        for sentence in run.gave_up:
            console.print(f"Given up: {sentence}", highlight=False, soft_wrap=True)
        with run.open_shares() as shares:
            return run_on_ray(run, shares, console, note=dashboard)
    finally:
        ray.shutdown()


def _start_ray(dashboard: bool, chosen: ChosenBackend) -> str:
    """Starts Ray here with the GPUs for actors, and returns a note with the dashboard's address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    context = ray.init(
        # A separate instance, not one that is already running on this machine.
        address="local",
        num_gpus=chosen.gpus,
        # Ray starts an idle process for each CPU, and actors request none.
        num_cpus=1,
        include_dashboard=dashboard,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=object_store_bytes(),
        configure_logging=True,
    )
    url = str(context.dashboard_url or "")
    return f"dashboard: http://{url}" if url else ""
