"""Memory of a GPU that another process on the same GPU may read: CUDA IPC, through the driver.

Not through torch's tensors: what its allocator gives is a piece of a larger block or, where segments
expand, no memory that can be lent this way at all, and it frees what was lent when its own bookkeeping
between processes says so, which is private to it and has changed. Memory of our own is freed by us.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from ekya.errors import UserError
from ekya.gpu.cuda_driver import CudaCalls
from ekya.gpu.gpu_streams import GpuStreams
from ekya.gpu.sm_driver import SmDriverError

_HANDLE_BYTES = 64
_WHOLE_BYTES = 1 << 21
"""Less than this may lie in one allocation of the driver with other memory, which would be lent with it."""


class CudaIpc:
    """One process's side, on the first GPU that it sees. Methods may be called by any thread.

    All raise SmDriverError where the driver refuses. The primary context, which is torch's too, is kept from
    the first use until the process ends.
    """

    def __init__(self, calls: CudaCalls, streams: GpuStreams) -> None:
        """Makes no context.

        Args:
            calls: the driver.
            streams: copies go to the calling thread's, behind what it has asked for there.
        """
        self._call = calls
        self._cuda = calls.names
        self._streams = streams
        self._device = calls("cuDeviceGet", 0)
        self._primary: object = None

    def lend(self, address: int, size: int) -> "Loan":
        """Copies memory of the GPU to where others may read it, complete when this returns."""
        with self._current():
            lent = int(self._call("cuMemAlloc", -(-size // _WHOLE_BYTES) * _WHOLE_BYTES))
            try:
                self._copy(lent, address, size)
                handle = self._call("cuIpcGetMemHandle", lent)
            except SmDriverError:
                self._call("cuMemFree", lent)
                raise
        # What the handle is called in Python differs between versions of the bindings; where it is does not.
        return Loan(self, lent, ctypes.string_at(handle.getPtr(), _HANDLE_BYTES))

    def take(self, handle: bytes, address: int, size: int) -> None:
        """Copies what another process has lent to memory of this one, and leaves its memory.

        Raises:
            ValueError: this cannot be a handle.
        """
        if len(handle) != _HANDLE_BYTES:
            raise ValueError(f"a handle has {_HANDLE_BYTES} bytes and not {len(handle)}")
        opening = self._cuda.CUipcMemHandle()
        ctypes.memmove(opening.getPtr(), handle, _HANDLE_BYTES)
        with self._current():
            flag = self._cuda.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
            lent = int(self._call("cuIpcOpenMemHandle", opening, int(flag)))
            try:
                self._copy(address, lent, size)
            finally:
                self._call("cuIpcCloseMemHandle", lent)

    def free(self, lent: int) -> None:
        """Gives memory that was lent back to the GPU; nobody must be reading it."""
        with self._current():
            self._call("cuMemFree", lent)

    def finish(self) -> None:
        """Returns when all is done that the calling thread has asked of the GPU."""
        self._streams.synchronise(self._streams.current())

    def _copy(self, to: int, of: int, size: int) -> None:
        self._call("cuMemcpyDtoDAsync", to, of, size, self._streams.current())
        # A copy within a GPU goes on behind the call, of either kind.
        self.finish()

    @contextmanager
    def _current(self) -> Iterator[None]:
        """The primary context is the calling thread's."""
        if self._primary is None:
            self._primary = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._call("cuCtxPushCurrent", self._primary)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")


class Loan:
    """Memory that others may read until it is ended.

    Attributes:
        handle: what another process needs to find it; plain bytes.
    """

    def __init__(self, ipc: CudaIpc, lent: int, handle: bytes) -> None:
        self._ipc, self._lent, self.handle = ipc, lent, handle

    def end(self) -> None:
        """Frees the memory."""
        self._ipc.free(self._lent)


def require_gpu(device: str) -> None:
    """Makes sure before a run begins that weights can go this way at all.

    Raises:
        UserError: jobs do not run on a GPU, or nothing here can ask its driver.
    """
    if device != "cuda":
        raise UserError(
            f"hand_over: cuda-ipc needs jobs that run on a GPU, and they run on the {device} here; "
            "use object-store, or --shares with what works on a GPU"
        )
    CudaCalls()
