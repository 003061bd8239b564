"""The NVIDIA GPUs of this machine, asked of the driver; no CUDA context is made."""

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        index: as the driver counts, from 0.
        name: the maker's name.
        memory_bytes, memory_free_bytes: in all, and free now.
        uuid: the only name that means the same GPU in every process, such as ``GPU-1f0c...``.
        mig: whether it is split into MIG instances, which CUDA then sees in its place.
    """

    index: int
    name: str
    memory_bytes: int
    memory_free_bytes: int
    uuid: str
    mig: bool = False


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """What the driver says.

    Attributes:
        gpus: in the driver's order; empty without a driver.
        driver: its version, or None without one.
        why: one sentence.
    """

    gpus: tuple[Gpu, ...]
    driver: str | None
    why: str


def list_gpus() -> GpuInventory:
    """All GPUs. A machine without a GPU or driver is not an error: it has none, and ``why`` says so."""
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return GpuInventory((), None, "the library nvidia-ml-py is not installed; install Ekya again")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return GpuInventory((), None, f"no NVIDIA driver answers ({error})")
    try:
        count = pynvml.nvmlDeviceGetCount()
        gpus = tuple(_gpu(pynvml, index) for index in range(count))
        driver = str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        return GpuInventory((), None, f"the NVIDIA driver answers, but not for its GPUs ({error})")
    finally:
        pynvml.nvmlShutdown()
    found = f"{count} NVIDIA GPU{'' if count == 1 else 's'}, driver {driver}"
    return GpuInventory(gpus, driver, found)


def _gpu(pynvml: Any, index: int) -> Gpu:
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
    name = str(pynvml.nvmlDeviceGetName(device))
    uuid = str(pynvml.nvmlDeviceGetUUID(device))
    return Gpu(index, name, int(memory.total), int(memory.free), uuid, _mig(pynvml, device))


def _mig(pynvml: Any, device: Any) -> bool:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(device)
    except pynvml.NVMLError:  # Most GPUs cannot be split at all.
        return False
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)
