"""`ekya run --clock virtual`: the whole system on virtual time without Ray; two runs give the same bytes."""

import logging
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import write_fleet
from ekya.config.run_options import RunOptions
from ekya.control.loop import Observer, run_loop
from ekya.control.options import CHECKPOINT_DELAY_US, LoopOptions, StreamHome
from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.host import TYPICAL_OBJECTS
from ekya.core.plan import Plan
from ekya.core.units import BASE_VERSION, StreamId
from ekya.core.view import WindowView
from ekya.models.edge.checkpoints import to_bytes
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.multi_model import Predictors
from ekya.models.golden.golden_model import open_golden
from ekya.models.training.exemplars import MOST_EXEMPLARS, ExemplarMemory
from ekya.pipeline.base_model import base_model
from ekya.pipeline.costs import CostCard, gpus_of, load_card
from ekya.pipeline.discover_classes import fleet_classes, with_classes
from ekya.pipeline.first_look import warn_before_run
from ekya.pipeline.golden_inference import GoldenInference
from ekya.pipeline.inference import FrameSteps, serving
from ekya.pipeline.run_writer import FrameRecord, ModelRecord
from ekya.pipeline.setup import (
    crop_side,
    drift_monitor,
    first_inference_options,
    loop_options,
    misfortunes,
    proposer_for,
    script_cues,
    stream_setup,
)
from ekya.planning.placement.homes import assign_home_gpus
from ekya.planning.schedulers.registry import make_scheduler, scheduler_word
from ekya.planning.schedulers.scheduler import Scheduler
from ekya.results.finalize import finish_run
from ekya.results.metrics.summary import SummaryHost
from ekya.results.progress import ProgressObserver, ScriptLogger
from ekya.results.report.screen import open_screen
from ekya.results.storage.journal import FileJournal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore, StreamRow
from ekya.simulation.emulated.camera import EmulatedCamera
from ekya.simulation.emulated.machines import Core, FirstRunGpu, GpuServers, Machine
from ekya.simulation.emulated.stream import EmulatedStream
from ekya.simulation.emulated.world import EmulatedWorld
from ekya.simulation.executor import VirtualExecutor
from ekya.streams.ingest.camera import ASSUMED_FPS
from ekya.streams.ingest.process import SourceDiedError, SourceProcess

_LOG = logging.getLogger(__name__)


def run_emulated(fleet: FleetConfig, options: RunOptions, console: Console) -> Path:
    """Runs a fleet on virtual time, shown on the console, and returns its run folder.

    Ctrl-C ends the run early; what has happened until then is measured and written as usual.
    """
    fleet, card = with_classes(fleet), load_card(options.card)
    warn_before_run(fleet)
    folder = RunFolder.create_numbered(options.runs, options.name or fleet.name)
    with open_screen(console) as show:
        watcher = ProgressObserver(show, emulated_options(fleet, card.of(fleet.edge.model), options.seed))
        if card.gpu is not None:
            measured, assumed = card.gpu.count_found()
            _LOG.info("card: %s; %d of its figures measured, %d assumed", card.device, measured, assumed)
        log_script = ScriptLogger(script_cues(fleet))

        def observe(batch: Batch, step: StepResult) -> None:
            log_script(batch, step)
            watcher(batch, step)

        with suppress(KeyboardInterrupt):
            emulate(folder, fleet, options.scheduler, options.seed, observe, card)
    return folder.path


class Belief(Enum):
    """What the planner believes of a GPU's card."""

    CARD = auto()
    """What the card says, with one inference server a GPU."""

    FIRST = auto()
    """What the first run did: wall times, speed in proportion to the share, and a process for each camera."""


def emulated_options(fleet: FleetConfig, card: CostCard, seed: int) -> LoopOptions:
    """Returns the loop's constants: shares in thousandths, and the GPUs of the fleet file.

    Args:
        fleet: to run.
        card: as the planner believes it.
        seed: of all random draws.
    """
    families = card.family_costs(fleet.retrain_configs(), crop_side(fleet))
    options = loop_options(fleet, families, seed, share_step_milli=1, capacity_milli=fleet.capacity_milli)
    if card.gpu is None:
        return options
    gpus = gpus_of(fleet)
    homes = tuple(StreamHome(stream, gpu) for stream, gpu in _homes(fleet).items()) if gpus > 1 else ()
    return replace(options, homes=homes, training_speed=card.gpu.curve_among_others(gpus))


def _homes(fleet: FleetConfig) -> dict[StreamId, int]:
    homes = assign_home_gpus(len(fleet.streams), fleet.capacity_milli)
    return {stream.id: gpu for stream, gpu in zip(fleet.streams, homes, strict=True)}


def _true_and_believed(card: CostCard, belief: Belief) -> tuple[CostCard, CostCard]:
    """Returns what work costs, and what the planner believes; in the first run a CPU labelled."""
    if belief is Belief.CARD:
        return card, card
    believed = card.as_first_believed()
    return replace(card, golden_ops_per_s=believed.golden_ops_per_s), believed


def _machine(fleet: FleetConfig, card: CostCard, belief: Belief, fps: float) -> Machine:
    if card.gpu is None:
        return Core()
    if belief is Belief.FIRST and card.gpu.first is not None:
        return FirstRunGpu(card.gpu.first)
    return GpuServers(card.gpu, _homes(fleet), fps)


def emulate(
    folder: RunFolder,
    fleet: FleetConfig,
    scheduler: str | Scheduler,
    seed: int,
    observe: Observer,
    card: CostCard | None = None,
    belief: Belief = Belief.CARD,
) -> dict[str, Any]:
    """Makes one run of the emulated world in a new folder, with ``card`` or the shipped cost card.

    Raises:
        KeyboardInterrupt: after Ctrl-C; what happened until then is measured and written.
    """
    stopped = False
    with open_emulated(folder, fleet, scheduler, seed, card, belief) as run:
        try:
            run_loop(run.executor, run.journal, run.plan, run.scheduler.needs, run.options, observe)
        except KeyboardInterrupt:
            stopped = True
            _LOG.warning("stopped at %.1f s of virtual time", run.executor.now_us / 1e6)
    summary = run.finish()
    if stopped:
        raise KeyboardInterrupt
    return summary


@contextmanager
def open_emulated(
    folder: RunFolder,
    fleet: FleetConfig,
    scheduler: str | Scheduler,
    seed: int,
    card: CostCard | None = None,
    belief: Belief = Belief.CARD,
) -> Iterator["EmulatedRun"]:
    """Yields a run that the caller drives; when the block ends, the records of its streams are written."""
    # Sums depend on the number of threads, and two runs have to give the same bytes.
    torch.set_num_threads(1)
    # As `use_deterministic_algorithms` does it, which also loads torch's compiler.
    torch.set_deterministic_debug_mode("error")
    write_fleet(folder.fleet, fleet)
    true, believed = _true_and_believed((card or load_card()).of(fleet.edge.model), belief)
    chosen = make_scheduler(scheduler)
    constants = emulated_options(fleet, believed, seed)
    classes = fleet_classes(fleet)
    with ExitStack() as stack:
        store = stack.enter_context(StateStore(folder.state))
        journal = FileJournal(folder.journal, scheduler_word(scheduler), constants)
        stack.callback(journal.close)
        base = base_model(fleet, seed)
        base_bytes, predictors = to_bytes(base, half=True), Predictors()
        sources = {
            stream.id: stack.enter_context(SourceProcess(stream.played, classes, areas=stream.areas))
            for stream in fleet.streams
        }
        cameras: dict[StreamId, EmulatedCamera] = {}
        all_fps = sum(_fps_of(source) for source in sources.values())
        operations = []
        analyses = GoldenInference(fleet)
        for place, (stream, source) in enumerate(sources.items()):
            models = ModelRecord(folder, store, stream)
            models.add_model(BASE_VERSION, base_bytes, -1, None, None, 0)
            frames = FrameRecord(folder, stream)
            cameras[stream], counted = _camera(
                fleet, place, source, seed, true, believed, base, predictors, frames, models, analyses
            )
            operations.append(counted)
        if all(source.died for source in sources.values()):
            next(iter(sources.values())).wait_open()  # raises the error of the source
        golden = open_golden(fleet.golden, classes, fleet.edge.task)
        world = EmulatedWorld(
            cameras,
            golden,
            true,
            max(operations),
            fleet.capacity_milli,
            fleet.drift.notice,
            _machine(fleet, true, belief, all_fps),
            believed,
        )
        executor = VirtualExecutor(world, CHECKPOINT_DELAY_US)
        run = EmulatedRun(folder, fleet, executor, journal, chosen, constants, true.planning_us)
        yield run
        world.finish(executor.now_us)
        if true.gpu is not None:
            run.late_gpu = sum(camera.inference.late_gpu for camera in cameras.values())
        finest = InferenceConfig(1, max(fleet.inference.resolutions))
        for stream, camera in cameras.items():
            source = sources[stream]
            if source.died:
                _LOG.warning("%s: its source died (%s)", stream, source.died)
            store.put_stream(StreamRow(stream, camera.inference.arrived, source.damaged, source.died))
            camera.frames.add_shadow(camera.inference.base_answers(finest))


@dataclass(slots=True, eq=False)
class EmulatedRun:
    """A run of the emulated world, before its first step.

    Attributes:
        folder, fleet: of the run.
        executor, journal, scheduler, options: for its loop.
        planning_us: charge for a plan.
        late_gpu: frames that a GPU's server had no time for; None on a core.
    """

    folder: RunFolder
    fleet: FleetConfig
    executor: VirtualExecutor[EdgeModel]
    journal: FileJournal
    scheduler: Scheduler
    options: LoopOptions
    planning_us: int
    late_gpu: int | None = None
    _took_ms: list[float] = field(default_factory=list)
    _began_s: float = field(default_factory=time.monotonic)

    def plan(self, view: WindowView) -> Plan:
        """Returns the scheduler's plan and charges it to virtual time; its wall time is only reported."""
        began_s = time.perf_counter()
        plan = self.scheduler.plan(view)
        self._took_ms.append((time.perf_counter() - began_s) * 1000)
        self.executor.charge(self.planning_us)
        return plan

    def finish(self) -> dict[str, Any]:
        """Scores the run and returns its summary, after the block of ``open_emulated``."""
        took_s = time.monotonic() - self._began_s
        others = {"wall_s": round(took_s, 3), "machine": platform.machine()}
        host = SummaryHost(planning_ms=tuple(self._took_ms), late_gpu=self.late_gpu, others=others)
        return finish_run(
            self.folder, self.fleet, "emulated", self.options.seed, host, scheduler=self.scheduler
        )


def _camera(
    fleet: FleetConfig,
    place: int,
    source: SourceProcess,
    seed: int,
    true: CostCard,
    believed: CostCard,
    base: EdgeModel,
    predictors: Predictors,
    frames: FrameRecord,
    models: ModelRecord,
    golden: GoldenInference,
) -> tuple[EmulatedCamera, int]:
    """Returns a camera, and the counted operations of proposing the objects of its first frame."""
    stream = fleet.streams[place]
    setup = stream_setup(fleet, place, _fps_of(source), seed)
    proposer = proposer_for(fleet, stream)
    arriving = source.frames()
    first = next(arriving, None)
    operations = 0 if first is None else proposer.operations(first[0].image.shape)
    settings = setup.settings
    steps = FrameSteps(proposer, setup.collector(), settings.task, golden, drift_monitor(fleet))
    prepare = partial(serving, classes=settings.classes, predictors=predictors)
    costs = {
        resolution: believed.planned_frame_gpu_s(TYPICAL_OBJECTS, resolution, operations)
        for resolution in fleet.inference.resolutions
    }
    following_gpu_s: dict[int, float] = {}
    if fleet.inference.golden_every:
        costs[GOLDEN_RESOLUTION] = believed.proposing_gpu_s(golden.operations())
        following_gpu_s[GOLDEN_RESOLUTION] = believed.following_gpu_s(TYPICAL_OBJECTS)
    camera = EmulatedCamera(
        settings=settings,
        inference=EmulatedStream(
            chain([first] if first else [], arriving),
            steps,
            true,
            base,
            prepare,
            costs.get(GOLDEN_RESOLUTION, 0.0),
        ),
        frames=frames,
        models=models,
        model=base,
        options=first_inference_options(
            fleet,
            stream.id,
            settings.fps,
            costs,
            following_gpu_s=following_gpu_s,
        ),
        version=BASE_VERSION,
        memory=ExemplarMemory(MOST_EXEMPLARS[fleet.edge.task]),
        joins_us=stream.play.joins_us,
        misfortunes=misfortunes(stream),
    )
    return camera, operations


def _fps_of(source: SourceProcess) -> float:
    """Returns frames per second; a default for a source that died while it was opened."""
    try:
        return source.wait_open()
    except SourceDiedError:
        return ASSUMED_FPS
