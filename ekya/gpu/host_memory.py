"""How much of the host's memory this process may use."""

from collections.abc import Mapping
from pathlib import Path

from ekya.gpu.cgroups import Cgroups

_MEMORY = Path("/proc/meminfo")


def free_memory_bytes(meminfo: Path = _MEMORY, cgroups: Cgroups | None = None) -> int | None:
    """Memory that can still be had, of the machine and of the cgroups; None where nobody says.

    Args:
        meminfo: what the kernel tells of the machine.
        cgroups: the groups of this process; by default as the kernel tells them.
    """
    left = (_told(meminfo).get("MemAvailable"), (cgroups or Cgroups()).memory_free_bytes())
    return min((one for one in left if one is not None), default=None)


def total_memory_bytes(meminfo: Path = _MEMORY) -> int | None:
    """Memory of the machine; None where it does not say."""
    return _told(meminfo).get("MemTotal")


def _told(meminfo: Path) -> Mapping[str, int]:
    try:
        pairs = (line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        return {name: int(value.split()[0]) * 1024 for name, value in pairs}
    except (OSError, ValueError, IndexError):
        return {}
