"""Shares GPU memory between processes on one GPU over CUDA IPC, through the driver.

Does not share torch's tensors: torch's allocator returns pieces of larger blocks or, with expandable
segments, memory that CUDA IPC cannot share, and it frees shared memory by its own reference counting
between processes, which is private and has changed. Memory allocated here is freed here.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from ekya.core.errors import UserError
from ekya.gpu.backends.meter import GpuStreams
from ekya.gpu.green.cuda_driver import CudaCalls
from ekya.gpu.green.sm_driver import SmDriverError

_HANDLE_BYTES = 64
_WHOLE_BYTES = 1 << 21
"""Smaller allocations may share a driver allocation with other memory, which would then be shared too."""


class CudaIpc:
    """One process's end of CUDA IPC, on the first GPU that it sees. Thread-safe.

    All methods raise SmDriverError if a driver call fails. The primary context, which torch also uses, is
    retained from the first use until the process ends.
    """

    def __init__(self, calls: CudaCalls, streams: GpuStreams) -> None:
        """Makes no context.

        Args:
            calls: the driver.
            streams: copies are queued on the calling thread's stream, after its earlier work.
        """
        self._call = calls
        self._cuda = calls.names
        self._streams = streams
        self._device = calls("cuDeviceGet", 0)
        self._primary: object = None

    def share(self, address: int, size: int) -> "SharedBlock":
        """Copies GPU memory to memory shared over CUDA IPC; the copy is complete on return."""
        with self._current():
            shared = int(self._call("cuMemAlloc", -(-size // _WHOLE_BYTES) * _WHOLE_BYTES))
            try:
                self._copy(shared, address, size)
                handle = self._call("cuIpcGetMemHandle", shared)
            except SmDriverError:
                self._call("cuMemFree", shared)
                raise
        # The handle's attribute name differs between versions of the bindings; its address does not.
        return SharedBlock(self, shared, ctypes.string_at(handle.getPtr(), _HANDLE_BYTES))

    def read(self, handle: bytes, address: int, size: int) -> None:
        """Copies memory shared by another process into memory of this one, and closes the handle.

        Raises:
            ValueError: ``handle`` has the wrong length.
        """
        if len(handle) != _HANDLE_BYTES:
            raise ValueError(f"a handle has {_HANDLE_BYTES} bytes and not {len(handle)}")
        opening = self._cuda.CUipcMemHandle()
        ctypes.memmove(opening.getPtr(), handle, _HANDLE_BYTES)
        with self._current():
            flag = self._cuda.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
            shared = int(self._call("cuIpcOpenMemHandle", opening, int(flag)))
            try:
                self._copy(address, shared, size)
            finally:
                self._call("cuIpcCloseMemHandle", shared)

    def free(self, shared: int) -> None:
        """Frees shared memory; no process may be reading it."""
        with self._current():
            self._call("cuMemFree", shared)

    def finish(self) -> None:
        """Waits for all GPU work of the calling thread's stream."""
        self._streams.synchronise(self._streams.current())

    def _copy(self, to: int, of: int, size: int) -> None:
        self._call("cuMemcpyDtoDAsync", to, of, size, self._streams.current())
        # A copy within a GPU is asynchronous, also by the call without "Async".
        self.finish()

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Makes the primary context current in the calling thread."""
        if self._primary is None:
            self._primary = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._call("cuCtxPushCurrent", self._primary)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")


class SharedBlock:
    """Memory shared over CUDA IPC until ``end`` is called.

    Attributes:
        handle: CUDA IPC handle with which another process opens it; plain bytes.
    """

    def __init__(self, ipc: CudaIpc, shared: int, handle: bytes) -> None:
        self._ipc, self._address, self.handle = ipc, shared, handle

    def end(self) -> None:
        """Frees the memory."""
        self._ipc.free(self._address)


def require_gpu(device: str) -> None:
    """Checks before a run that weights can be shared over CUDA IPC.

    Raises:
        UserError: jobs do not run on a GPU, or its driver cannot be called from here.
    """
    if device != "cuda":
        raise UserError(
            f"hand_over: cuda-ipc needs jobs that run on a GPU, and they run on the {device} here; "
            "use object-store, or --shares with what works on a GPU"
        )
    CudaCalls()
