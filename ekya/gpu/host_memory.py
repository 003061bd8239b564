"""How much of the host's memory this process may use."""

from dataclasses import dataclass
from pathlib import Path

from ekya.gpu.cgroups import Cgroups

_MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of the machine.

    Attributes:
        total_bytes: that it has.
        free_bytes: that can still be had; cgroups may leave less than the machine has.
    """

    total_bytes: int
    free_bytes: int


def read_host_memory(meminfo: Path = _MEMORY, cgroups: Cgroups | None = None) -> HostMemory | None:
    """Memory now; None where the machine does not say.

    Args:
        meminfo: what the kernel tells of the machine.
        cgroups: the groups of this process; by default as the kernel tells them.
    """
    try:
        told = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        total, free = (int(told[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return None
    left = (cgroups or Cgroups()).memory_free_bytes()
    return HostMemory(total, free if left is None else min(free, left))
