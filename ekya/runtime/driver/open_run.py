"""Opens a run: sizes the fleet for this machine, makes or reads the run folder, sets the loop's constants."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import write_fleet
from ekya.config.run_options import RunOptions
from ekya.config.sizing import fit_fleet
from ekya.control.options import LoopOptions, StreamHome
from ekya.core.errors import UserError
from ekya.core.units import FULL_GPU_MILLI, US_PER_S, StreamId
from ekya.gpu.backends.backend import ShareBackend
from ekya.gpu.backends.registry import ChosenBackend
from ekya.gpu.mps.backend import TRAINER_CAP_MILLI
from ekya.gpu.nvml import list_gpus
from ekya.pipeline.gpu_facts import speed_by_card, trainers_per_gpu
from ekya.pipeline.host_probe import CostProbe, ProbedHost
from ekya.pipeline.kept_measurements import inference_speed, kept_speeds, training_speed
from ekya.pipeline.setup import loop_options
from ekya.planning.placement.homes import (
    Processes,
    ProcessRoom,
    assign_home_gpus,
    choose_processes,
    guests_gpu,
    most_processes,
    pools_of_nodes,
)
from ekya.planning.sizing.fleet_sizes import MachineSize
from ekya.planning.sizing.gpu_memory import CONTEXT_BYTES
from ekya.results.storage.hour_tables import newest_rows
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.driver.cluster import ClusterNode
from ekya.runtime.driver.resuming import Resumed, resume_run, resume_service
from ekya.system.host import read_host_memory

_LOG = logging.getLogger(__name__)

_NEVER_US = 1 << 62
"""Run time that no run reaches: a service goes on without cameras, since some may be added."""

_READMIT_AFTER_US = 600 * US_PER_S
"""A service tries a stream that was set aside again: its cause may have passed, and no operator may look."""

_PROCESS_BYTES = 3 << 30
"""Host memory of a process that has loaded torch and CUDA, with a margin."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Grouping of a run's streams into processes.

    Attributes:
        processes: which streams share one.
        trainers: number of retraining processes that the streams of a GPU share.
        why: what was chosen and the reason, in one line.
    """

    processes: Processes
    trainers: int
    why: str

    @property
    def trainer_milli(self) -> int:
        """The part of a GPU to which each of several trainers is limited; all of it for a single one."""
        return TRAINER_CAP_MILLI // self.trainers if self.trainers > 1 else FULL_GPU_MILLI


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
        continue_us: run time at which it begins or continues.
        grouping: of its streams into processes.
        nodes: of a cluster, that of each GPU or core; empty without one.
    """

    folder: RunFolder
    fleet: FleetConfig
    options: RunOptions
    constants: LoopOptions
    chosen: ChosenBackend
    resumed: Resumed | None
    host: ProbedHost
    gave_up: tuple[str, ...] = ()
    continue_us: int = 0
    grouping: Grouping = Grouping(Processes.GPU, 1, "")
    nodes: tuple[ClusterNode, ...] = ()

    @property
    def gpus(self) -> int:
        """Number of GPUs that it uses at least in part; CPU cores replace them where there are none."""
        return max(1, -(-self.constants.capacity_milli // FULL_GPU_MILLI))

    @property
    def on_gpus(self) -> bool:
        """True if it computes on GPUs."""
        return self.chosen.on_gpus

    @property
    def machine(self) -> MachineSize:
        """What it can use at most."""
        return machine_of(self.chosen)

    @property
    def homes(self) -> tuple[int, ...]:
        """The GPU of every stream."""
        return assign_home_gpus(len(self.fleet.streams), self.constants.capacity_milli)

    @property
    def guests_gpu(self) -> int:
        """The GPU for other servers' jobs; its loop lends spare capacity of this GPU."""
        return guests_gpu(self.constants.capacity_milli)

    def summarize_nodes(self, homes: Mapping[StreamId, int]) -> list[dict[str, object]]:
        """Returns for each node of a cluster what is reserved there, and its streams.

        Args:
            homes: the GPU or core of each stream.
        """
        unit, its = "gpus" if self.on_gpus else "cores", {node: list[str]() for node in self.nodes}
        for stream, place in sorted(homes.items()):
            its[self.nodes[place]].append(stream)
        return [
            {"node": node.address, unit: self.nodes.count(node), "streams": streams}
            for node, streams in its.items()
        ]

    def open_shares(self) -> AbstractContextManager[ShareBackend]:
        """Opens the share backend around every process that holds a share, for the run and its guests.

        Raises:
            UserError: it could not be started.
        """
        return self.chosen.backend.open(self.gpus)


def continue_us(folder: RunFolder, fleet: FleetConfig, resumed: Resumed | None, *, endless: bool) -> int:
    """Returns the run time at which a run begins or continues.

    A run that ends is repeated from the begin of its last window, with frames that were answered in it. A
    service goes on where it was: frames of a camera come once, and their times must not go back.
    """
    if not endless:
        return 0 if resumed is None else resumed.from_us
    reached_us = 0 if resumed is None else resumed.reached_us
    return max(reached_us, _newest_us(folder, fleet))


def _newest_us(folder: RunFolder, fleet: FleetConfig) -> int:
    """Returns the run time after the newest frames that are on disk of a service; 0 without any."""
    newest = (next(newest_rows(folder.hours(stream.id)), None) for stream in fleet.streams)
    return max((int(rows.t_us[-1]) + 1 for rows in newest if rows is not None and len(rows.t_us)), default=0)


def machine_of(chosen: ChosenBackend) -> MachineSize:
    """Returns what a run can use with a backend."""
    return MachineSize(chosen.capability.capacity_milli, on_cores=not chosen.on_gpus)


def start_probe(fleet: FleetConfig, options: RunOptions, chosen: ChosenBackend) -> CostProbe:
    """Begins to measure this machine, where the run will be, in the background."""
    return CostProbe(fleet, chosen.capability.device, chosen.cores, options.seed)


def open_run(
    fleet: FleetConfig,
    options: RunOptions,
    chosen: ChosenBackend,
    host: ProbedHost,
    nodes: tuple[ClusterNode, ...] = (),
) -> OpenRun:
    """Makes the folder of a run, or opens that of ``options.resume`` and reads where to resume.

    Must be called on the machine of the run, whose hardware limits what the run can use.

    Args:
        fleet: as the user gave it; of a resumed run, as it began.
        options: of the run.
        chosen: share backend.
        host: measured costs on the machine.
        nodes: of a cluster, that of each GPU or core.

    Raises:
        UserError: the fleet does not fit this machine, or a part of the set-up fails.
    """
    resumed: Resumed | None = None
    gave_up: tuple[str, ...] = ()
    if options.resume is None:
        fleet, gave_up = fit_fleet(fleet, host.costs, machine_of(chosen), overload=options.overload)
        _require_processes(fleet, chosen)
        # All processes of the run read the golden detector's answers alike, also after a resume.
        golden = fleet.golden.model_copy(update={"layout": host.golden_layout or fleet.golden.layout})
        fleet = fleet.model_copy(update={"classes": host.classes, "golden": golden})
        make = RunFolder.create_or_reuse if options.in_place else RunFolder.create_numbered
        folder = make(options.runs, options.name or fleet.name)
        write_fleet(folder.fleet, fleet)
    else:
        _require_processes(fleet, chosen)
        folder = RunFolder.open(options.resume)
        streams = tuple(stream.id for stream in fleet.streams)
        resumed = (resume_service if options.endless else resume_run)(folder, streams)
    if resumed is not None:
        # That of a service may have been changed since, as its file says.
        scheduler = options.scheduler if options.endless else resumed.scheduler
        options = replace(options, scheduler=scheduler, seed=resumed.options.seed)
        _LOG.info("continues at %.1f s, with %s", resumed.from_us / 1e6, scheduler)
        _LOG.info("its first window has no labels: frames that were kept for them went with the process")
    for warning in (*host.teacher_warnings, *host.odd):
        _LOG.warning("%s", warning)
    _LOG.info("forward passes: %s", host.self_test.way)
    _LOG.info("shares: %s", chosen.why)
    substreams = [stream.id for stream in fleet.streams if stream.analysed_url == "url_detect"]
    if substreams:
        _LOG.info("analysed is the substream, url_detect, of %s", ", ".join(substreams))
    constants = _constants(fleet, options, chosen, resumed, host, nodes)
    grouping = group_streams(fleet, constants.capacity_milli, chosen)
    _LOG.info("processes: %s", grouping.why)
    # Of a resumed run as it began: its journal is replayed with that.
    trainer_milli = grouping.trainer_milli if resumed is None else resumed.options.trainer_milli
    constants = replace(constants, trainer_milli=trainer_milli)
    from_us = continue_us(folder, fleet, resumed, endless=options.endless)
    return OpenRun(
        folder, fleet, options, constants, chosen, resumed, host, gave_up, from_us, grouping, nodes
    )


def group_streams(fleet: FleetConfig, capacity_milli: int, chosen: ChosenBackend) -> Grouping:
    """Returns how streams share processes: as the fleet says, or as this machine allows.

    Args:
        fleet: with its key ``processes``.
        capacity_milli: of all GPUs of the run.
        chosen: share backend.
    """
    clients, cores = chosen.capability.most_processes, chosen.cores
    streams_by_gpu = tuple(Counter(assign_home_gpus(len(fleet.streams), capacity_milli)).values())
    processes, why = fleet.processes, "the fleet file says so"
    if processes is Processes.AUTO and not chosen.on_gpus:
        processes, why = Processes.GPU, "cores stand for GPUs"
    elif processes is Processes.AUTO:
        gpus = list_gpus().gpus[: len(streams_by_gpu)]
        gpu_bytes = min((gpu.memory_free_bytes for gpu in gpus if gpu.memory_free_bytes), default=None)
        room = ProcessRoom(
            clients, cores, read_host_memory().free_bytes, gpu_bytes, _PROCESS_BYTES, CONTEXT_BYTES
        )
        processes, why = choose_processes(streams_by_gpu, room)
    if processes is Processes.STREAM:
        return Grouping(processes, 1, f"two a camera: {why}")
    trainers, place = 1, "GPU" if chosen.on_gpus else "core"
    if clients is not None:
        # More than streams would never work.
        trainers = min(trainers_per_gpu(cores, len(streams_by_gpu)), max(streams_by_gpu, default=1))
    return Grouping(
        processes, trainers, f"1 for inference and {trainers} for retraining on each {place}: {why}"
    )


def _require_processes(fleet: FleetConfig, chosen: ChosenBackend) -> None:
    """Refuses a fleet that has a process for each stream, and more of these than a GPU takes."""
    limit = chosen.capability.most_processes
    if limit is None or fleet.processes is not Processes.STREAM:
        return
    capacity_milli = min(fleet.capacity_milli, chosen.capability.capacity_milli)
    count = most_processes(fleet.processes, assign_home_gpus(len(fleet.streams), capacity_milli))
    if count > limit:
        raise UserError(
            f"key 'processes': {len(fleet.streams)} streams need {count} processes on one GPU, which takes "
            f"{limit} under MPS; set 'processes: gpu', whose streams share them, or give more 'gpus'"
        )


def _constants(
    fleet: FleetConfig,
    options: RunOptions,
    chosen: ChosenBackend,
    resumed: Resumed | None,
    host: ProbedHost,
    nodes: Sequence[ClusterNode],
) -> LoopOptions:
    # Of a resumed run what was measured as it began: its journal is replayed with that.
    constants = loop_options(
        fleet,
        host.costs.families if resumed is None else resumed.options.family_costs,
        options.seed,
        chosen.capability.step_milli,
        chosen.capability.capacity_milli,
    )
    if resumed is not None:
        trains, infers = resumed.options.training_speed, resumed.options.inference_speed
    else:
        speeds = kept_speeds(chosen, fleet.edge.model)
        trains, infers = training_speed(speeds), inference_speed(speeds)
        if speeds is None and chosen.on_gpus:
            there, gpus = list_gpus().gpus, -(-constants.capacity_milli // FULL_GPU_MILLI)
            name, trains = speed_by_card(there[0].name if there else "", chosen.cores, gpus)
            _LOG.info("speed at a share: as the card %s has it until then", name)
    if options.endless:
        constants = replace(
            constants, windows=None, last_join_us=_NEVER_US, readmit_after_us=_READMIT_AFTER_US
        )
    at_home: tuple[StreamHome, ...] = ()
    ids = () if chosen.on_gpus else tuple(node.id for node in nodes)
    pools_milli = pools_of_nodes(constants.capacity_milli, ids)
    if pools_milli or (chosen.on_gpus and constants.capacity_milli > FULL_GPU_MILLI):
        homes = assign_home_gpus(len(fleet.streams), constants.capacity_milli)
        at_home = tuple(StreamHome(stream.id, gpu) for stream, gpu in zip(fleet.streams, homes, strict=True))
    return replace(
        constants, homes=at_home, pools_milli=pools_milli, training_speed=trains, inference_speed=infers
    )
