"""GPU counters, sampled by a thread of this process and summarised per window."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType

import pynvml

from ekya.core.gpus import GpuUse
from ekya.gpu.nvml import GpuInventory
from ekya.gpu.reader import GpuReader, NvmlReader, Reading

_LOG = logging.getLogger(__name__)
READ_EVERY_S = 1.0
"""About the interval at which the driver updates power and utilisation; a reading takes well under 1 ms."""

_NS_PER_S, _NS_PER_US = 1e9, 1000


@dataclass(frozen=True, slots=True)
class TimedReading:
    """A reading with its time on the host's monotonic clock."""

    t_ns: int
    reading: Reading


@dataclass(slots=True, eq=False)
class _Metered:
    """Meter state of one GPU.

    Attributes:
        readings: readings of the window so far; the first is the last one of the previous window.
        least_power_w: lowest power of the run so far.
        failed: a failed reading has been logged.
    """

    reader: GpuReader
    readings: list[TimedReading] = field(default_factory=list)
    least_power_w: float | None = None
    failed: bool = False


class GpuMeter:
    """Context manager that samples GPUs while it is entered. Thread-safe.

    Args:
        readers: in the order of the run's GPUs.
        every_s: interval between two readings.
        clock_ns: monotonic clock.
    """

    def __init__(
        self,
        readers: Sequence[GpuReader],
        every_s: float = READ_EVERY_S,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._gpus = [_Metered(reader) for reader in readers]
        self._every_s = every_s
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="gpu-meter", daemon=True)

    def __enter__(self) -> "GpuMeter":
        self.read()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        for gpu in self._gpus:
            try:
                gpu.reader.close()
            except pynvml.NVMLError as failure:
                _LOG.debug("a GPU's reader did not close: %s", failure)

    def read(self) -> None:
        """Reads every GPU once; a failed reading leaves a gap."""
        with self._lock:
            for gpu in self._gpus:
                self._read(gpu)

    def take(self) -> tuple[GpuUse, ...]:
        """Returns the summaries since the last call, or since the start.

        GPUs without any reading are left out.
        """
        self.read()
        with self._lock:
            uses = []
            for position, gpu in enumerate(self._gpus):
                if gpu.readings:
                    uses.append(sum_up(position, gpu.reader, gpu.readings, gpu.least_power_w))
                    gpu.readings = gpu.readings[-1:]
        return tuple(uses)

    def free_bytes(self, gpu: int) -> int | None:
        """Returns the free memory of the GPU at this position; None where it cannot be read."""
        try:
            return self._gpus[gpu].reader.free_bytes()
        except pynvml.NVMLError:
            return None

    def _read_on(self) -> None:
        while not self._ended.wait(self._every_s):
            self.read()

    def _read(self, gpu: _Metered) -> None:
        try:
            reading = gpu.reader.read()
        except pynvml.NVMLError as error:
            if not gpu.failed:
                gpu.failed = True
                _LOG.warning("GPU %s cannot be read, what it does is missing: %s", gpu.reader.uuid, error)
            return
        gpu.readings.append(TimedReading(self._clock_ns(), reading))
        if reading.power_w is not None:
            least_w = gpu.least_power_w
            gpu.least_power_w = reading.power_w if least_w is None else min(least_w, reading.power_w)


def open_meter(inventory: GpuInventory, gpus: int) -> GpuMeter | None:
    """Returns a meter of the first ``gpus`` GPUs; None without GPUs, or where one cannot be opened."""
    readers: list[GpuReader] = []
    try:
        for gpu in inventory.gpus[:gpus]:
            readers.append(NvmlReader(gpu.uuid))
    except pynvml.NVMLError as error:
        _LOG.warning("what the GPUs do cannot be measured: %s", error)
        for reader in readers:
            reader.close()
        return None
    return GpuMeter(readers) if readers else None


def sum_up(
    position: int, reader: GpuReader, readings: Sequence[TimedReading], least_power_w: float | None
) -> GpuUse:
    """Summarises readings of one GPU: at least one, in order of time."""
    covered_ns = readings[-1].t_ns - readings[0].t_ns
    energy_j, energy_from = _energy(readings)
    activity = _activity(readings)
    power_w = _mean(readings, lambda reading: reading.power_w)
    if energy_j is not None and covered_ns > 0:
        power_w = energy_j * _NS_PER_S / covered_ns
    used = _mean(readings, lambda reading: float(reading.memory_used_bytes))
    return GpuUse(
        gpu=position,
        uuid=reader.uuid,
        covered_us=covered_ns // _NS_PER_US,
        memory_total_bytes=readings[-1].reading.memory_total_bytes,
        memory_mean_bytes=round(used or 0.0),
        memory_peak_bytes=max(one.reading.memory_used_bytes for one in readings),
        sm_activity=activity,
        sm_from="" if activity is None else reader.sm_from,
        power_w=power_w,
        least_power_w=least_power_w,
        energy_j=energy_j,
        energy_from=energy_from,
        readings=len(readings),
    )


def _energy(readings: Sequence[TimedReading]) -> tuple[float | None, str]:
    """Returns energy and its source: the counter, unless missing or reset, else the integral of power."""
    first_j, last_j = readings[0].reading.energy_j, readings[-1].reading.energy_j
    if first_j is not None and last_j is not None and last_j >= first_j:
        return last_j - first_j, "counter"
    power_w = _mean(readings, lambda reading: reading.power_w)
    if power_w is None:
        return None, ""
    return power_w * (readings[-1].t_ns - readings[0].t_ns) / _NS_PER_S, "power"


def _activity(readings: Sequence[TimedReading]) -> float | None:
    """Returns the mean over time; a reading covers the time since the previous one. None without readings."""
    known = [
        (after.t_ns - before.t_ns, after.reading.sm_activity)
        for before, after in pairwise(readings)
        if after.reading.sm_activity is not None
    ]
    total_ns = sum(ns for ns, _ in known)
    return sum(ns * value for ns, value in known) / total_ns if total_ns > 0 else None


def _mean(readings: Sequence[TimedReading], of: Callable[[Reading], float | None]) -> float | None:
    """Returns the mean over time, interpolated linearly between readings; None without values."""
    known = [(one.t_ns, value) for one in readings if (value := of(one.reading)) is not None]
    if not known:
        return None
    passed = [
        (after_ns - before_ns, (before + after) / 2)
        for (before_ns, before), (after_ns, after) in pairwise(known)
    ]
    total_ns = sum(ns for ns, _ in passed)
    return sum(ns * value for ns, value in passed) / total_ns if total_ns > 0 else known[-1][1]
