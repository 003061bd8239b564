"""Ctrl-C that a block has handled, and that the caller is still to know of."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def remember_ctrl_c() -> Iterator[None]:
    """Raises ``KeyboardInterrupt`` after the block if Ctrl-C came in it, even if the block handled it.

    Blocks may be nested; each then raises. Another thread than the main one gets no Ctrl-C, and notices none.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def notice(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        (before if callable(before) else signal.default_int_handler)(number, frame)

    before = signal.signal(signal.SIGINT, notice)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt
