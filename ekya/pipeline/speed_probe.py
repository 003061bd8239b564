"""Measures the speed of training and inference at shares, alone and together."""

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from ekya.core.speed import KindSpeeds, ModelSpeeds
from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.backend import ShareBackend
from ekya.pipeline.speed_jobs import KINDS, ProbeSpec, Rate, probes, rates_at
from ekya.planning.profiling.speed_curves import curve_through, joint_throughput

SHARES_MILLI = (100, 200, 300, 400, 500, 650, 800, 1000)
TOGETHER = (2, 4)
"""Shares and numbers of concurrent jobs that are measured by default."""


def measure_speeds(
    backend: ShareBackend,
    spec: ProbeSpec,
    shares_milli: Sequence[int] = SHARES_MILLI,
    together: Sequence[int] = TOGETHER,
    progress: Callable[[], None] = lambda: None,
) -> ModelSpeeds:
    """Measures training and inference, alone at each share, and several at equal parts of one GPU.

    Args:
        backend: opened.
        spec: configuration of the measurement.
        shares_milli: the last is 1000. If a backend grants less than requested, the granted share counts.
        together: numbers of concurrent jobs.
        progress: callback after each measurement; there are 2 · (shares + numbers).

    Raises:
        UserError: the device is busy with something else, or a job could not begin.
    """
    speeds = []
    for kind in KINDS:
        alone: dict[int, float] = {}
        with probes(backend, spec, [kind], all_held=True) as pipes:
            for share_milli in shares_milli:
                for rate in undisturbed(pipes, share_milli):
                    alone[rate.granted_milli] = rate.batches_per_s
                progress()
        # If a backend never grants a whole GPU, full speed is the highest measured one.
        full = alone.setdefault(FULL_GPU_MILLI, max(alone.values()))
        beside = []
        for jobs in together:
            with probes(backend, spec, [kind] * jobs, all_held=True) as pipes:
                rates = tuple(rate.batches_per_s for rate in undisturbed(pipes, FULL_GPU_MILLI // jobs))
            beside.append(joint_throughput(rates, full))
            progress()
        speeds.append(KindSpeeds(curve_through(alone), tuple(beside)))
    training, inference = speeds
    return ModelSpeeds(training, inference)


def undisturbed(pipes: Sequence[Connection], share_milli: int) -> list[Rate]:
    """Measures all processes concurrently at this share.

    Raises:
        UserError: other programs kept a process from its share.
    """
    rates = rates_at([(pipe, share_milli) for pipe in pipes])
    for rate in rates:
        rate.require_undisturbed()
    return rates
