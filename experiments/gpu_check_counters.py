"""Checks of `make gpu-check`: the driver's counters, and estimates of memory."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from gpu_check_report import Finding

from ekya.core.configs import RetrainConfig
from ekya.core.gpus import GpuUse
from ekya.core.profile import family_of
from ekya.gpu.nvml import list_gpus
from ekya.gpu.window_meter import SM_UTILISATION, GpuMeter, GpuReader, NvmlReader
from ekya.models.edge.device_memory import begin_peak, free_cache, is_out_of_memory, peak_bytes
from ekya.models.edge.footprint import footprint_of
from ekya.models.edge.model import build_edge_model
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops
from ekya.models.training.trainer import Compute, Retraining, RetrainingData
from ekya.planning.sizing.gpu_memory import CONTEXT_BYTES, JobCrops, retraining_bytes

DEVICE = "cuda"
IDLE_S, BUSY_S = 2.0, 3.0
LEAST_ACTIVITY = 0.8
"""Lowest accepted activity of the multiprocessors under a matrix product that fills the GPU."""

WITHIN = 0.2
"""Part by which a retraining may exceed its estimated memory."""

SIDE, CLASSES, TRAINING, VALIDATION = 32, tuple("abcdef"), 200, 50
MIB = 1 << 20
TOO_MUCH_BYTES = 1 << 60


def counters() -> Iterator[Finding]:
    """Measures memory, activity, power and energy of an idle GPU and of a busy one."""
    work = _product()
    work()
    with GpuMeter([_reader()], every_s=0.5) as meter:
        meter.drain_uses()
        time.sleep(IDLE_S)
        (idle,) = meter.drain_uses()
        until_s = time.monotonic() + BUSY_S
        while time.monotonic() < until_s:
            work()
        (busy,) = meter.drain_uses()
    yield from counter_findings(idle, busy)


def counter_findings(idle: GpuUse, busy: GpuUse) -> Iterator[Finding]:
    """Yields findings of two periods, one idle and one of a matrix product."""
    activity = busy.sm_activity
    yield Finding(
        "multiprocessors that were busy during a matrix product",
        f"at least {LEAST_ACTIVITY:g}, by {SM_UTILISATION}",
        f"{'not told' if activity is None else f'{activity:.2f}'}, by {busy.sm_from or 'nothing'}",
        activity is not None and activity >= LEAST_ACTIVITY and busy.sm_from == SM_UTILISATION,
        {"sm_activity": activity, "sm_from": busy.sm_from, "idle_sm_activity": idle.sm_activity},
    )
    told = busy.energy_j is not None and busy.power_w is not None and idle.power_w is not None
    yield Finding(
        f"energy of {BUSY_S:g} s of it",
        "told by the driver's counter; more power than with nothing to do",
        f"{busy.energy_j:.0f} J by {busy.energy_from}, {busy.power_w:.0f} W after {idle.power_w:.0f} W"
        if told
        else "not told",
        told and busy.energy_from == "counter" and (busy.power_w or 0.0) > (idle.power_w or 0.0),
        {"energy_j": busy.energy_j, "power_w": busy.power_w, "idle_power_w": idle.power_w},
    )


def memory() -> Iterator[Finding]:
    """Measures memory of CUDA and of a retraining; checks that an out-of-memory error does no harm."""
    reader = _reader()
    before = reader.read_counters().memory_used_bytes
    _product()()
    torch.nn.Conv2d(8, 8, 3).to(DEVICE)(torch.zeros(2, 8, 32, 32, device=DEVICE)).sum().item()
    free_cache()
    begin_peak()
    taken = reader.read_counters().memory_used_bytes - before
    yield Finding(
        "memory that CUDA and its libraries take of a process",
        f"at most {CONTEXT_BYTES // MIB} MiB",
        f"{taken / MIB:.0f} MiB",
        taken <= CONTEXT_BYTES,
        {"taken_bytes": taken, "of_it_torch_bytes": _torch_bytes("reserved_bytes.all.current")},
    )
    for blocks in (0, 2):
        config = RetrainConfig(1, 16, 0, blocks, 1.0)
        estimated = retraining_bytes(
            footprint_of(family_of(config), SIDE), config, JobCrops(TRAINING, VALIDATION)
        )
        held, parts = _held_by(config)
        yield Finding(
            f"memory that a retraining of a ResNet18's head{f' and {blocks} blocks' if blocks else ''} holds",
            f"at most {1 + WITHIN:g} of the {estimated / MIB:.0f} MiB that were estimated",
            f"{held / MIB:.0f} MiB",
            held <= (1 + WITHIN) * estimated,
            {"estimated_bytes": estimated, "held_bytes": held, **parts},
        )
    yield _out_of_memory()


def _out_of_memory() -> Finding:
    expected = "known as such, and the process computes on"
    try:
        torch.empty(TOO_MUCH_BYTES, dtype=torch.uint8, device=DEVICE)
    except Exception as error:
        known = is_out_of_memory(error)
        what = type(error).__name__
    else:
        return Finding("an allocation that cannot be", expected, "it was granted", False)
    free_cache()
    _product()()
    measured = f"{what}, {'known' if known else 'taken for something else'}; the process computed on"
    return Finding("an allocation that cannot be", expected, measured, known)


def _held_by(config: RetrainConfig) -> tuple[int, dict[str, int]]:
    """Returns the peak of a retraining beyond what torch keeps for libraries, and its parts.

    The workspace of cuBLAS stays when the cache is released. It is in what CUDA and its libraries take.
    """
    crops = np.random.default_rng(0).integers(0, 256, (TRAINING + VALIDATION, SIDE, SIDE, 3), np.uint8)
    rows = np.arange(len(crops))
    labelled = LabelledCrops(crops, rows % len(CLASSES), rows, rows)
    begin_peak()
    kept = _torch_bytes("reserved_bytes.all.current")
    retraining = Retraining(
        build_edge_model(CLASSES, 0, 0),
        config,
        RetrainingData(
            labelled.select_rows(rows[:TRAINING]),
            labelled.select_rows(rows[TRAINING:]),
            CLASSES,
            memory=ExemplarMemory(),
            seed=0,
        ),
        Compute(device=DEVICE),
    )
    retraining.prepare_training()
    retraining.run_epoch()
    parts = {
        "kept_for_libraries_bytes": kept,
        "tensors_and_workspaces_bytes": _torch_bytes("requested_bytes.all.peak"),
        "rounded_bytes": _torch_bytes("allocated_bytes.all.peak"),
    }
    return (peak_bytes() or 0) - kept, parts


def _torch_bytes(name: str) -> int:
    """Returns a figure of torch's allocator of GPU memory; 0 where it was not used."""
    return int(torch.cuda.memory_stats().get(name, 0))


def _product() -> Callable[[], object]:
    matrix = torch.ones(4096 if DEVICE == "cuda" else 64, 4096 if DEVICE == "cuda" else 64, device=DEVICE)
    return lambda: (matrix @ matrix).sum().item()


def _reader() -> GpuReader:
    inventory = list_gpus()
    if not inventory.gpus:
        raise RuntimeError(inventory.why)
    return NvmlReader(inventory.gpus[0].uuid)
