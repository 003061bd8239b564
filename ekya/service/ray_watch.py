"""Ends a service process whose Ray has died: only a new process can start Ray again.

Otherwise the death of Ray's node would look like that of every worker, which it takes with it, and again at
each attempt to start one: all cameras would be set aside. A service whose control store has died serves for
a minute, but starts nothing.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from ekya.system.processes import runs, still_runs

_LOG = logging.getLogger(__name__)

_PROCESSES = ("raylet", "gcs_server")
_EVERY_S = 0.1
"""Soon: what the loop hears of dying workers is forgotten at a restart if no window has opened since."""

_FAILED = 1


@contextmanager
def ended_with_ray(end: Callable[[int], object] = os._exit) -> Iterator[None]:
    """Watches Ray's processes of this process during a block, in a thread of its own.

    Args:
        end: ends this process with an exit code. Without an orderly end, which would wait for Ray; the
            supervisor ends what is left.
    """
    children = psutil.Process().children()
    watched = {name: one for one in children for name in _PROCESSES if runs(one, name)}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_EVERY_S):
            for name, process in watched.items():
                if not still_runs(process) and not over.is_set():
                    _LOG.error("Ray's %s has died; the service is started again", name)
                    end(_FAILED)
                    return

    thread = threading.Thread(target=watch, name="ray-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
