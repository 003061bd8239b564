"""Two small kernels, compiled here: one that reports its multiprocessor, one that only computes.

    python experiments/gpu_check_kernels.py 0 3

works as a client of MPS on a part of the GPU and answers orders with JSON. The numbers are quarters of the
GPU's groups of multiprocessors. Orders come on standard input, a line each: ``where`` is answered with the
multiprocessors that batches really run on, as this client numbers them, and with the number granted,
``compute`` with launches a second.
"""

import ctypes
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from cuda.bindings import driver, nvrtc

from ekya.gpu.green.levels import Level, LevelPool
from ekya.gpu.green.sm_driver import CudaCalls, CudaDriver

_SOURCE = rb"""
extern "C" __global__ void where(unsigned* ids, long long cycles) {
    unsigned id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    long long began = clock64();
    while (clock64() - began < cycles) {}
    if (threadIdx.x == 0) ids[blockIdx.x] = id;
}

extern "C" __global__ void compute(float* out, int rounds) {
    float a = threadIdx.x * 1e-6f, b = a + 1.0f, c = a + 2.0f, d = a + 3.0f;
    for (int i = 0; i < rounds; ++i) {
        a = fmaf(a, 0.999f, 0.001f);
        b = fmaf(b, 0.998f, 0.002f);
        c = fmaf(c, 0.997f, 0.003f);
        d = fmaf(d, 0.996f, 0.004f);
    }
    if (a + b + c + d == -1.0f) out[0] = a;
}
"""

THREADS = 1024
"""Threads of a computing block: two blocks fill a multiprocessor."""

_SPIN_CYCLES = 200_000
"""A block spins this long, about a tenth of a millisecond, so that other blocks must run elsewhere."""

_RUN_S = 2.0
_BLOCKS_A_SM, _ROUNDS, _AT_ONCE = 8, 4000, 4


class Kernels:
    """Both kernels on torch's current GPU. Streams are addresses."""

    def __init__(self) -> None:
        """Compiles them for this GPU, in torch's context."""
        self._out = torch.zeros(1, device="cuda")
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        library = _ask(driver.cuLibraryLoadData, _compiled(), [], [], 0, [], [], 0)
        self._where = _function(library, b"where")
        self._compute = _function(library, b"compute")

    def where(self, stream: int) -> set[int]:
        """Returns the multiprocessors on which many short blocks of this stream ran."""
        blocks = 16 * self.sms
        ids = torch.full((blocks,), -1, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        self._launch(self._where, blocks, 128, stream, (ids, ctypes.c_longlong(_SPIN_CYCLES)))
        _ask(driver.cuStreamSynchronize, stream)
        return {int(one) for one in ids.cpu().unique()}

    def compute(self, stream: int, blocks: int, rounds: int) -> None:
        """Launches work that depends only on multiprocessors; returns without waiting for it."""
        self._launch(self._compute, blocks, THREADS, stream, (self._out, ctypes.c_int(rounds)))

    def _launch(
        self, function: Any, blocks: int, threads: int, stream: int, arguments: tuple[Any, Any]
    ) -> None:
        tensor, number = arguments
        values = (tensor.data_ptr(), number.value)
        kinds = (ctypes.c_void_p, type(number))
        _ask(driver.cuLaunchKernel, function, blocks, 1, 1, threads, 1, 1, 0, stream, (values, kinds), 0)


def _compiled() -> bytes:
    major, minor = torch.cuda.get_device_capability(0)
    program = _ask(nvrtc.nvrtcCreateProgram, _SOURCE, b"gpu_check.cu", 0, [], [])
    options = [f"--gpu-architecture=sm_{major}{minor}".encode()]
    _ask(nvrtc.nvrtcCompileProgram, program, len(options), options)
    code = b" " * _ask(nvrtc.nvrtcGetCUBINSize, program)
    _ask(nvrtc.nvrtcGetCUBIN, program, code)
    return code


def _function(library: Any, name: bytes) -> Any:
    # A library's kernel belongs to no context, so it can be launched on the streams of all contexts.
    return driver.CUfunction(int(_ask(driver.cuLibraryGetKernel, library, name)))


def _ask(function: Any, *arguments: Any) -> Any:
    error, *outputs = function(*arguments)
    if int(error) != 0:
        raise RuntimeError(f"{function.__name__}: {error.name}")
    return outputs[0] if len(outputs) == 1 else outputs


def main(arguments: Sequence[str]) -> None:
    """Answers orders until standard input ends."""
    torch.cuda.init()
    kernels = Kernels()
    pool = LevelPool(CudaDriver(CudaCalls()))
    first, end = (pool.layout.groups * int(one) // 4 for one in arguments)
    level = pool.level(first, end - first)
    for order in sys.stdin:
        answer: object
        if order.strip() == "where":
            answer = {"ids": sorted(kernels.where(level.stream)), "granted_sms": level.sms}
        else:
            answer = _launches_a_second(kernels, level)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _launches_a_second(kernels: Kernels, level: Level) -> float:
    stream = torch.cuda.ExternalStream(level.stream)
    launches, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < _RUN_S:
        for _ in range(_AT_ONCE):
            kernels.compute(level.stream, _BLOCKS_A_SM * level.sms, _ROUNDS)
        stream.synchronize()
        launches += _AT_ONCE
    return launches / (time.perf_counter() - began_s)


if __name__ == "__main__":
    main(sys.argv[1:])
