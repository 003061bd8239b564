"""Lowers the priority of workers behind the control loop and the decoders, inference the least."""

import os
from contextlib import suppress
from pathlib import Path

import torch

from ekya.system.host import freeze_loaded

INFERENCE_NICENESS = 5

TRAINING_NICENESS = 10
"""Of retraining and preparation: where cores are short they take longer, while a late frame is dropped."""

GUEST_NICENESS = 15
"""Of jobs for other servers: where cores are short, a server's own streams keep their shares."""

_THREADS = Path("/proc/self/task")


def lower_priority(niceness: int) -> None:
    """Prepares this process as a worker: one torch thread, and lower priority than other processes.

    Also freezes loaded objects. Linux keeps niceness per thread, and an actor has threads before its first
    line runs, so it is set for each of them.
    """
    torch.set_num_threads(1)
    freeze_loaded()
    threads = [int(task.name) for task in _THREADS.iterdir()] if _THREADS.is_dir() else [0]
    # Lowering the niceness needs privileges, so a process that is nicer already stays so.
    niceness = max(niceness, os.getpriority(os.PRIO_PROCESS, 0))
    for thread in threads:
        # A thread may have ended since it was listed.
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
