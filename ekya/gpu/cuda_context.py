"""A CUDA context for a process that has none yet, without loading torch for it."""

import ctypes

_LIBRARY = "libcuda.so.1"
_SUCCESS = 0
_MPS_STARTS = (805, 806, 807)
"""An MPS client cannot connect, its call is cut off, or its server is not ready."""


class NoCudaError(Exception):
    """Why this process cannot use CUDA, as a clause.

    Attributes:
        mps_starts: whether it may be well as soon as an MPS server has started.
    """

    def __init__(self, why: str, mps_starts: bool = False) -> None:
        super().__init__(why)
        self.mps_starts = mps_starts


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
        raise NoCudaError(f"{call} gives CUDA error {result}", result in _MPS_STARTS)
