"""Ties between processes that Linux offers: adoption of orphans by an ancestor, and death with the parent."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies, which it must then reap.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent_pid: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Has the kernel send a signal to this process when its parent dies, also if it is dead already.

    Args:
        parent_pid: of the process that started this one.
        number: signal to be sent.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
