"""Fake of a GPU on a virtual clock."""

import threading
from contextlib import contextmanager

from waiting import HANG_GUARD_S

from ekya.gpu.backends.token_bucket import Clocks

MS = 1_000_000


class FakeMark:
    def __init__(self, gpu, at_ns):
        self.gpu, self.at_ns = gpu, at_ns

    def query(self):
        return self.gpu.now_ns >= self.at_ns

    def synchronize(self):
        self.gpu.waits += 1
        self.gpu.now_ns = max(self.gpu.now_ns, self.at_ns)

    def elapsed_time(self, later):
        assert self.query() and later.query(), "time between marks that the GPU has not come to"
        return (later.at_ns - self.at_ns) / MS


class FakeGpu:
    """Runs kernels one after the other."""

    def __init__(self):
        self.now_ns = 0
        self.waits = 0
        self._busy_until = 0
        self.clocks = Clocks(lambda: self.now_ns, lambda: 0, self._sleep)

    def record_mark(self):
        return FakeMark(self, max(self.now_ns, self._busy_until))

    def start_cuda(self):
        return self.record_mark

    def launch(self, ms):
        """Queues a kernel and returns immediately."""
        self._busy_until = max(self.now_ns, self._busy_until) + round(ms * MS)

    def _sleep(self, condition, seconds):
        if seconds is None:
            assert condition.wait(HANG_GUARD_S)
        else:
            self.now_ns += round(seconds * 1e9) + 1


@contextmanager
def thread(work):
    """Runs ``work`` beside the test, and raises its error."""
    errors = []

    def run():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    running = threading.Thread(target=run, daemon=True)
    running.start()
    yield running
    running.join(HANG_GUARD_S)
    assert not running.is_alive(), "the thread did not end"
    if errors:
        raise errors[0]
