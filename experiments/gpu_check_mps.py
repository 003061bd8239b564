"""Check of `make gpu-check`: the MPS daemon."""

import time
from collections.abc import Iterator

import torch
from gpu_check_report import Finding

from ekya.core.errors import UserError
from ekya.gpu.mps.service import find_mps, mps_service
from ekya.gpu.nvml import Gpu, GpuInventory

_DAEMON, _STARTS = "an MPS daemon", "starts, or says why not"


def mps() -> Iterator[Finding]:
    """Checks that a daemon starts."""
    inventory = seen_by_cuda()
    began_s = time.perf_counter()
    try:
        with mps_service(find_mps(inventory), inventory.gpus[:1]):
            took_s = time.perf_counter() - began_s
            yield Finding(_DAEMON, _STARTS, f"started in {took_s:.2f} s", True, {"start_s": took_s})
    except UserError as error:
        yield Finding(_DAEMON, _STARTS, f"does not start: {error}", bool(str(error)))


def seen_by_cuda() -> GpuInventory:
    """Returns the first GPU as torch reports it, since the NVML library may be missing here."""
    gpu = torch.cuda.get_device_properties(0)
    return GpuInventory((Gpu(0, gpu.name, None, None, f"GPU-{gpu.uuid}"),), None, "1 NVIDIA GPU")
