"""Simulation of schedulers on a trace: what they would have made of it, without training anything."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from ekya.api.comparison import COMPARED, html_of
from ekya.api.playing import LOGGED
from ekya.api.results import Summary
from ekya.core.errors import UserError
from ekya.core.profile import Profiler
from ekya.core.trace import Trace
from ekya.core.units import FULL_GPU_MILLI, seconds_to_us, us_to_seconds
from ekya.planning.placement.pack import Packing
from ekya.planning.schedulers.registry import make_scheduler, preset_of, scheduler_word
from ekya.planning.schedulers.scheduler import Scheduler
from ekya.results.report.formatting import format_percent, make_table
from ekya.results.storage.trace_file import read_trace
from ekya.simulation.trace import simulate as engine
from ekya.simulation.trace.public_profiles import read_public_profiles
from ekya.simulation.trace.simulate import Conditions

TRACE_FILE = "profiles.parquet"


@dataclass(frozen=True, slots=True)
class Simulation:
    """Result of a simulation.

    Attributes:
        schedulers, gpus: names and numbers, in the given order.
        values: as ``ekya simulate --json`` writes them: ``trace``, ``runs`` and ``mean``.
        notes: what to know of the result, in sentences.
    """

    schedulers: tuple[str, ...]
    gpus: tuple[float, ...]
    values: Mapping[str, Any]
    notes: tuple[str, ...]

    @property
    def runs(self) -> tuple[Summary, ...]:
        """Every run's result."""
        return tuple(map(Summary.from_values, self.values["runs"]))

    @property
    def mean_accuracy(self) -> Mapping[tuple[str, float], float]:
        """Mean over the seeds that were played, by scheduler and number of GPUs."""
        return {(one["scheduler"], one["gpus"]): one["mean_accuracy"] for one in self.values["mean"]}

    def printed_parts(self) -> list[RenderableType]:
        """Returns what is printed of it: a table, and sentences."""
        trace, played = self.values["trace"], len({run["seed"] for run in self.values["runs"]})
        played_text = f"means over {played} seed{'' if played == 1 else 's'}"
        facts = (
            f"{len(trace['streams'])} streams, {trace['windows']} windows, {trace['retrain_configs']} "
            f"retraining configurations; {played_text}"
        )
        return [_table(self.schedulers, self.gpus, self.mean_accuracy), facts, *self.notes]

    def _repr_html_(self) -> str:
        return html_of(self.printed_parts())


def simulate(
    trace: Trace | str | Path,
    schedulers: Sequence[str | Scheduler] = COMPARED,
    gpus: Sequence[float] = (2.0,),
    seeds: Sequence[int] = (0,),
    *,
    window_s: float | None = None,
    windows: int | None = None,
    placement: str = Packing.POOL,
    error_sd: float | None = None,
    relative_error: float = 0.0,
    console: Console = LOGGED,
) -> Simulation:
    """Plays a trace under several schedulers, in seconds.

    After Ctrl-C the result is that of the runs that ended.

    Args:
        trace: of ``generate_trace`` or ``profile``; or its path, see ``open_trace``.
        schedulers: names and objects.
        gpus: numbers of GPUs.
        seeds: one run for each; they draw errors.
        window_s: length of a window; None takes the trace's.
        windows: their number; None takes all.
        placement: how shares stand on GPUs: ``pool``, ``quantised`` or ``best-fit``.
        error_sd, relative_error: of every estimate: standard deviation (None: as in a run), and part by which
            it is off, up or down.
        console: where progress is shown.

    Raises:
        UserError: the trace, or one of the values, is not possible.
    """
    trace = trace if isinstance(trace, Trace) else open_trace(Path(trace))
    names = [scheduler_word(one) for one in schedulers]
    if len(set(names)) < len(names):
        raise UserError("schedulers: two of them have the same name; keep one, or name one anew")
    conditions = Conditions(
        gpus=max(gpus),
        window_us=None if window_s is None else seconds_to_us(window_s),
        windows=windows,
        placement=Packing(placement),
        error_sd=error_sd,
        relative_error=relative_error,
    )
    _require_known(trace, schedulers)
    for count in gpus:
        _require_room(trace, count, conditions.quantum_milli)
    settings = [
        (one, replace(conditions, gpus=count, seed=seed))
        for one, count, seed in product(schedulers, gpus, seeds)
    ]
    runs: list[dict[str, Any]] = []
    try:
        with Progress(console=console, disable=not console.is_terminal, transient=True) as bars:
            for one, setting in bars.track(settings, description="Runs"):
                name = scheduler_word(one)
                run = engine.simulate(trace, make_scheduler(one), setting.with_preset(name))
                runs.append(engine.summary_of(run) | {"scheduler": name})
    except KeyboardInterrupt:
        if not runs:
            raise
    means = [
        {"scheduler": name, "gpus": count, "mean_accuracy": mean}
        for name, count in product(names, gpus)
        if (mean := _mean(runs, name, count)) is not None
    ]
    notes = (_why_labels_late(trace, conditions), _why_without_trials(trace, names))
    values = {"trace": _facts(trace), "runs": runs, "mean": means}
    return Simulation(tuple(names), tuple(gpus), values, tuple(note for note in notes if note is not None))


def open_trace(path: Path) -> Trace:
    """Reads the trace at a path.

    The path is a file recorded by ``ekya profile``, the folder of a run, or public profiles: a JSON file of
    a city, or a folder of them.

    Raises:
        UserError: it is none of these, or damaged.
    """
    if not path.exists():
        raise UserError(f"{path}: there is no such file or folder; name a trace")
    if path.suffix == ".json":
        return read_public_profiles([path])
    if not path.is_dir():
        return read_trace(path)
    if (path / TRACE_FILE).is_file():
        return read_trace(path / TRACE_FILE)
    cities = sorted(path.glob("*.json"))
    if not cities:
        raise UserError(f"{path}: holds no {TRACE_FILE} and no JSON profiles; name a trace")
    return read_public_profiles(cities)


def _require_known(trace: Trace, schedulers: Sequence[str | Scheduler]) -> None:
    """Refuses a scheduler that does not exist, or that needs the classes that the trace does not count."""
    counts = any(window.class_histogram for stream in trace.streams for window in stream.windows)
    for scheduler in [make_scheduler(one, offered=trace.retrain_configs) for one in schedulers]:
        if scheduler.needs.kept_models and not counts:
            raise UserError(
                f"scheduler {scheduler.name}: the trace does not say how many objects of each class "
                "there were; choose another scheduler, or a trace of ekya profile"
            )


def _require_room(trace: Trace, gpus: float, quantum_milli: int) -> None:
    least = quantum_milli * (len(trace.streams) + 1) / FULL_GPU_MILLI
    if gpus < least:
        raise UserError(
            f"gpus {gpus:g}: {len(trace.streams)} streams need at least {least:g}, {quantum_milli} "
            "thousandths each and as much to prepare with; give more, or take fewer streams"
        )


def _facts(trace: Trace) -> dict[str, Any]:
    return {
        "gpu": trace.gpu,
        "window_s": us_to_seconds(trace.window_us),
        "windows": trace.windows,
        "streams": [stream.stream for stream in trace.streams],
        "retrain_configs": len(trace.retrain_configs),
        "inference_configs": len(trace.inference_configs),
    }


def _why_labels_late(trace: Trace, conditions: Conditions) -> str | None:
    """Returns a note if labels are not made in the time for preparation: cameras without do not retrain."""
    options = conditions.loop_options(trace)
    by_window: dict[int, float] = {}
    for stream in trace.streams:
        for window in stream.windows:
            by_window[window.window] = by_window.get(window.window, 0.0) + window.labelling_gpu_s
    speed = trace.training_speed.speed_at(options.preparation_share_milli)
    took_s, has_s = max(by_window.values()) / speed, us_to_seconds(options.preparation_us)
    if took_s <= has_s:
        return None
    return (
        f"Labels of a window take up to {took_s:.3g} s, and its preparation ends after {has_s:.3g} s, so "
        "some or all cameras are not retrained; "
        f"--window {math.ceil(took_s / conditions.preparation_fraction)} leaves time for them"
    )


def _why_without_trials(trace: Trace, schedulers: Sequence[str]) -> str | None:
    """Returns a note if the paper's profiler is asked for and the trace has trials that it cannot use."""
    trials = [trial for stream in trace.streams for one in stream.windows for trial in one.trials]
    own = [trial for trial in trials if trial.profiler is Profiler.PAPER] or trials
    if all(trial.curve is None or trial.curve.accuracies for trial in own):
        return None
    for name in schedulers:
        preset = preset_of(name)
        if preset and preset.profiler is Profiler.PAPER and make_scheduler(name).needs.micro_profile:
            return (
                f"{name}: some trials of this trace measured no accuracy, so the paper's profiler misses "
                "options here; record the trace again"
            )
    return None


def _mean(runs: Sequence[dict[str, Any]], scheduler: str, gpus: float) -> float | None:
    """Returns the mean over the finished seeds; None if there are none."""
    found = [run["mean_accuracy"] for run in runs if (run["scheduler"], run["gpus"]) == (scheduler, gpus)]
    return round(fmean(found), 6) if found else None


def _table(
    schedulers: Sequence[str], gpus: Sequence[float], means: Mapping[tuple[str, float], float]
) -> Table:
    """Builds the table of mean accuracies, by scheduler and number of GPUs; the best per column is bold."""
    counts = (f"{count:g} GPU{'' if count == 1 else 's'}" for count in gpus)
    table = make_table("Scheduler", *counts, title="Mean accuracy")
    best = {count: max(means.get((name, count), 0.0) for name in schedulers) for count in gpus}
    for name in schedulers:
        row = ((means.get((name, count)), best[count]) for count in gpus)
        cells = (
            Text(format_percent(own), style="bold" if own is not None and own == top else "")
            for own, top in row
        )
        table.add_row(Text(name), *cells)
    return table
