"""GPU memory of a fleet's jobs: a check before the start, and an executor that refuses what does not fit.

A refused retraining is reported as failed with its γ, and the loop plans without it. A family of γ that does
not fit is left out of the preparation.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ekya.config.fleet_file import FleetConfig
from ekya.control.protocols import Batch, Executor
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.gpus import DidNotFit, Footprint
from ekya.core.profile import Family, family_of
from ekya.core.units import JobId, StreamId
from ekya.gpu.window_meter import GpuMeter
from ekya.models.edge.architecture_table import Task
from ekya.pipeline.setup import crop_side
from ekya.planning.adaptation.label_pooling import MOST_POOLED
from ekya.planning.placement.homes import JobPlaces, Processes
from ekya.planning.sizing.gpu_memory import (
    CONTEXT_BYTES,
    JobCrops,
    MemoryBook,
    MemoryMarks,
    inference_bytes,
    retraining_bytes,
)

_LOG = logging.getLogger(__name__)
_PREPARATION = "preparation"


@dataclass(frozen=True, slots=True)
class JobSizes:
    """Inputs of the memory estimates.

    Attributes:
        footprint: of a family of γ.
        labels_per_window: upper bound on the crops, or frames, that a micro-profile sees of a window.
        exemplars: upper bound on those that a stream remembers.
        versions: of each labelled image that a training keeps.
    """

    footprint: Callable[[Family], Footprint]
    labels_per_window: int
    exemplars: int
    versions: int = 1

    def estimate_retraining(self, config: RetrainConfig, crops: JobCrops) -> int:
        """Returns the estimated bytes of a retraining."""
        kept = replace(crops, training=self.versions * crops.training)
        return retraining_bytes(self.footprint(family_of(config)), config, kept)

    def estimate_micro_profile(self, family: Family, pooled: bool = False) -> int:
        """Returns the estimated bytes of a micro-profile: at most those of a retraining on all labels.

        With ``pooled`` there are as many others of the same scene among them as may be.
        """
        config = RetrainConfig(1, family.batch_size, family.head_width, family.trainable_blocks, 1.0)
        labels = self.labels_per_window * (1 + MOST_POOLED if pooled else 1)
        return self.estimate_retraining(config, JobCrops(labels, 0))


class BudgetedExecutor:
    """An ``Executor`` in front of another one.

    Args:
        executor: carries commands out.
        memory: of the GPUs.
        places: GPUs on which jobs run.
        sizes: of jobs.
    """

    def __init__(self, executor: Executor, memory: GpuMeter, places: JobPlaces, sizes: JobSizes) -> None:
        self._executor = executor
        self._memory = memory
        self._places = places
        self._sizes = sizes
        self._book = MemoryBook()
        self._marks = MemoryMarks()
        self._crops: dict[StreamId, JobCrops] = {}
        self._begun: dict[JobId, tuple[Family, int]] = {}
        self._newest: dict[StreamId, JobId] = {}
        self._with_context: set[StreamId] = set()
        self._now_us = 0
        self._refusals: list[ev.Event] = []

    def wait(self, until_us: int) -> Batch:
        """Waits as the inner executor does; returns immediately if a job was refused."""
        batch = self._executor.wait(self._now_us if self._refusals else until_us)
        self._now_us = batch.now_us
        for event in batch.events:
            self._follow(event)
        refusals, self._refusals = self._refusals, []
        return Batch(batch.now_us, (*refusals, *batch.events))

    def execute_commands(self, commands: Sequence[cmd.Command]) -> None:
        """Passes commands on, except for jobs that do not fit."""
        for command in commands:
            match command:
                case cmd.StartRetraining() if command.elsewhere is None and not self._fits(command):
                    continue
                case cmd.BeginPreparation():
                    if command.budget is not None:
                        self._sizes = replace(self._sizes, labels_per_window=command.budget.labels)
                    self._executor.execute_commands([self._trials_that_fit(command)])
                    continue
                case cmd.EndPreparation():
                    self._book = self._book.without_claim(_PREPARATION)
                case cmd.StopRetraining():
                    self._book = self._book.without_claim(command.job)
                case cmd.SetAside():
                    self._with_context.discard(command.stream)
                    self._book = self._book.without_claim(self._newest.get(command.stream))
            self._executor.execute_commands([command])

    def _fits(self, command: cmd.StartRetraining) -> bool:
        stream, family = command.stream, family_of(command.config)
        gpu = self._places.streams[stream]
        counted = self._sizes.estimate_retraining(command.config, self._crops.get(stream, JobCrops(0, 0)))
        needed = self._marks.corrected_estimate(family, counted)
        needed += 0 if stream in self._with_context else CONTEXT_BYTES
        free = self._memory.free_bytes(gpu)
        if free is None or self._book.has_room(gpu, needed, free):
            self._book = self._book.with_claim(command.job, gpu, needed)
            self._begun[command.job], self._newest[stream] = (family, counted), command.job
            return True
        what, job = DidNotFit.from_config(command.config), f"retraining ({command.config.name})"
        reason = self._refuse(stream, command.window, what, job, gpu, needed, free)
        self._refusals.append(ev.RetrainFailed(self._now_us, stream, command.job, reason))
        return False

    def _trials_that_fit(self, command: cmd.BeginPreparation) -> cmd.BeginPreparation:
        """Removes trials that do not fit, and claims memory for the largest: they run one by one."""
        gpu = self._places.preparation
        free = self._memory.free_bytes(gpu)
        if free is None:
            return command
        families = sorted({family for asked in command.streams for family in asked.families})
        pooled = any(asked.scenes for asked in command.streams)
        needed = {family: self._trial_bytes(family, pooled) for family in families}
        fitting = {family for family in families if self._book.has_room(gpu, needed[family], free)}
        for asked in command.streams:
            for family in asked.families:
                if family not in fitting:
                    what = DidNotFit(family, 0.0)
                    self._refuse(
                        asked.stream, command.window, what, "a micro-profile", gpu, needed[family], free
                    )
        claimed = [needed[family] for family in fitting]
        streams = []
        for asked in command.streams:
            left = replace(asked, families=tuple(family for family in asked.families if family in fitting))
            streams.append(left)
        self._book = self._book.with_claim(_PREPARATION, gpu, max(claimed, default=0))
        return replace(command, streams=tuple(streams))

    def _trial_bytes(self, family: Family, pooled: bool) -> int:
        return self._marks.corrected_estimate(family, self._sizes.estimate_micro_profile(family, pooled))

    def _refuse(
        self, stream: StreamId, window: int, what: DidNotFit, job: str, gpu: int, needed: int, free: int
    ) -> str:
        """Reports a job that does not fit; returns the reason."""
        reason = self._short_of(job, gpu, needed, free)
        _LOG.warning("%s: %s", stream, reason)
        self._refusals.append(ev.MemoryShort(self._now_us, stream, window, what, reason, needed, free))
        return reason

    def _short_of(self, job: str, gpu: int, needed: int, free: int) -> str:
        promised = self._book.promised_bytes(gpu)
        others = f", {in_mib(promised)} of them promised to jobs that have just begun" if promised else ""
        return f"{job} needs about {in_mib(needed)}, and {in_mib(free)} of GPU {gpu} are free{others}"

    def _follow(self, event: ev.Event) -> None:
        match event:
            case ev.StreamAdded() if event.gpu is not None:
                homes = {**self._places.streams, event.stream: event.gpu}
                self._places = replace(self._places, streams=homes)
            case ev.LabelsReady():
                remembered = self._sizes.exemplars if event.stream in self._with_context else 0
                learnt = event.training_crops + (0 if event.pooled is None else event.pooled.labels)
                self._crops[event.stream] = JobCrops(learnt, event.validation_crops, remembered)
            case ev.PreparationEnded():
                self._book = self._book.without_claim(_PREPARATION)
            case ev.RetrainProgress():
                # After its first epoch the driver's figures include all memory that it will ever hold.
                self._with_context.add(event.stream)
                self._book = self._book.without_claim(event.job)
            case ev.RetrainFinished() | ev.RetrainFailed():
                self._book = self._book.without_claim(event.job)
            case ev.MemoryMeasured() if event.job in self._begun:
                family, counted = self._begun.pop(event.job)
                self._marks = self._marks.with_mark(family, counted, event.peak_bytes)
            case ev.WorkerDied(role=ev.Role.RETRAINING):
                self._with_context.discard(event.stream)
                self._book = self._book.without_claim(self._newest.get(event.stream))


class MeteredExecutor:
    """An ``Executor`` in front of another one.

    Args:
        executor: carries commands out.
        meter: of the GPUs.
        window_us: length of a window; windows follow each other from run time 0.
        from_us: run time at which this process began to measure; a resumed run begins in a later window.
    """

    def __init__(self, executor: Executor, meter: GpuMeter, window_us: int, from_us: int = 0) -> None:
        self._executor = executor
        self._meter = meter
        self._window_us = window_us
        self._window = from_us // window_us

    def wait(self, until_us: int) -> Batch:
        """Waits as the inner executor does; adds a window's GPU use to the first batch after the window.

        The loop closes the window in the same step, so the journal has both in one line.
        """
        batch = self._executor.wait(until_us)
        end_us = (self._window + 1) * self._window_us
        if batch.now_us < end_us:
            return batch
        closed, self._window = self._window, batch.now_us // self._window_us
        used = self._meter.drain_uses()
        if not used:
            return batch
        return Batch(batch.now_us, (*batch.events, ev.GpuMeasured(end_us, closed, used)))

    def execute_commands(self, commands: Sequence[cmd.Command]) -> None:
        self._executor.execute_commands(commands)


def in_mib(size_bytes: int) -> str:
    """Formats bytes as MiB."""
    return f"{size_bytes / (1 << 20):,.0f} MiB"


_ANY_FAMILY = Family(0, 0, 16)
"""Placeholder for inference, which trains nothing."""


def job_sizes(fleet: FleetConfig) -> JobSizes:
    """Returns the estimates for the fleet's edge model, crops and labels."""
    from ekya.models.edge.footprint import footprint_of
    from ekya.models.training.augmentation import VERSIONS
    from ekya.models.training.exemplars import MOST_EXEMPLARS

    task, golden = fleet.edge.task, fleet.golden
    return JobSizes(
        partial(footprint_of, side=crop_side(fleet), architecture=fleet.edge.model),
        golden.frames_per_window if task is Task.DETECT else golden.labels_per_window,
        MOST_EXEMPLARS[task],
        VERSIONS[task],
    )


def require_inference(fleet: FleetConfig, processes: Processes, places: JobPlaces, memory: GpuMeter) -> None:
    """Checks that the inference processes, with a model for each stream, and the micro-profiler fit.

    Raises:
        UserError: they do not.
    """
    from ekya.models.edge.footprint import footprint_of

    footprint = footprint_of(_ANY_FAMILY, crop_side(fleet), fleet.edge.model)
    each_by_itself = processes is Processes.STREAM
    for gpu in sorted({*places.streams.values(), places.preparation}):
        streams = sum(place == gpu for place in places.streams.values())
        # The micro-profiler holds a model of every stream.
        profiler = CONTEXT_BYTES + len(places.streams) * footprint.model_bytes
        there = streams if each_by_itself else min(streams, 1)
        needed = there * CONTEXT_BYTES + streams * inference_bytes(footprint)
        needed += profiler if gpu == places.preparation else 0
        free = memory.free_bytes(gpu)
        if free is not None and needed > free:
            raise UserError(
                f"key 'streams': to serve {streams} of them GPU {gpu} needs about {in_mib(needed)}, and "
                f"{in_mib(free)} are free; use fewer streams, more 'gpus' or a smaller 'edge.model', or end "
                "what else uses the GPU."
            )
