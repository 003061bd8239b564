"""Item of `make gpu-check`: how many clients MPS takes, and how soon it serves after a client's fault.

As a script it is a client, without torch: it makes a context, says ``ok`` or why not, and ends with its
input. On the line ``fault`` it stores to a wrong address, which stops the server with all clients.
"""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gpu_check_process import Finding, Rig

from ekya.core.errors import UserError
from ekya.gpu.backends.registry import SHARE_BACKENDS, Machine
from ekya.gpu.mps.backend import NoCudaError, make_context
from ekya.gpu.mps.service import find_mps, mps_service
from ekya.gpu.nvml import list_gpus

TRIED, OK, HEALED_S = 64, "ok", 20.0
"""Clients that are started, more than a GPU takes; what a client says; time to heal."""

_FAULT = b""".version 6.4
.target sm_75
.address_size 64
.visible .entry fault() {
    .reg .u64 %address;
    mov.u64 %address, 16;
    st.global.u64 [%address], %address;
    ret;
}
"""


@contextmanager
def mps_clients() -> Iterator[tuple[Mapping[str, str], str]]:
    """Yields the environment of clients of a daemon on the first GPU, and empty text; or nothing, and why."""
    inventory = list_gpus()
    try:
        with mps_service(find_mps(inventory), inventory.gpus[:1]) as service:
            yield service.clients[0], ""
    except UserError as error:
        yield {}, f"not under MPS: {error}"


def check_mps(rig: Rig, script: Path = Path(__file__), tried: int = TRIED) -> Iterator[Finding]:
    """Counts the clients, each a process of this script, until one is refused; then one of them faults."""
    most = SHARE_BACKENDS["mps"](Machine(1.0, list_gpus())).probe_machine().most_processes
    name = "clients that MPS takes"
    with mps_clients() as (environment, why), ExitStack() as stack:
        if why:
            yield Finding(name, "measured", f"left out: {why}", None)
            return
        # The first alone, since the daemon starts its server for it.
        clients = [stack.enter_context(_client(environment, script))]
        said = [_line_of(clients[0])]
        clients += [stack.enter_context(_client(environment, script)) for _ in range(tried - 1)]
        said += map(_line_of, clients[1:])
        fine, refused = said.count(OK), "; ".join(sorted({line for line in said if line != OK}))
        told = f"{fine} of {tried}; others: {refused or 'none'}"
        yield Finding(name, f"at least {most}, as runs count", told, fine >= most, {"clients": fine})
        faulty = clients[said.index(OK)]
        faulty.stdin.write("fault\n")
        faulty.stdin.flush()
        results, began_s = _line_of(faulty), time.monotonic()
        serves, healed_s = False, 0.0
        while not serves and healed_s < HEALED_S:
            with _client(environment, script) as new:
                serves = _line_of(new) == OK
            healed_s = time.monotonic() - began_s
        yield Finding(
            "MPS after a client's illegal address",
            f"serves new clients within {HEALED_S:g} s",
            f"{'after' if serves else 'not within'} {healed_s:.1f} s; results of the driver: {results}",
            serves and results.split()[-1] != "0",
            {"healed_s": healed_s, "results": results},
        )


def _client(environment: Mapping[str, str], script: Path) -> "subprocess.Popen[str]":
    """Starts a client; at the end of a block its input ends, and so does it."""
    command, pipe, own = [sys.executable, str(script)], subprocess.PIPE, {**os.environ, **environment}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=own)


def _line_of(client: "subprocess.Popen[str]") -> str:
    return client.stdout.readline().strip() or "nothing"


def join_server() -> str:
    """Makes a context, with retries while the server starts; returns ``ok``, or why there is none."""
    for left in reversed(range(60)):
        try:
            make_context()
            break
        except NoCudaError as error:
            if not left or not error.mps_starts:
                return str(error)
        time.sleep(0.25)
    return OK


def cause_fault() -> str:
    """Launches a kernel that stores to a wrong address; returns the results of the driver's calls."""
    driver, (context, module, kernel) = ctypes.CDLL("libcuda.so.1"), (ctypes.c_void_p() for _ in range(3))
    results = [
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        driver.cuCtxSetCurrent(context),
        driver.cuModuleLoadData(ctypes.byref(module), _FAULT),
        driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"fault"),
        driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None),
        driver.cuCtxSynchronize(),
    ]
    return " ".join(map(str, results))


if __name__ == "__main__":
    sys.stdout.write(f"{join_server()}\n")
    sys.stdout.flush()
    if sys.stdin.readline().strip() == "fault":
        sys.stdout.write(f"{cause_fault()}\n")
