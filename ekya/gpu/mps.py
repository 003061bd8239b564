"""Shares through CUDA's multi-process service: a percentage of the SMs for each process (DESIGN §6)."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.bucket import Clocks, TokenBucket
from ekya.gpu.nvml import GpuInventory
from ekya.gpu.protocol import (
    Capability,
    Grants,
    Measured,
    Resized,
    ShareHandle,
    ShareJob,
    round_down,
)

PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""Read once, by CUDA, when a process becomes an MPS client."""

CONTROL = "nvidia-cuda-mps-control"
STEP_MILLI = 10
"""A percentage is whole."""

MAX_SOCKET_BYTES = 107
"""The longest path of a UNIX socket; a longer one makes the daemon unreachable."""

_ANSWER_WITHIN_S = 5.0
_FIXED = "the percentage of a running MPS client cannot change; it keeps its cap"


@dataclass(frozen=True, slots=True)
class MpsAnswer:
    """Whether an MPS daemon answers, and what it or its absence means, as a clause."""

    running: bool
    why: str


def ask_daemon() -> MpsAnswer:
    """Asks the daemon for its servers over its control pipe. Makes no CUDA context, starts nothing."""
    control = shutil.which(CONTROL)
    if control is None:
        return MpsAnswer(False, f"{CONTROL} is not on the PATH (it comes with the NVIDIA driver)")
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    pipe = folder / "control"
    if len(os.fsencode(pipe)) > MAX_SOCKET_BYTES:
        return MpsAnswer(False, f"{pipe} is longer than {MAX_SOCKET_BYTES} bytes; use a shorter folder")
    if not pipe.exists():
        return MpsAnswer(False, f"no MPS daemon runs here (start one with `{CONTROL} -d`)")
    try:
        answer = subprocess.run(
            [control],
            input="get_server_list\n",
            capture_output=True,
            text=True,
            timeout=_ANSWER_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return MpsAnswer(False, f"the MPS daemon does not answer ({error})")
    if answer.returncode != 0:
        said = (answer.stderr or answer.stdout).strip().splitlines()
        return MpsAnswer(False, f"the MPS daemon refuses ({said[0] if said else answer.returncode})")
    return MpsAnswer(True, f"an MPS daemon answers at {folder}")


@dataclass(frozen=True, slots=True)
class MpsShares:
    """Caps processes at a percentage of the SMs.

    A client's percentage is fixed while it lives. So an inference, which lives for the whole run, is
    not capped, and neither is a process that starts before it knows its share; what such a process
    may use changes only where a duty cycle is allowed.

    Attributes:
        inventory: the GPUs.
        ask: asks the daemon; tests pass their own.
        duty_cycle: hold jobs to their share under the cap by waiting between batches.
        clocks: what the duty cycle reads; spent time is time inside batches.
    """

    inventory: GpuInventory
    ask: Callable[[], MpsAnswer] = ask_daemon
    duty_cycle: bool = False
    clocks: Clocks | None = None

    def probe(self) -> Capability:
        """Usable where the driver lists a GPU and a daemon answers."""
        answer = self.ask() if self.inventory.gpus else MpsAnswer(False, self.inventory.why)
        return Capability(
            usable=answer.running,
            enforcement="cooperative" if self.duty_cycle else "cap",
            device="cuda",
            capacity_milli=self._capacity_milli() if answer.running else 0,
            step_milli=STEP_MILLI,
            live_resize=self.duty_cycle,
            why=answer.why,
        )

    def quantise(self, shares: Mapping[str, int]) -> Grants:
        """To whole percents of a GPU."""
        return round_down(shares, STEP_MILLI, self._capacity_milli())

    def open(self, gpus: int) -> AbstractContextManager["MpsShares"]:
        """The daemon runs already."""
        return nullcontext(self)

    def actor_env(self, job: ShareJob) -> Mapping[str, str]:
        """The percentage that the process keeps; nothing where it must not be capped."""
        if job.role == "inference" or job.share_milli < STEP_MILLI:
            return {}
        return {PERCENTAGE: str(min(job.share_milli, FULL_GPU_MILLI) // STEP_MILLI)}

    def attach(self, job: ShareJob) -> ShareHandle:
        """A handle that goes by the percentage with which this process was really started."""
        cap_milli = int(os.environ.get(PERCENTAGE, "100")) * STEP_MILLI
        return MpsHandle(cap_milli, job.share_milli, self.duty_cycle, self.clocks)

    def _capacity_milli(self) -> int:
        return len(self.inventory.gpus) * FULL_GPU_MILLI


class MpsHandle:
    """One MPS client's share. A ``ShareHandle``.

    What it measures is time inside batches at the cap: the most that the job can have used, since
    MPS itself counts nothing. A batch has to wait for the GPU before its scope ends.
    """

    def __init__(self, cap_milli: int, share_milli: int, duty_cycle: bool, clocks: Clocks | None) -> None:
        self._cap_milli = cap_milli
        self._duty_cycle = duty_cycle
        wall = clocks or Clocks()
        # Spent time is wall time here: between the two ends of a batch the GPU works for it.
        self._bucket = TokenBucket(FULL_GPU_MILLI, Clocks(wall.wall_ns, wall.wall_ns, wall.wait))
        self.resize(share_milli)

    def resize(self, share_milli: int) -> Resized:
        """To a duty cycle under the cap where that is allowed; otherwise nothing changes."""
        if not self._duty_cycle:
            note = "" if share_milli == self._cap_milli else _FIXED
            return Resized(self._cap_milli, 0, note)
        effective = min(share_milli, self._cap_milli)
        resized = self._bucket.resize(effective * FULL_GPU_MILLI // self._cap_milli)
        note = "" if effective == share_milli else "an MPS client cannot have more than its cap"
        return Resized(effective, resized.took_us, note)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Around one batch, which ends with the GPU idle."""
        with self._bucket.scope():
            yield

    def measured(self) -> Measured:
        """At most what was used: time inside batches, at the cap."""
        inside = self._bucket.measured()
        return Measured(inside.used_us * self._cap_milli // FULL_GPU_MILLI, inside.wall_us)

    def release(self) -> None:
        """Ends every wait."""
        self._bucket.release()
