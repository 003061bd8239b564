"""GPU counters: read from the driver, sampled by a thread of this process and summarised per window.

No CUDA context is made. Counters, with their fallbacks on devices that lack them:

- activity of the multiprocessors: GPM's "SM utilisation" (Hopper and newer), else the driver's utilisation
  rate, which says how long *any* kernel ran and is 100% for a kernel on one multiprocessor;
- memory: the GPU's own, else the system's, which it shares (Jetson and other unified memory);
- energy: the driver's counter (Volta and newer), else the integral of the power.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any, Protocol

import pynvml

from ekya.core.gpus import GpuUse
from ekya.gpu.nvml import GpuInventory
from ekya.system.host import HostMemory, read_host_memory

SM_UTILISATION, KERNEL_UTILISATION = "sm-utilization", "kernel-utilization"


@dataclass(frozen=True, slots=True)
class Reading:
    """A GPU's counters at one moment; None for those that the device does not have.

    Attributes:
        memory_total_bytes, memory_used_bytes: all processes together.
        sm_activity: mean part in [0, 1] since the last reading, or over the driver's own last second.
        power_w: power now.
        energy_j: energy since the driver was loaded.
    """

    memory_total_bytes: int
    memory_used_bytes: int
    sm_activity: float | None
    power_w: float | None
    energy_j: float | None


class GpuReader(Protocol):
    """Reads one GPU. Each method may raise ``pynvml.NVMLError``.

    Attributes:
        uuid: of the GPU.
        sm_from: source of ``sm_activity``; empty where there is none.
    """

    uuid: str
    sm_from: str

    def read_counters(self) -> Reading:
        """Returns the counters now."""

    def free_bytes(self) -> int:
        """Returns the free memory."""

    def close(self) -> None:
        """Ends reading."""


class NvmlReader:
    """Reads a GPU through NVML. A ``GpuReader``.

    Args:
        uuid: UUID of the GPU, or its index where the driver gives it none.
        nvml: the driver's calls by their NVML names; tests pass their own.
        system: reads the machine's memory, for a GPU that shares it.

    Raises:
        pynvml.NVMLError: there is no such GPU, or no driver.
    """

    def __init__(
        self, uuid: str, nvml: Any = pynvml, system: Callable[[], HostMemory] = read_host_memory
    ) -> None:
        # NVML counts its starts: each needs one nvmlShutdown, also where the reader cannot be made.
        nvml.nvmlInit()
        self._nvml = nvml
        self.uuid = uuid
        self._system = system
        try:
            if uuid.isdecimal():
                self._device = nvml.nvmlDeviceGetHandleByIndex(int(uuid))
            else:
                self._device = nvml.nvmlDeviceGetHandleByUUID(uuid)
            self._shares_memory = self._has_no_memory()
            self._gpm = self._begin_gpm()
            self.sm_from = self._activity_source()
        except pynvml.NVMLError:
            nvml.nvmlShutdown()
            raise

    def read_counters(self) -> Reading:
        memory = self._memory()
        milliwatts = self._or_none("nvmlDeviceGetPowerUsage")
        millijoules = self._or_none("nvmlDeviceGetTotalEnergyConsumption")
        return Reading(
            memory_total_bytes=memory.total_bytes,
            memory_used_bytes=memory.total_bytes - memory.free_bytes,
            sm_activity=self._activity(),
            power_w=None if milliwatts is None else milliwatts / 1000,
            energy_j=None if millijoules is None else millijoules / 1000,
        )

    def free_bytes(self) -> int:
        return self._memory().free_bytes

    def close(self) -> None:
        """Frees the driver's resources of this reader."""
        gpm, self._gpm = self._gpm, None
        try:
            for sample in gpm or ():
                self._nvml.nvmlGpmSampleFree(sample)
        finally:
            self._nvml.nvmlShutdown()

    def _has_no_memory(self) -> bool:
        try:
            # A GPU that shares the system's memory reports 0, or that the call is not supported.
            return not self._nvml.nvmlDeviceGetMemoryInfo(self._device).total
        except pynvml.NVMLError as error:
            return bool(error.value == pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _memory(self) -> HostMemory:
        if self._shares_memory:
            return self._system()
        own = self._nvml.nvmlDeviceGetMemoryInfo(self._device)
        return HostMemory(int(own.total), int(own.free))

    def _or_none(self, call: str) -> Any:
        try:
            return getattr(self._nvml, call)(self._device)
        except pynvml.NVMLError:  # Many devices lack one or the other.
            return None

    def _begin_gpm(self) -> list[Any] | None:
        """Allocates two samples and takes the first; returns None where the device has no GPM."""
        nvml, samples = self._nvml, list[Any]()
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(self._device).isSupportedDevice:
                return None
            samples += [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
            nvml.nvmlGpmSampleGet(self._device, samples[0])
        except pynvml.NVMLError:  # Missing in older drivers, and forbidden for some users.
            for sample in samples:
                nvml.nvmlGpmSampleFree(sample)
            return None
        return samples

    def _activity_source(self) -> str:
        if self._gpm is not None:
            return SM_UTILISATION
        return "" if self._or_none("nvmlDeviceGetUtilizationRates") is None else KERNEL_UTILISATION

    def _activity(self) -> float | None:
        if self._gpm is not None:
            return self._gpm_activity(self._gpm)
        rates = self._or_none("nvmlDeviceGetUtilizationRates")
        return None if rates is None else rates.gpu / 100

    def _gpm_activity(self, samples: list[Any]) -> float | None:
        """Returns the activity between the last sample and a new one, which then becomes the last."""
        nvml = self._nvml
        nvml.nvmlGpmSampleGet(self._device, samples[1])
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        request.sample1, request.sample2 = samples
        request.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
        nvml.nvmlGpmMetricsGet(request)
        samples.reverse()
        metric = request.metrics[0]
        # Each metric has a return code of its own, beside that of the call.
        valid = metric.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(metric.value)
        return metric.value / 100 if valid else None


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
        failed: a failed reading has been logged.
    """

    reader: GpuReader
    readings: list[TimedReading] = field(default_factory=list)
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
        # So that the first window is measured from its beginning, and not from a second later.
        self.read_gpus()
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

    def read_gpus(self) -> None:
        """Reads every GPU once; a failed reading leaves a gap."""
        with self._lock:
            for gpu in self._gpus:
                self._read(gpu)

    def drain_uses(self) -> tuple[GpuUse, ...]:
        """Returns the summaries since the last call, or since the start.

        GPUs without any reading are left out.
        """
        self.read_gpus()
        with self._lock:
            uses = []
            for position, gpu in enumerate(self._gpus):
                if gpu.readings:
                    uses.append(sum_up(position, gpu.reader, gpu.readings))
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
            self.read_gpus()

    def _read(self, gpu: _Metered) -> None:
        try:
            reading = gpu.reader.read_counters()
        except pynvml.NVMLError as error:
            if not gpu.failed:
                gpu.failed = True
                _LOG.warning("GPU %s cannot be read, what it does is missing: %s", gpu.reader.uuid, error)
            return
        gpu.readings.append(TimedReading(self._clock_ns(), reading))


def open_meter(inventory: GpuInventory, gpus: int) -> GpuMeter | None:
    """Returns a meter of the first ``gpus`` GPUs; None without GPUs, or where one cannot be opened."""
    readers: list[GpuReader] = []
    try:
        for gpu in inventory.gpus[:gpus]:
            readers.append(NvmlReader(gpu.uuid))
    except pynvml.NVMLError as error:
        _LOG.warning("what the GPUs do cannot be measured: %s", error)
        for reader in readers:
            with suppress(pynvml.NVMLError):
                reader.close()
        return None
    return GpuMeter(readers) if readers else None


def sum_up(position: int, reader: GpuReader, readings: Sequence[TimedReading]) -> GpuUse:
    """Summarises readings of one GPU: at least one, in order of time."""
    covered_ns = readings[-1].t_ns - readings[0].t_ns
    energy_j, energy_from = _energy(readings)
    activity = _activity(readings)
    power_w = _mean(readings, lambda reading: reading.power_w)
    # Power is read once a second and varies in between; the counter misses nothing.
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
