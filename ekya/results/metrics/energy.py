"""Energy that each job cost by a model of the GPU's power, and the GPU section of a run's summary."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.gpus import GpuUse
from ekya.core.units import FULL_GPU_MILLI, StreamId, us_to_seconds
from ekya.results.metrics.accuracy import rounded

Job = tuple[StreamId, str]
"""A stream, and the work for it: ``inference``, ``retraining`` or ``preparation``."""

PREPARATION = "preparation"


@dataclass(frozen=True, slots=True)
class ModelledEnergy:
    """Energy of one GPU in one window, divided by the model above.

    Attributes:
        window, gpu: index of the window; position of the GPU among those of the run.
        idle_j: energy that the GPU would have drawn without work.
        jobs_j: of each job that used the GPU.
        unexplained_j: energy above idle in a window in which no job's use was measured.
    """

    window: int
    gpu: int
    idle_j: float
    jobs_j: Mapping[Job, float]
    unexplained_j: float


@dataclass(frozen=True, slots=True)
class JobPlaces:
    """GPUs of the jobs, as positions among those of the run.

    Attributes:
        streams: inference and retraining of each stream.
        preparation: labelling and profiling of all of them.
    """

    streams: Mapping[StreamId, int]
    preparation: int

    def gpu_of_job(self, job: Job) -> int | None:
        """Returns the GPU of a job; None for a stream that is not of the run."""
        return self.preparation if job[1] == PREPARATION else self.streams.get(job[0])


def modelled_energy(steps: Sequence[StepRecord], places: JobPlaces) -> tuple[ModelledEnergy, ...]:
    """Returns the modelled energy of each window and GPU whose energy and power were measured."""
    uses = list(_uses(steps))
    modelled: list[ModelledEnergy] = []
    since_us = 0
    for event in _events(steps):
        if isinstance(event, ev.GpuMeasured):
            here = [(job, gpu_s) for t_us, job, gpu_s in uses if since_us < t_us <= event.t_us]
            for gpu in event.gpus:
                own = [(job, gpu_s) for job, gpu_s in here if places.gpu_of_job(job) == gpu.gpu]
                modelled += _divided(event.window, gpu, own)
            since_us = event.t_us
    return tuple(modelled)


def _divided(window: int, gpu: GpuUse, uses: Iterable[tuple[Job, float]]) -> Iterator[ModelledEnergy]:
    """Yields the energy of a GPU, divided by the GPU-seconds of its jobs; nothing if it was not measured."""
    if gpu.energy_j is None or gpu.least_power_w is None:
        return
    # At most all of it: least power and energy are measured differently, and need not fit exactly.
    idle_j = min(gpu.energy_j, gpu.least_power_w * us_to_seconds(gpu.covered_us))
    used_s: dict[Job, float] = defaultdict(float)
    for job, gpu_s in uses:
        used_s[job] += gpu_s
    rest_j, total_s = gpu.energy_j - idle_j, sum(used_s.values())
    jobs_j = {job: rest_j * own_s / total_s for job, own_s in sorted(used_s.items()) if own_s > 0.0}
    yield ModelledEnergy(window, gpu.gpu, idle_j, jobs_j, 0.0 if jobs_j else rest_j)


def _uses(steps: Sequence[StepRecord]) -> Iterator[tuple[int, Job, float]]:
    """Yields time, job and GPU-seconds of all measurements of jobs' use.

    A share holds for the time since the last one of its worker.
    """
    measured_us: dict[Job, int] = {}
    for event in _events(steps):
        match event:
            case ev.StreamAdded():
                measured_us |= {(event.stream, str(role)): event.t_us for role in ev.Role}
            case ev.ShareMeasured():
                job = (event.stream, str(event.role))
                passed_s = us_to_seconds(event.t_us - measured_us.get(job, 0))
                measured_us[job] = event.t_us
                yield event.t_us, job, passed_s * event.share_milli / FULL_GPU_MILLI
            case ev.LabelsReady() | ev.InferenceProfiled() | ev.ProfileReady():
                yield event.t_us, (event.stream, PREPARATION), event.gpu_s


def _events(steps: Sequence[StepRecord]) -> Iterator[ev.Event]:
    return (event for step in steps for event in step.events)


_DIGITS = 3


def gpu_facts(steps: Sequence[StepRecord], places: JobPlaces) -> dict[str, Any]:
    """Returns the JSON values of ``host.gpus`` by position of the measured GPUs; empty without any."""
    measured: dict[int, list[GpuUse]] = {}
    for event in _events(steps):
        for use in event.gpus if isinstance(event, ev.GpuMeasured) else ():
            measured.setdefault(use.gpu, []).append(use)
    modelled = modelled_energy(steps, places)
    return {
        str(gpu): _facts(uses, [energy for energy in modelled if energy.gpu == gpu])
        for gpu, uses in sorted(measured.items())
    }


def _facts(uses: Sequence[GpuUse], modelled: Sequence[ModelledEnergy]) -> dict[str, Any]:
    return {
        "uuid": uses[0].uuid,
        "measured_s": round(sum(us_to_seconds(use.covered_us) for use in uses), _DIGITS),
        "memory_total_bytes": uses[-1].memory_total_bytes,
        "memory_peak_bytes": max(use.memory_peak_bytes for use in uses),
        "memory_mean_bytes": round(_over_time(uses, [float(use.memory_mean_bytes) for use in uses]) or 0.0),
        "sm_activity": rounded(_over_time(uses, [use.sm_activity for use in uses]), _DIGITS),
        "sm_from": _ways(use.sm_from for use in uses),
        "power_w": rounded(_over_time(uses, [use.power_w for use in uses]), _DIGITS),
        "energy_j": rounded(_sum(use.energy_j for use in uses), _DIGITS),
        "energy_from": _ways(use.energy_from for use in uses),
        "modelled_energy_j": _modelled(modelled) if modelled else None,
    }


def _modelled(modelled: Sequence[ModelledEnergy]) -> dict[str, Any]:
    jobs: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for energy in modelled:
        for (stream, what), joules in energy.jobs_j.items():
            jobs[stream][what] += joules
    return {
        "idle": round(sum(energy.idle_j for energy in modelled), _DIGITS),
        "unexplained": round(sum(energy.unexplained_j for energy in modelled), _DIGITS),
        "jobs": {
            stream: {what: round(joules, _DIGITS) for what, joules in sorted(own.items())}
            for stream, own in sorted(jobs.items())
        },
    }


def _over_time(uses: Sequence[GpuUse], values: Sequence[float | None]) -> float | None:
    """Returns the mean over the windows with a value, weighted by the time that each covers."""
    known = [(use.covered_us, value) for use, value in zip(uses, values, strict=True) if value is not None]
    covered_us = sum(us for us, _ in known)
    if not covered_us:
        return known[-1][1] if known else None
    return sum(us * value for us, value in known) / covered_us


def _sum(values: Iterable[float | None]) -> float | None:
    """Returns the sum over the windows with a value; None if none has one."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _ways(names: Iterable[str]) -> str | None:
    """Returns the way of measuring; all ways if windows differ."""
    used = sorted({name for name in names if name})
    return " and ".join(used) if used else None
