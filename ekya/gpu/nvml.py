"""Lists the NVIDIA GPUs visible to this process through the driver; makes no CUDA context."""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ekya.gpu.mps.control import VISIBLE_VARIABLE

_ORDER = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG instance of it where ``CUDA_VISIBLE_DEVICES`` names that.

    Attributes:
        index: driver index, from 0.
        name: product name.
        memory_bytes, memory_free_bytes: total, and free now; None where it shares the system's memory.
        uuid: the only name of the GPU that is the same in every process, such as ``GPU-1f0c...``; its index
            where the driver gives it none.
        mig: whether it is split into MIG instances, which CUDA then sees in its place.
        compute: major number of its compute capability; None where the driver does not tell.
    """

    index: int
    name: str
    memory_bytes: int | None
    memory_free_bytes: int | None
    uuid: str
    mig: bool = False
    compute: int | None = None


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """GPUs and driver of this machine.

    Attributes:
        gpus: in CUDA's order; empty without a driver.
        driver: version of the driver, or None without one.
        why: reason for the result, in one sentence.
    """

    gpus: tuple[Gpu, ...]
    driver: str | None
    why: str


def list_gpus(environment: Mapping[str, str] | None = None, nvml: Any = None) -> GpuInventory:
    """Lists the GPUs that ``CUDA_VISIBLE_DEVICES`` selects, or all without it.

    A machine without a GPU or driver is not an error: the list is empty, and ``why`` gives the reason.

    Args:
        environment: environment variables; this process's by default.
        nvml: the driver's calls by their NVML names; tests pass their own.
    """
    environment = os.environ if environment is None else environment
    try:
        nvml = nvml or importlib.import_module("pynvml")
    except ImportError:
        return GpuInventory((), None, "the library nvidia-ml-py is not installed; install Ekya again")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return GpuInventory((), None, f"no NVIDIA driver answers ({error})")
    try:
        here = [
            _gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(one), one) for one in range(nvml.nvmlDeviceGetCount())
        ]
        driver = str(nvml.nvmlSystemGetDriverVersion())
        visible = environment.get(VISIBLE_VARIABLE)
        # An empty value hides all GPUs, unlike a variable that is not set.
        gpus = tuple(here if visible is None else _shown(nvml, here, visible))
    except nvml.NVMLError as error:
        return GpuInventory((), None, f"the NVIDIA driver answers, but not for its GPUs ({error})")
    finally:
        nvml.nvmlShutdown()
    why = _found(len(gpus), len(here), visible, driver)
    if gpus and visible is not None and _ambiguous(here, visible, environment):
        why += f"; numbers are taken as nvidia-smi counts, which {_ORDER}=PCI_BUS_ID makes CUDA do too"
    return GpuInventory(gpus, driver, why)


def _found(shown: int, here: int, visible: str | None, driver: str) -> str:
    gpus = f"{here} NVIDIA GPU{'' if here == 1 else 's'}"
    if visible is None:
        return f"{gpus}, driver {driver}"
    setting = f"{VISIBLE_VARIABLE}={visible}"
    if shown:
        return f"{shown} of {gpus} by {setting}, driver {driver}"
    return f"{setting} shows none of {gpus}; unset it to use them"


def _ambiguous(here: Sequence[Gpu], visible: str, environment: Mapping[str, str]) -> bool:
    """Returns whether CUDA may number different GPUs in another order, the fastest first."""
    by_number = any(name.strip().isdecimal() for name in visible.split(","))
    return by_number and len({gpu.name for gpu in here}) > 1 and environment.get(_ORDER) != "PCI_BUS_ID"


def _shown(nvml: Any, here: Sequence[Gpu], visible: str) -> list[Gpu]:
    """Parses the variable as CUDA does: up to the first invalid name, and to nothing if one is repeated."""
    shown: list[Gpu] = []
    for name in visible.split(","):
        gpu = _named(nvml, here, name.strip())
        if gpu is None:
            break
        if gpu in shown:
            return []
        shown.append(gpu)
    return shown


def _named(nvml: Any, here: Sequence[Gpu], name: str) -> Gpu | None:
    """Returns the GPU with this index, UUID or unique UUID prefix, or the MIG instance with this name."""
    if name.isdecimal():
        return here[int(name)] if int(name) < len(here) else None
    if name.startswith("MIG-"):
        return _instance(nvml, here, name)
    found = [gpu for gpu in here if name.startswith("GPU-") and gpu.uuid.startswith(name)]
    return found[0] if len(found) == 1 else None


def _instance(nvml: Any, here: Sequence[Gpu], name: str) -> Gpu | None:
    try:
        device = nvml.nvmlDeviceGetHandleByUUID(name)
        parent = nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device))
        memory, free = _memory(nvml, device)
        return Gpu(here[parent].index, str(nvml.nvmlDeviceGetName(device)), memory, free, name, mig=True)
    except nvml.NVMLError:
        return None


def _gpu(nvml: Any, device: Any, index: int) -> Gpu:
    memory, free = _memory(nvml, device)
    uuid = _or_none(nvml, nvml.nvmlDeviceGetUUID, device)
    mig = _or_none(nvml, nvml.nvmlDeviceGetMigMode, device)  # Most GPUs have no MIG.
    compute = _or_none(nvml, nvml.nvmlDeviceGetCudaComputeCapability, device)
    return Gpu(
        index,
        str(nvml.nvmlDeviceGetName(device)),
        memory,
        free,
        str(index if uuid is None else uuid),
        mig is not None and mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
        None if compute is None else int(compute[0]),
    )


def _memory(nvml: Any, device: Any) -> tuple[int | None, int | None]:
    # Jetson and other GPUs without dedicated memory report 0 or nothing.
    memory = _or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, device)
    return (int(memory.total), int(memory.free)) if memory is not None and memory.total else (None, None)


def _or_none(nvml: Any, call: Callable[[Any], Any], device: Any) -> Any:
    try:
        return call(device)
    except nvml.NVMLError:
        return None
