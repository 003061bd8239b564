"""The only module of the tests that reads a clock: waits for events, returns nothing that can be compared.

A test that decides by a clock is red on the next machine. Speed is for benchmarks in ``experiments``.
"""

import gc
import sys
import threading
import time

HANG_GUARD_S = 120.0
"""How long a test waits for what must happen, on every machine: only a hang takes so long."""

LONG_GUARD_S = 1200.0
"""The same for tests marked ``long``, which wait for whole runs."""

_POLL_S = 0.01

_LOOKING = threading.Lock()

_BLOCKING = (threading.Condition.wait.__code__, threading.Thread._wait_for_tstate_lock.__code__)


def wait_until(condition, why="", guard_s=HANG_GUARD_S):
    """Returns once ``condition()`` is true; ``why`` is what a failure says, or a function for it."""
    gives_up_s = time.monotonic() + guard_s
    try:
        while not condition():
            if time.monotonic() > gives_up_s:
                raise AssertionError("what was waited for did not happen")
            time.sleep(_POLL_S)
    except BaseException as stopped:  # most often the guard of the whole test, which began earlier
        stopped.add_note(why() if callable(why) else why)
        raise


def wait_until_blocked(thread):
    """Returns once a thread waits in a condition, an event or a join: it has come as far as it can."""

    def is_blocked():
        # Python 3.11 looks at all threads under a lock, and may collect garbage there: if a finalizer lets
        # another thread run that starts or ends, and so needs the lock, both wait for ever.
        with _LOOKING:
            collects = gc.isenabled()
            gc.disable()
            try:
                frame = sys._current_frames().get(thread.ident)
            finally:
                if collects:
                    gc.enable()
        return frame is not None and frame.f_code in _BLOCKING

    wait_until(is_blocked, lambda: f"{thread} runs on, or has ended")


def call_at(start, *arguments, in_s=0.0):
    """Calls ``start(instant_ns, *arguments)``: an instant of the monotonic clock, ``in_s`` seconds from now.

    For interfaces that are told when a run begins, and for what stands in for a network, which keeps to it.
    """
    start(time.monotonic_ns() + round(in_s * 1e9), *arguments)


def use_processor(seconds):
    """Uses so much processor time of this thread."""
    ends_ns = time.thread_time_ns() + round(seconds * 1e9)
    while time.thread_time_ns() < ends_ns:
        pass
