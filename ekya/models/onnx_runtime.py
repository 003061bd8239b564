"""onnxruntime: which of its two wheels is installed, and sessions on a GPU where that wheel can.

The wheel for CPUs and the one for NVIDIA GPUs share an import name and a folder: only one may be installed.
"""

import logging
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_LOG = logging.getLogger(__name__)

CPU_WHEEL, GPU_WHEEL = "onnxruntime", "onnxruntime-gpu"

CUDA_PROVIDER, CPU_PROVIDER = "CUDAExecutionProvider", "CPUExecutionProvider"

_REMEDY = f"`pip uninstall --yes {CPU_WHEEL}`, then `pip install --force-reinstall --no-deps {GPU_WHEEL}`"

_MOST_GPU_BYTES = 4 << 30
"""Upper bound of a session's memory on a GPU, beside the weights' copy that CUDA makes. A detector of 640 pixels
takes far less; other jobs share the GPU."""


def installed_wheels() -> dict[str, str]:
    """Returns the versions of the installed wheels of onnxruntime, by name."""
    found = {}
    for name in (CPU_WHEEL, GPU_WHEEL):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def onnxruntime_version() -> str:
    """Returns the version of the installed onnxruntime, with its name where it is not the CPU's alone."""
    wheels = installed_wheels()
    if wheels.keys() == {CPU_WHEEL}:
        return wheels[CPU_WHEEL]
    return ", ".join(f"{name} {number}" for name, number in wheels.items())


def why_no_cuda() -> str | None:
    """Returns why the installed wheels have no CUDA, with the remedy, as a clause; None where one has."""
    match installed_wheels().keys():
        case wheels if wheels == {GPU_WHEEL}:
            return None
        case wheels if len(wheels) > 1:
            return f"{CPU_WHEEL} and {GPU_WHEEL} are both installed and overwrite each other's files: {_REMEDY}"
        case _:
            return f"the installed onnxruntime is the one for CPUs: {_REMEDY}"


def open_session(path: str, options: Any, device: str) -> Any:
    """Opens the session of a network; on the CPU, and says so, where a GPU is asked for and cannot be had.

    Args:
        path: of the ONNX file.
        options: of the session.
        device: torch's name; ``session.get_providers()`` says what it has become.

    Raises:
        Exception: onnxruntime cannot run the file.
    """
    # Imported here: `ekya doctor` only asks which wheel is there.
    import onnxruntime

    if device == "cpu":
        return onnxruntime.InferenceSession(path, options, [CPU_PROVIDER])
    session, why = None, why_no_cuda() or "its CUDA provider does not start"
    if CUDA_PROVIDER in onnxruntime.get_available_providers():
        # Finds the libraries of CUDA that torch's wheels have brought; older versions look for themselves.
        getattr(onnxruntime, "preload_dlls", lambda: None)()
        try:
            session = onnxruntime.InferenceSession(path, options, [_cuda_of(device), CPU_PROVIDER])
        except Exception as error:  # onnxruntime's exceptions have no other common base.
            why = f"its CUDA provider does not start ({next(iter(str(error).splitlines()), '')[:160]})"
    session = session or onnxruntime.InferenceSession(path, options, [CPU_PROVIDER])
    if CUDA_PROVIDER not in session.get_providers():
        _warn_once(why)
    return session


def _cuda_of(device: str) -> tuple[str, dict[str, object]]:
    return CUDA_PROVIDER, {
        "device_id": int(device.partition(":")[2] or 0),
        # An exhaustive search is repeated for every new shape.
        "cudnn_conv_algo_search": "HEURISTIC",
        "gpu_mem_limit": _MOST_GPU_BYTES,
        "arena_extend_strategy": "kSameAsRequested",
    }


@lru_cache
def _warn_once(why: str) -> None:
    """Logs where the golden detector runs; not again for every stream of a process."""
    _LOG.warning("the golden detector runs on the CPU although there is a GPU, since %s", why)
