"""The service process's side of its supervisor: signs of life, and an end with the supervisor's."""

import os
import time
from contextlib import suppress

from ekya.system.processes import die_with

HEARTBEAT_FD = "EKYA_HEARTBEAT_FD"
"""Variable with the descriptor to which the service writes a byte as a sign of life."""

SUPERVISOR_PID = "EKYA_SUPERVISOR_PID"
"""Variable with the supervisor's pid."""

FULL_DISK = 74
"""Exit code of a service that a full disk has kept from starting."""

AGAIN = 75
"""Exit code of a service process that ended in order to be started again, with what was changed."""

_EVERY_S = 0.5


class Heartbeat:
    """Signs of life. The first one says that the service is ready; later ones must not fail to come.

    Made once in the service process, which must not hand the descriptor to others. Without a supervisor calls
    do nothing.
    """

    def __init__(self) -> None:
        descriptor = os.environ.pop(HEARTBEAT_FD, None)
        self._descriptor = None if descriptor is None else int(descriptor)
        self._beaten_s = float("-inf")
        if self._descriptor is not None:
            os.set_inheritable(self._descriptor, False)

    def __call__(self) -> None:
        """Gives a sign of life. Never waits; costs a look at the clock if the last one is fresh."""
        now_s = time.monotonic()
        if self._descriptor is not None and now_s - self._beaten_s >= _EVERY_S:
            self._beaten_s = now_s
            # A supervisor that is stopped reads nothing, and one that is dead neither.
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self._descriptor, b".")


def die_with_parent() -> None:
    """Has the kernel send SIGTERM to this process when its supervisor dies; nothing without a supervisor.

    Call it first of all in the service process, from any thread.
    """
    supervisor = os.environ.pop(SUPERVISOR_PID, None)
    if supervisor is not None:
        die_with(int(supervisor))
