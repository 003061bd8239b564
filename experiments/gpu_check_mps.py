"""Checks of `make gpu-check`: the MPS daemon, and green contexts in processes of its clients."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_check_report import Finding

from ekya.core.errors import UserError
from ekya.gpu.green.sm_driver import CudaCalls, CudaDriver
from ekya.gpu.mps.service import find_mps, mps_service
from ekya.gpu.nvml import Gpu, GpuInventory

KEPT = 0.9
"""Lowest accepted part of the speed alone that a job keeps beside another."""

SHARED = 1.2
"""Highest accepted sum of the parts of the speed alone that two jobs keep on the same multiprocessors."""

_DAEMON, _STARTS = "an MPS daemon", "starts, or says why not"

_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_CLIENT = Path(__file__).with_name("gpu_check_kernels.py")


def mps() -> Iterator[Finding]:
    """Checks that a daemon starts, and client processes on different groups and on the same."""
    inventory = seen_by_cuda()
    began_s = time.perf_counter()
    try:
        with mps_service(find_mps(inventory), inventory.gpus[:1]) as environment:
            took_s = time.perf_counter() - began_s
            yield Finding(_DAEMON, _STARTS, f"started in {took_s:.2f} s", True, {"start_s": took_s})
            yield from _two_clients(environment.client_environment(0) | {_PERCENTAGE: "100"})
    except UserError as error:
        yield Finding(_DAEMON, _STARTS, f"does not start: {error}", bool(str(error)))
        yield Finding("two clients of MPS", "multiprocessors of their own", "left out: no daemon", None)


def _two_clients(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Checks clients on multiprocessors of their own, and then two on the same ones.

    Only speeds decide: a client of MPS numbers its multiprocessors from 0, whichever they are. The work of a
    launch is in proportion to the multiprocessors, so that those which two clients share halve both speeds.
    """
    with _client(environment, 0, 3) as one, _client(environment, 3, 4) as other:
        clients = (one, other)
        yield places_finding([client.ask("where") for client in clients])
        alone = [client.ask("compute") for client in clients]
        yield apart_finding(alone, _together(clients))
        with _client(environment, 3, 4) as same:
            same.ask("where")
            yield same_finding(alone[1], _together((other, same)))


def _together(clients: "Sequence[_Client]") -> list[float]:
    """Returns launches a second of clients that compute at the same time."""
    for client in clients:
        client.tell("compute")
    return [client.answer() for client in clients]


def places_finding(places: Sequence[Mapping[str, Any]]) -> Finding:
    """Compares the number of multiprocessors that clients ran on with those granted."""
    counts = [(len(place["ids"]), place["granted_sms"]) for place in places]
    return Finding(
        "multiprocessors of two processes that are clients of MPS",
        "as many as were granted; which ones, only the speeds below tell, since each client counts from 0",
        " and ".join(f"{ran_on} of {granted}" for ran_on, granted in counts),
        all(ran_on == granted for ran_on, granted in counts),
        {"places": list(places)},
    )


def apart_finding(alone: Sequence[float], together: Sequence[float]) -> Finding:
    """Compares the speeds of clients on different groups with those alone."""
    kept = [both / single for both, single in zip(together, alone, strict=True)]
    return Finding(
        "three quarters and a quarter of the multiprocessors at the same time, in two processes",
        f"each at least {KEPT:.0%} of its speed alone",
        f"{kept[0]:.1%} and {kept[1]:.1%}",
        min(kept) >= KEPT,
        {"alone_per_s": alone, "together_per_s": together, "kept": kept},
    )


def same_finding(alone: float, together: Sequence[float]) -> Finding:
    """Compares the speeds of two clients on the same groups with that of one alone."""
    kept = [both / alone for both in together]
    return Finding(
        "the same quarter of the multiprocessors in two processes at the same time",
        f"together at most {SHARED:g} of one's speed alone: groups are the same in each client, and a speed "
        "shows what is shared",
        f"{kept[0]:.1%} and {kept[1]:.1%}",
        sum(kept) <= SHARED,
        {"alone_per_s": alone, "together_per_s": together, "kept": kept},
    )


class _Client:
    """Handle of a client process; orders and answers are one line each."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def tell(self, order: str) -> None:
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            said = self._process.stderr.read().strip().splitlines()
            raise RuntimeError(f"a client has ended: {' '.join(said[-1:])}")
        return json.loads(line)

    def ask(self, order: str) -> Any:
        self.tell(order)
        return self.answer()


@contextmanager
def _client(environment: Mapping[str, str], first: int, end: int) -> Iterator[_Client]:
    """Starts a client on these quarters of the GPU's groups."""
    with subprocess.Popen(
        [sys.executable, str(_CLIENT), str(first), str(end)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | dict(environment),
    ) as process:
        try:
            yield _Client(process)
        finally:
            process.kill()


def seen_by_cuda() -> GpuInventory:
    """Returns the first GPU as CUDA reports it, since the NVML library may be missing here."""
    driver = CudaDriver(CudaCalls())
    digits = driver.uuid
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return GpuInventory((Gpu(0, "GPU 0", 0, 0, "GPU-" + "-".join(parts)),), None, "1 NVIDIA GPU")
