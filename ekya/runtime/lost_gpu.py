"""After a fault of CUDA a process can use its GPU no more: it ends, and is started again as any that died."""

import logging
import os
import signal

from ekya.learning.device_memory import is_gpu_lost

_LOG = logging.getLogger(__name__)


def end_process_if_gpu_is_lost(error: BaseException) -> None:
    """Ends this process, with all that runs in it, where the error says so."""
    if is_gpu_lost(error):
        _LOG.critical("this process has lost its GPU and ends: %s", error)
        os.kill(os.getpid(), signal.SIGKILL)
