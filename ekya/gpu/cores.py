"""How much of the host this process may use."""

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(quota_file: Path = _QUOTA) -> int:
    """Cores that this process may run on: what its affinity mask and its container's quota leave.

    At least 1. A quota of one and a half cores counts as one.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = quota_file.read_text().split()
        limit = cores if quota == "max" else int(quota) // int(period)
    except (OSError, ValueError):
        limit = cores
    return max(1, min(cores, limit))
