"""Fake of a GPU whose memory processes share over CUDA IPC; its addresses are those of this process.

Shared bytes are therefore real, and every use of freed memory is detected.
"""

import ctypes
from types import SimpleNamespace

from fake_bindings import FakeBindings, Result, answering

from ekya.gpu.cuda_ipc import CudaIpc
from ekya.gpu.green.cuda_driver import CudaCalls


class FakeGpu:
    """Memory shared by all processes of the GPU."""

    def __init__(self):
        self.shared = {}

    def damage(self):
        """Flips a bit of every shared block."""
        for owner, address in self.shared.values():
            owner.memory[address][7] = bytes([owner.memory[address][7][0] ^ 1])

    def process(self):
        """Returns another process on this GPU."""
        return FakeProcess(self)


class Handle:
    """A handle as in the bindings of 13.5, which expose only its address."""

    def __init__(self, token=b""):
        self.raw = ctypes.create_string_buffer(token.ljust(64, b"\1"), 64)

    def getPtr(self):  # noqa: N802
        return ctypes.addressof(self.raw)


class FakeProcess(FakeBindings):
    """``cuda.bindings.driver`` in one process."""

    CUipcMemHandle = Handle
    CUipcMem_flags = SimpleNamespace(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS=1)

    def __init__(self, gpu):
        super().__init__()
        self.gpu, self.memory, self.opened, self.contexts = gpu, {}, set(), []
        self.streams = Streams(self)
        self.copied = 0

    def die(self):
        """Ends the process, and with it the memory that it shares."""
        self.memory.clear()
        self.gpu.shared = {token: one for token, one in self.gpu.shared.items() if one[0] is not self}

    def ipc(self):
        return CudaIpc(CudaCalls(self), self.streams)


class Streams:
    """Streams of a process; a copy is complete only once its stream is synchronised."""

    def __init__(self, process):
        self.process, self.waiting = process, []

    def current(self):
        return 42

    def synchronise(self, stream):
        assert stream == 42
        while self.waiting:
            ctypes.memmove(*self.waiting.pop(0))
            self.process.copied += 1


def allocate(self, size):
    assert self.contexts, "no context is current"
    memory = (ctypes.c_char * size)()
    self.memory[ctypes.addressof(memory)] = memory
    return (ctypes.addressof(memory),)


def free(self, address):
    assert self.contexts, "no context is current"
    del self.memory[address]
    self.gpu.shared = {token: one for token, one in self.gpu.shared.items() if one != (self, address)}
    return ()


def copy(self, to, of, size, stream):
    assert stream == 42
    self.streams.waiting.append((to, of, size))
    return ()


def export(self, address):
    token = f"{id(self)} {address}".encode().ljust(64, b"\1")
    self.gpu.shared[token] = (self, address)
    return (Handle(token),)


def open_handle(self, handle, flag):
    self.calls.append("cuIpcOpenMemHandle")
    assert flag == 1
    owner, address = self.gpu.shared.get(handle.raw.raw, (None, 0))
    if owner is None:
        return (Result.CUDA_ERROR_NO_DEVICE, 0)
    assert owner is not self, "the owner of shared memory cannot open it"
    self.opened.add(address)
    return (self.fails.get("cuIpcOpenMemHandle", Result.CUDA_SUCCESS), address)


def close(self, address):
    self.opened.remove(address)
    return ()


def push(self, context):
    self.contexts.append(context)
    return ()


ANSWERS = {
    "cuMemAlloc": allocate,
    "cuMemFree": free,
    "cuMemcpyDtoDAsync": copy,
    "cuIpcGetMemHandle": export,
    "cuIpcCloseMemHandle": close,
    "cuCtxPushCurrent": push,
    "cuCtxPopCurrent": lambda self: (self.contexts.pop(),),
}
for name, make in ANSWERS.items():
    setattr(FakeProcess, name, answering(name, make))
FakeProcess.cuIpcOpenMemHandle = open_handle
