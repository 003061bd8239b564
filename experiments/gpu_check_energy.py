"""Checks of `make gpu-check`: energy of training, and its modelled division between two jobs."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING

from gpu_check_report import Finding

from ekya.core.commands import StepRecord
from ekya.core.events import GpuMeasured, GpuUse, Role, ShareMeasured
from ekya.core.units import StreamId
from ekya.gpu.nvml import GpuInventory
from ekya.pipeline.speed_jobs import Rate
from ekya.results.metrics.energy import JobPlaces, ModelledEnergy, modelled_energy

if TYPE_CHECKING:
    from ekya.gpu.window_meter import GpuMeter

TURNS = 3
"""Measurements in a row, seconds in total: the driver's counter updates about ten times a second."""

_OF_IMAGES = "energy of 1000 images that are trained on"
_OF_JOBS = "energy of training and inference beside each other, half the GPU each"
_BY_COUNTER = "told by the driver's counter"
_STREAM = StreamId("check")


@contextmanager
def metered(inventory: GpuInventory) -> Iterator["GpuMeter | str"]:
    """Yields the first GPU's meter, as in a run; or the reason why it cannot be read."""
    try:
        meter = importlib.import_module("ekya.gpu.window_meter").open_meter(inventory, 1)
    except ModuleNotFoundError as error:
        yield f"the Python package {error.name} is missing"
        return
    if meter is None:
        yield "NVML cannot read this GPU"
        return
    with meter:
        # The readings before any work are taken as the power of an idle GPU.
        yield meter


def of_images(meter: "GpuMeter | str", train: Callable[[], Rate]) -> Iterator[Finding]:
    """Measures the energy of training alone, on the whole GPU."""
    if isinstance(meter, str):
        yield Finding(_OF_IMAGES, _BY_COUNTER, f"left out: {meter}", None)
        return
    meter.drain_uses()
    images_per_s = fmean(train().images_per_s for _ in range(TURNS))
    for use in meter.drain_uses():
        if use.energy_j is None or use.power_w is None:
            yield Finding(_OF_IMAGES, _BY_COUNTER, "this GPU does not tell", None)
            continue
        joules = 1000 * use.power_w / images_per_s
        yield Finding(
            _OF_IMAGES,
            _BY_COUNTER,
            f"{joules:.1f} J by {use.energy_from}: {use.power_w:.0f} W at {images_per_s:.0f} images/s",
            use.energy_from == "counter",
            {"joules_per_1000_images": joules, "images_per_s": images_per_s, "use": asdict(use)},
        )


def of_jobs(meter: "GpuMeter | str", both: Callable[[], Sequence[Rate]]) -> Iterator[Finding]:
    """Measures training and inference together; divides their energy by the model of a run."""
    expected = f"{_BY_COUNTER}; whose it was is a model's guess"
    if isinstance(meter, str):
        yield Finding(_OF_JOBS, expected, f"left out: {meter}", None)
        return
    meter.drain_uses()
    turns = [both() for _ in range(TURNS)]
    training, inference = (round(fmean(rate.used_milli for rate in own)) for own in zip(*turns, strict=True))
    for use in meter.drain_uses():
        energy = modelled(use, training, inference)
        if energy is None:
            yield Finding(_OF_JOBS, expected, "this GPU does not tell", None)
            continue
        shared = {role: energy.jobs_j.get((_STREAM, role), 0.0) for role in Role}
        yield Finding(
            _OF_JOBS,
            expected,
            f"{use.energy_j:.0f} J in {use.covered_us / 1e6:.1f} s by {use.energy_from}; by a model: "
            f"idle {energy.idle_j:.0f} J, training {shared[Role.RETRAINING]:.0f} J, "
            f"inference {shared[Role.INFERENCE]:.0f} J",
            use.energy_from == "counter",
            {"use": asdict(use), "modelled_idle_j": energy.idle_j, "modelled_jobs_j": shared},
        )


def modelled(use: GpuUse, training_milli: int, inference_milli: int) -> ModelledEnergy | None:
    """Divides a period's energy by the shares that both jobs really used in it."""
    now_us = use.covered_us
    events = (
        ShareMeasured(now_us, _STREAM, Role.RETRAINING, training_milli),
        ShareMeasured(now_us, _STREAM, Role.INFERENCE, inference_milli),
        GpuMeasured(now_us, 0, (use,)),
    )
    told = modelled_energy([StepRecord(now_us, events, None, ())], JobPlaces({_STREAM: use.gpu}, use.gpu))
    return next(iter(told), None)
