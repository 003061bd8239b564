"""Workers stand back where cores are short: the control loop and the decoders go first, guests go last."""

import os
from pathlib import Path

import torch

from ekya.runtime.loaded import keep_loaded

NICENESS = 5
"""Of every worker alike, so shares among them stay as they are."""

GUEST_NICENESS = 10
"""Of what trains for others: where cores are short, a server's own streams have what they were promised."""

_THREADS = Path("/proc/self/task")


def stand_back(niceness: int = NICENESS) -> None:
    """Makes this process a worker: one thread of torch, and less urgent than those that are none.

    What it has loaded is loaded for good. Linux keeps niceness by thread, and an actor has threads before its
    first line runs.
    """
    torch.set_num_threads(1)
    keep_loaded()
    threads = [int(task.name) for task in _THREADS.iterdir()] if _THREADS.is_dir() else [0]
    niceness = max(niceness, os.getpriority(os.PRIO_PROCESS, 0))
    for thread in threads:
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
