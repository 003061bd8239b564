"""A CUDA context for a process that has none yet, without loading torch for it."""

import ctypes

_LIBRARY = "libcuda.so.1"
_SUCCESS = 0


class NoCudaError(Exception):
    """Why this process cannot use CUDA, as a clause."""


def make_context() -> None:
    """Keeps the primary context of the first visible GPU until this process ends; torch uses the same.

    Raises:
        NoCudaError: there is no driver, or it refuses.
    """
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise NoCudaError(f"{_LIBRARY} cannot be loaded (it comes with the NVIDIA driver)") from None
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _require("cuInit", driver.cuInit(0))
    _require("cuDeviceGet", driver.cuDeviceGet(ctypes.byref(device), 0))
    _require("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))


def _require(call: str, result: int) -> None:
    if result != _SUCCESS:
        raise NoCudaError(f"{call} gives CUDA error {result}")
