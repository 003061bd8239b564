"""Reads one GPU's counters from the driver; makes no CUDA context.

Counters, with their fallbacks on devices that lack them:

- activity of the multiprocessors: GPM's "SM utilisation" (Hopper and newer), else the driver's utilisation
  rate, which says how long *any* kernel ran and is 100% for a kernel on one multiprocessor;
- memory: the GPU's own, else the system's, which it shares (Jetson and other unified memory);
- energy: the driver's counter (Volta and newer), else the caller integrates the power.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pynvml

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
    """Reads one GPU. Each method may raise ``pynvml.NVMLError``."""

    @property
    def uuid(self) -> str:
        """The GPU's UUID."""

    @property
    def sm_from(self) -> str:
        """Source of ``sm_activity``; empty where there is none."""

    def read(self) -> Reading:
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
        nvml.nvmlInit()
        self._nvml = nvml
        self._uuid = uuid
        self._system = system
        try:
            by_index = uuid.isdecimal()
            self._device = (
                nvml.nvmlDeviceGetHandleByIndex(int(uuid))
                if by_index
                else nvml.nvmlDeviceGetHandleByUUID(uuid)
            )
            self._shares_memory = self._has_no_memory()
            self._gpm = self._begin_gpm()
            self._sm_from = self._activity_source()
        except pynvml.NVMLError:
            nvml.nvmlShutdown()
            raise

    @property
    def uuid(self) -> str:
        """The GPU's UUID."""
        return self._uuid

    @property
    def sm_from(self) -> str:
        """Source of ``sm_activity``; empty where there is none."""
        return self._sm_from

    def read(self) -> Reading:
        """Returns the counters now."""
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
        """Returns the free memory."""
        return self._memory().free_bytes

    def close(self) -> None:
        """Frees the driver's resources of this reader."""
        if self._gpm is not None:
            for sample in self._gpm:
                self._nvml.nvmlGpmSampleFree(sample)
            self._gpm = None
        self._nvml.nvmlShutdown()

    def _has_no_memory(self) -> bool:
        try:
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
        valid = metric.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(metric.value)
        return metric.value / 100 if valid else None
