"""Thread-based fakes of the Ray calls between servers and coordinator: actors reply, fail or stay silent."""

from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYet

from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError


class Answer(Future):
    """A reference to a reply."""

    def future(self):
        return self


class Actor:
    """An object whose methods have ``remote``; calls run in parallel on ``threads`` threads.

    A call to a ``dead`` actor raises Ray's error; a ``silent`` actor never replies. ``called`` has the
    names of all methods that were called.
    """

    def __init__(self, kept, threads=16):
        self.kept, self.dead, self.silent = kept, False, False
        self._pool = ThreadPoolExecutor(threads)
        self._open, self.called = [], []

    def __getattr__(self, name):
        return _Method(self, name)

    def die(self):
        """Fails all open calls."""
        self.dead = True
        for answer in self._open:
            if not answer.done():
                answer.set_exception(RayActorError())

    def begin_again(self, kept):
        """Starts again after ``die``, as Ray does; callers keep their handle."""
        self.kept, self.dead, self._open = kept, False, []

    def call(self, name, arguments):
        answer = Answer()
        self._open.append(answer)
        self.called.append(name)
        if self.dead:
            answer.set_exception(RayActorError())
        elif not self.silent:
            self._pool.submit(self._work, answer, name, arguments)
        return answer

    def _work(self, answer, name, arguments):
        try:
            told = getattr(self.kept, name)(*arguments)
        except Exception as error:
            raised = RayTaskError(name, str(error), error).as_instanceof_cause()
            if not answer.done():
                answer.set_exception(raised)
        else:
            if not answer.done():
                answer.set_result(told)


class _Method:
    def __init__(self, actor, name):
        self._actor, self._name = actor, name

    def remote(self, *arguments):
        return self._actor.call(self._name, arguments)


class Ray:
    """Fakes of ``ray.get`` and ``ray.wait``."""

    @staticmethod
    def get(answer, timeout=None):
        try:
            return answer.result(timeout)
        except NotYet:
            if answer.done():
                raise
            raise GetTimeoutError from None

    @staticmethod
    def wait(answers, timeout=None, num_returns=1):
        assert num_returns in (1, len(answers)), "nothing here waits for some"
        done, _ = wait(answers, timeout, FIRST_COMPLETED if num_returns == 1 else ALL_COMPLETED)
        first = [answer for answer in answers if answer in done][:num_returns]
        return first, [answer for answer in answers if answer not in first]
