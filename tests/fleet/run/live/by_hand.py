"""Handles whose objects are in this process, and a site's doors without a network, as tests want them."""

from concurrent.futures import Future, ThreadPoolExecutor

from ekya.core.errors import UserError
from ekya.fleet.run.calls import CallError
from ekya.fleet.run.sites.client import SiteHandle


class ByHand:
    """A ``Handle``; calls run in parallel on ``threads`` threads, or without any before ``call`` returns.

    A call to a ``dead`` object raises an error; a ``silent`` one never replies. ``called`` has the names
    of all methods that were called.
    """

    def __init__(self, kept, threads=16):
        self.kept, self.dead, self.silent = kept, False, False
        self._pool = ThreadPoolExecutor(threads) if threads else None
        self._open, self.called = [], []

    def call(self, method, *arguments):
        answer = Future()
        self._open.append(answer)
        self.called.append(method)
        if self.dead:
            answer.set_exception(CallError("nobody is there"))
        elif self.silent:
            pass
        elif self._pool is None:
            self._work(answer, method, arguments)
        else:
            self._pool.submit(self._work, answer, method, arguments)
        return answer

    def end_process(self):
        self.die()

    def die(self):
        """Fails all open calls."""
        self.dead = True
        for answer in self._open:
            if not answer.done():
                answer.set_exception(CallError("it died"))

    def begin_again(self, kept):
        """Starts again after ``die``; callers keep their handle."""
        self.kept, self.dead, self._open = kept, False, []

    def _work(self, answer, method, arguments):
        try:
            told, raised = getattr(self.kept, method)(*arguments), None
        except (UserError, CallError) as error:
            told, raised = None, error
        except Exception as error:
            told, raised = None, CallError(f"{type(error).__name__}: {error}")
        if answer.done():
            return
        if raised is not None:
            answer.set_exception(raised)
        else:
            answer.set_result(told)


class Doors:
    """A ``SiteServer`` that nobody reaches; ``offered`` has the handles of what it offers at the moment."""

    def __init__(self):
        self.offered = {}

    def offer(self, name, handle, methods):
        assert methods
        self.offered[name] = handle
        return SiteHandle("here:1", name, "")

    def withdraw(self, name):
        self.offered.pop(name, None)
