"""CPU cores that this process may use."""

import os

from ekya.gpu.cgroups import Cgroups


def cpu_limit(cgroups: Cgroups | None = None) -> float:
    """Returns the cores (possibly a fraction) that the affinity mask and cgroup quotas leave this process.

    Args:
        cgroups: groups of this process; by default read from the kernel.
    """
    cores = float(len(os.sched_getaffinity(0)))
    quota = (cgroups or Cgroups()).cpu_limit()
    return cores if quota is None else min(cores, quota)
