"""The GPU section of a run's summary."""

from collections.abc import Iterable, Sequence
from typing import Any

from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.gpus import GpuUse
from ekya.core.units import us_to_seconds
from ekya.results.metrics.accuracy import rounded

_DIGITS = 3


def gpu_facts(steps: Sequence[StepRecord]) -> dict[str, Any]:
    """Returns the JSON values of ``host.gpus`` by position of the measured GPUs; empty without any."""
    measured: dict[int, list[GpuUse]] = {}
    for event in (event for step in steps for event in step.events):
        for use in event.gpus if isinstance(event, ev.GpuMeasured) else ():
            measured.setdefault(use.gpu, []).append(use)
    return {str(gpu): _facts(uses) for gpu, uses in sorted(measured.items())}


def _facts(uses: Sequence[GpuUse]) -> dict[str, Any]:
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
