"""MPS client for `make gpu-check`: works on a part of the GPU and answers orders with JSON.

    python experiments/gpu_check_client.py 0 3

The numbers are quarters of the GPU's groups of multiprocessors. Orders come on standard input, a line each:
``where`` is answered with the multiprocessors that batches really run on, as this client numbers them, and
with the number granted, ``compute`` with launches a second.
"""

import json
import sys
import time
from collections.abc import Sequence

import torch
from gpu_check_kernels import Kernels

from ekya.gpu.green.levels import Level, LevelPool
from ekya.gpu.green.sm_driver import CudaCalls, CudaDriver

_RUN_S = 2.0
_BLOCKS_A_SM, _ROUNDS, _AT_ONCE = 8, 4000, 4


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
