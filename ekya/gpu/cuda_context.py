"""Creates a process's CUDA context without loading torch."""

import ctypes

_LIBRARY = "libcuda.so.1"
_SUCCESS = 0
_MPS_STARTS = (805, 806, 807)
"""CUDA errors: MPS connection failed, MPS RPC failure, MPS server not ready."""


class NoCudaError(Exception):
    """This process cannot use CUDA; the message says why, as a clause.

    Attributes:
        mps_starts: whether a retry may succeed once an MPS server has started.
    """

    def __init__(self, why: str, mps_starts: bool = False) -> None:
        super().__init__(why)
        self.mps_starts = mps_starts


def make_context() -> None:
    """Retains the first visible GPU's primary context, which torch also uses, until this process ends.

    Raises:
        NoCudaError: there is no driver, or one of its calls fails.
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
