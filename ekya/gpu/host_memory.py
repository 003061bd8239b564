"""Host memory that this process may use."""

from dataclasses import dataclass
from pathlib import Path

from ekya.gpu.cgroups import Cgroups

_MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of the machine.

    Attributes:
        total_bytes: total memory.
        free_bytes: memory still available; cgroups may leave less than the machine has.
    """

    total_bytes: int
    free_bytes: int


def read_host_memory(meminfo: Path = _MEMORY, cgroups: Cgroups | None = None) -> HostMemory | None:
    """Returns the memory now; None where the kernel does not report it.

    Args:
        meminfo: the kernel's file on memory.
        cgroups: groups of this process; by default read from the kernel.
    """
    try:
        told = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        total, free = (int(told[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return None
    left = (cgroups or Cgroups()).memory_free_bytes()
    return HostMemory(total, free if left is None else min(free, left))
