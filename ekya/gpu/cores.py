"""How much of the host's cores this process may use."""

import os

from ekya.gpu.cgroups import Cgroups


def cpu_limit(cgroups: Cgroups | None = None) -> float:
    """Cores that this process may use, or a part of one: its affinity mask and its cgroups' quotas.

    Args:
        cgroups: its groups; by default as the kernel tells them.
    """
    cores = float(len(os.sched_getaffinity(0)))
    quota = (cgroups or Cgroups()).cpu_limit()
    return cores if quota is None else min(cores, quota)
