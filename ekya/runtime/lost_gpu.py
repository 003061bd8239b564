"""Ends a process that has lost its GPU after a CUDA fault; it is then restarted like any that died."""

import logging
import os
import signal

from ekya.learning.device_memory import is_gpu_lost

_LOG = logging.getLogger(__name__)


def end_process_if_gpu_is_lost(error: BaseException) -> None:
    """Kills this process, with all that runs in it, if the error says that the GPU is lost."""
    if is_gpu_lost(error):
        _LOG.critical("this process has lost its GPU and ends: %s", error)
        os.kill(os.getpid(), signal.SIGKILL)
