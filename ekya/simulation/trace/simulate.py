"""`ekya simulate`: runs schedulers on a trace through the common control loop, without training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from ekya.control.loop import run_loop
from ekya.control.options import CHECKPOINT_DELAY_US, PLANNING_US, LoopOptions
from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core.commands import Command, StepRecord
from ekya.core.plan import Plan
from ekya.core.profile import Family, FamilyCost, Profiler, family_of
from ekya.core.trace import Trace
from ekya.core.units import FULL_GPU_MILLI, StreamId, us_to_seconds
from ekya.core.view import WindowView
from ekya.planning.placement.pack import Packing
from ekya.planning.schedulers.registry import preset_of
from ekya.planning.schedulers.scheduler import Scheduler
from ekya.results.metrics.run_history import summarize_steps
from ekya.results.metrics.summary import window_values
from ekya.results.metrics.window_outcomes import list_outcomes
from ekya.simulation.executor import VirtualExecutor
from ekya.simulation.trace.estimates import Estimates
from ekya.simulation.trace.world import TraceWorld


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions under which a trace is simulated.

    Attributes:
        gpus: number of GPUs.
        window_us: length of a window; None takes the trace's.
        windows: number of windows; None takes all.
        quantum_milli, steal_milli, min_accuracy: δ, Δ and a_MIN.
        preparation_fraction: longest part of the window for labelling and profiling.
        preparation_share_milli: their largest share; at most half of the GPUs.
        checkpoint_delay_us, planning_us: charges for a checkpoint and a plan; None: no checkpoint serves.
        placement: how shares are packed on GPUs.
        profiler: how γ are tried, and estimates made of the trials; those that a trace has of no method or
            only of the other one stand for it.
        error_sd, relative_error: of estimates; see ``Estimates``.
        seed: of all errors, and of schedulers that draw.
    """

    gpus: float
    window_us: int | None = None
    windows: int | None = None
    quantum_milli: int = 50
    steal_milli: int = 100
    min_accuracy: float = 0.4
    preparation_fraction: float = 0.15
    preparation_share_milli: int = FULL_GPU_MILLI
    checkpoint_delay_us: int | None = CHECKPOINT_DELAY_US
    planning_us: int = PLANNING_US
    placement: Packing = Packing.POOL
    profiler: Profiler = Profiler.EKYA
    error_sd: float | None = None
    relative_error: float = 0.0
    seed: int = 0

    @property
    def _has_errors(self) -> bool:
        """True if estimates are to be the truth with an error: they come as those of trials do."""
        return self.error_sd is not None or self.relative_error != 0.0

    def with_preset(self, scheduler: str) -> "Conditions":
        """Returns the conditions with the settings of a scheduler's preset; windows are the trace's."""
        preset = preset_of(scheduler)
        if preset is None:
            return self
        return replace(self, profiler=preset.profiler)

    def loop_options(self, trace: Trace) -> LoopOptions:
        """Returns the loop's constants for a trace; γ of families without known costs are left out."""
        quantum = self.quantum_milli
        capacity = round(self.gpus * FULL_GPU_MILLI) // quantum * quantum
        window_us = trace.window_us if self.window_us is None else self.window_us
        costs = family_costs(trace)
        known = {cost.family for cost in costs}
        return LoopOptions(
            window_us=window_us,
            windows=trace.windows if self.windows is None else min(self.windows, trace.windows),
            capacity_milli=capacity,
            quantum_milli=quantum,
            steal_milli=self.steal_milli,
            min_accuracy=self.min_accuracy,
            preparation_share_milli=min(self.preparation_share_milli, capacity // 2 // quantum * quantum),
            preparation_us=int(window_us * self.preparation_fraction),
            checkpoint_delay_us=self.checkpoint_delay_us,
            retrain_configs=tuple(one for one in trace.retrain_configs if family_of(one) in known),
            inference_configs=trace.inference_configs,
            family_costs=costs,
            share_step_milli=quantum,
            packing=self.placement,
            profiler=Profiler.PAPER if self._has_errors else self.profiler,
            training_speed=trace.training_speed,
            inference_speed=trace.inference_speed,
            seed=self.seed,
        )


def family_costs(trace: Trace) -> tuple[FamilyCost, ...]:
    """Returns costs per crop, as given by the trace or else averaged over its records; sorted by family."""
    if trace.family_costs:
        return trace.family_costs
    seen: dict[Family, list[tuple[float, float]]] = {}
    for stream in trace.streams:
        for window in stream.windows:
            for training in window.trainings:
                crops = max(1.0, training.data_fraction * window.training_crops)
                first, last, count = training.epochs[0], training.epochs[-1], len(training.epochs)
                epoch_gpu_s = (last.gpu_s - first.gpu_s) / (count - 1) if count > 1 else first.gpu_s
                prepare_gpu_s = max(first.gpu_s - epoch_gpu_s, 0.0)
                seen.setdefault(training.family, []).append((prepare_gpu_s / crops, epoch_gpu_s / crops))
            for trial in window.trials:
                for said in trial.predicted:
                    crops = max(1.0, said.config.data_fraction * window.training_crops)
                    per_epoch = said.gpu_s / (said.config.epochs * crops)
                    seen.setdefault(trial.family, []).append((0.0, per_epoch))
    return tuple(
        FamilyCost(family, fmean(prepare for prepare, _ in costs), fmean(epoch for _, epoch in costs))
        for family, costs in sorted(seen.items())
    )


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """Result of simulating a trace.

    Attributes:
        scheduler, conditions, options: the inputs.
        steps: all steps of the loop, as in a journal.
        accuracy: of each stream, mean instantaneous inference accuracy per window.
    """

    scheduler: str
    conditions: Conditions
    options: LoopOptions
    steps: tuple[StepRecord, ...]
    accuracy: dict[StreamId, tuple[float, ...]]

    @property
    def mean_accuracy(self) -> float:
        """Mean over streams and windows; 0 without streams."""
        means = [fmean(windows) for windows in self.accuracy.values()]
        return fmean(means) if means else 0.0


def simulate(trace: Trace, scheduler: Scheduler, conditions: Conditions) -> Simulated:
    """Simulates a trace under a scheduler, through the common control loop."""
    options = conditions.loop_options(trace)
    estimates = Estimates(
        conditions.error_sd,
        conditions.relative_error,
        scheduler.needs.true_profile,
        conditions.seed,
        conditions.profiler,
    )
    world = TraceWorld(trace, options, estimates, scheduler.needs.kept_models)
    executor = VirtualExecutor(world, options.checkpoint_delay_us or 0)
    steps: list[StepRecord] = []

    def planner(view: WindowView) -> Plan:
        executor.charge(conditions.planning_us)
        return scheduler.plan(view)

    def keep(batch: Batch, step: StepResult) -> None:
        steps.append(StepRecord(batch.now_us, batch.events, step.plan, step.commands))

    run_loop(executor, NoJournal(), planner, scheduler.needs, options, keep)
    accuracy = {
        stream.stream: tuple(
            world.mean_accuracy(stream.stream, window)
            for window in range(min(options.windows or 0, len(stream.windows)))
        )
        for stream in trace.streams
    }
    return Simulated(scheduler.name, conditions, options, tuple(steps), accuracy)


def summary_of(played: Simulated) -> dict[str, Any]:
    """Returns the summary of ``docs/summary.md`` as JSON values. The same run gives the same bytes."""
    history = summarize_steps(played.steps)
    conditions = played.conditions
    entries: dict[StreamId, list[dict[str, Any]]] = {stream: [] for stream in played.accuracy}
    for outcome in list_outcomes(played.steps, history):
        of_stream = played.accuracy[outcome.stream]
        accuracy = of_stream[outcome.index] if outcome.index < len(of_stream) else None
        entries[outcome.stream].append(window_values(outcome, accuracy))
    return {
        "world": "trace",
        "scheduler": played.scheduler,
        "seed": conditions.seed,
        "gpus": conditions.gpus,
        "window_s": us_to_seconds(played.options.window_us),
        "placement": conditions.placement.value,
        "rounding_cost": round(_rounding_cost(played.steps), 6),
        "error_sd": conditions.error_sd,
        "relative_error": conditions.relative_error,
        "mean_accuracy": round(played.mean_accuracy, 6),
        "streams": {
            stream: {"mean_accuracy": round(fmean(windows), 6), "windows": entries[stream]}
            for stream, windows in played.accuracy.items()
        },
        "retrainings": history.retraining_counts(),
        "profiling_gpu_s": round(float(history.profiling_gpu_s), 6),
        "labelling_gpu_s": round(float(history.labelling_gpu_s), 6),
    }


def _rounding_cost(steps: Sequence[StepRecord]) -> float:
    """Returns the mean loss of the plans' objective by rounding shares; 0 without plans."""
    lost = [step.plan.rounding_cost for step in steps if step.plan is not None]
    return fmean(lost) if lost else 0.0


class NoJournal:
    """Journal that discards everything: the trace world keeps its steps in memory and cannot resume."""

    def record_batch(self, batch: Batch) -> None:
        """Does nothing: the observer keeps the events."""

    def record_decision(self, now_us: int, plan: Plan | None, commands: Sequence[Command]) -> None:
        """Does nothing: the observer keeps the decision."""
