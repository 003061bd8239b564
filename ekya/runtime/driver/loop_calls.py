"""Calls that other threads have the thread of a run's loop make, and wait for."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from ekya.core.errors import UserError
from ekya.runtime.driver.executor import RayExecutor

_ANSWER_S = 15.0
"""Longest wait for the thread of the loop, which never waits itself for long."""

_OVER = "the service is stopping"
_UNWRITTEN = "it is asked for, but not in the journal yet; see whether the disk is full"

_T = TypeVar("_T")


class LoopCalls:
    """Has the thread of the loop make calls. Any thread may call.

    Args:
        executor: of the loop.
    """

    def __init__(self, executor: RayExecutor) -> None:
        self._executor = executor
        self._open: set[Future[Any]] = set()
        self._is_over = False

    def make_call(self, change: Callable[[], _T], reads: bool = False) -> _T:
        """Returns the result of a call that the thread of the loop makes; raises as the call.

        What the call emits is in the journal when this returns. One that only ``reads`` emits nothing.

        Raises:
            UserError: the loop does not answer, and the call is not made any more then; or the journal cannot
                be written.
        """
        done: Future[_T] = Future()

        def call() -> None:
            # Nothing may be changed for one who was told that it is not.
            if not done.set_running_or_notify_cancel():
                return
            try:
                result = change()
            except Exception as error:
                done.set_exception(error)
            else:
                settle = partial(_settle, done, result)
                settle() if reads else self._executor.call_when_written(settle)

        with self.fail_at_end(done):
            if self._is_over:
                raise UserError(_OVER)
            self._executor.post_call(call)
            try:
                return done.result(_ANSWER_S)
            except TimeoutError:
                if done.cancel():
                    raise UserError(
                        f"the service has not answered within {_ANSWER_S:g} s; try again"
                    ) from None
            # The call was made meanwhile, and what it emitted is still to be written.
            try:
                return done.result(_ANSWER_S)
            except TimeoutError:
                raise UserError(_UNWRITTEN) from None

    @contextmanager
    def fail_at_end(self, future: Future[Any]) -> Iterator[None]:
        """Context that waits for a future, which fails when the loop has ended."""
        # Before ``_is_over`` is read: of this and ``close``, one sees what the other has done.
        self._open.add(future)
        try:
            yield
        finally:
            self._open.discard(future)

    def close(self) -> None:
        """Ends what waits for the loop, which has ended."""
        self._is_over = True
        for waiting in tuple(self._open):
            with suppress(InvalidStateError):
                waiting.set_exception(UserError(_OVER))


def _settle(done: Future[_T], result: _T) -> None:
    """Gives a future its result, unless it has one: what waits for the loop is ended with it."""
    with suppress(InvalidStateError):
        done.set_result(result)
