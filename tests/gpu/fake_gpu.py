"""Fakes of a GPU: a driver that checks how it is used, and streams on a virtual clock."""

import threading
from collections import defaultdict
from contextlib import contextmanager

from waiting import HANG_GUARD_S

from ekya.gpu.backends.token_bucket import Clocks
from ekya.gpu.green.sm_driver import SmDriverError, SmGroup

MS = 1_000_000


class FakeDriver:
    """An ``SmDriver`` that turns every misuse into an AssertionError, and can fail at each call."""

    uuid = "c0ffee"

    def __init__(self, sms=132, step=8, joins_rest=True, granted=lambda sms: sms):
        self.sms, self.step, self.joins_rest, self.granted = sms, step, joins_rest, granted
        self.calls = []
        self.fails = set()
        self.contexts = {}
        self.streams = {}
        self._splits = 0
        self._made = 0

    def whole(self):
        self._call("whole")
        return SmGroup(self.sms, "whole")

    def split_groups(self, whole):
        self._call("split")
        assert whole.resource == "whole"
        self._splits += 1
        count, rest = divmod(self.sms, self.step)
        groups = tuple(SmGroup(self.step, (self._splits, place)) for place in range(count))
        return groups, SmGroup(rest, (self._splits, "rest")) if rest else None

    def make_context(self, groups):
        places = [one.resource for one in groups]
        assert len({split for split, _ in places}) == 1, "groups of two splits in one descriptor"
        assert len(set(places)) == len(places)
        if "rest" in (place for _, place in places) and not self.joins_rest:
            raise SmDriverError("cuDevResourceGenerateDesc: CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION")
        numbers = [place for _, place in places if place != "rest"]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "groups that are not neighbours"
        self._call("make_context")
        self._made += 1
        self.contexts[self._made] = groups
        return self._made

    def context_sms(self, context):
        self._call("context_sms")
        return self.granted(sum(one.sms for one in self.contexts[context]))

    def make_stream(self, context):
        self._call("make_stream")
        assert context in self.contexts
        self._made += 1
        self.streams[1000 + self._made] = context
        return 1000 + self._made

    def is_on(self, stream, context):
        self._call("is_on")
        return self.streams[stream] == context

    def destroy_stream(self, stream):
        self.calls.append("destroy_stream")
        del self.streams[stream]

    def destroy_context(self, context):
        self.calls.append("destroy_context")
        assert context not in self.streams.values(), "a context was destroyed before its streams"
        del self.contexts[context]

    def groups_on(self, stream):
        """Returns the numbers of the groups that a stream's kernels run on."""
        return {one.resource[1] for one in self.contexts[self.streams[stream]]}

    def _call(self, name):
        self.calls.append(name)
        if name in self.fails:
            raise SmDriverError(f"{name}: CUDA_ERROR_OUT_OF_MEMORY")


class FakeMark:
    def __init__(self, gpu, at_ns):
        self.gpu, self.at_ns = gpu, at_ns

    def reached(self):
        return self.gpu.now_ns >= self.at_ns

    def wait(self):
        self.gpu.waits += 1
        self.gpu.now_ns = max(self.gpu.now_ns, self.at_ns)

    def ns_since(self, earlier):
        assert self.reached() and earlier.reached(), "time between marks that the GPU has not come to"
        return self.at_ns - earlier.at_ns


class FakeGpu:
    """``GpuStreams`` on virtual time: a kernel runs after the earlier kernels of its stream."""

    DEFAULT = 0

    def __init__(self):
        self.now_ns = 0
        self.waits = 0
        self.entered = []
        self.synchronised = []
        self._busy_until = defaultdict(int)
        self._own = threading.local()
        self.clocks = Clocks(lambda: self.now_ns, lambda: 0, self._sleep)

    def enter_stream(self, stream):
        self._own.stream = stream
        self.entered.append(stream)

    def current(self):
        return getattr(self._own, "stream", self.DEFAULT)

    def wait_for_stream(self, stream):
        self.synchronised.append(stream)
        self.now_ns = max(self.now_ns, self._busy_until[stream])

    def record_mark(self):
        return FakeMark(self, max(self.now_ns, self._busy_until[self.current()]))

    def launch(self, ms):
        """Queues a kernel on the calling thread's stream and returns immediately."""
        stream = self.current()
        self._busy_until[stream] = max(self.now_ns, self._busy_until[stream]) + round(ms * MS)

    def is_busy(self, stream):
        return self._busy_until[stream] > self.now_ns

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
