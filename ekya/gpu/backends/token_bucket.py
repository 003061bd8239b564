"""Token bucket that limits a job to its share of a GPU's or core's time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.backend import Measured, Resized

BURST_US = 100_000
"""Largest unused share, as time, that a job may catch up on."""

ANSWER_WITHIN_S = 2.0
"""Time that a resize waits for a running batch that began at a larger share."""

_BUSY = "a batch that began at a larger share has not ended yet"

_GRACE = 1_000_000 * FULL_GPU_MILLI
"""A debt under a millisecond is kept but not waited for, since sleeping is not that precise."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks of a bucket; tests pass their own.

    Attributes:
        wall_ns: monotonic clock.
        spent_ns: the calling thread's use of the shared resource so far.
        wait: waits on the condition until it is notified or the seconds are over (None: only until it is
            notified).
    """

    wall_ns: Callable[[], int] = time.monotonic_ns
    spent_ns: Callable[[], int] = time.thread_time_ns
    wait: Callable[[threading.Condition, float | None], object] = threading.Condition.wait


class TokenBucket:
    """Limits one job to its share. A ``ShareHandle``.

    The balance grows by share x time and falls by the use of batches. A batch begins only without debt, and
    ends by waiting until its debt is earned back; at share 0, where no time earns it back, the next batch
    waits instead. So over any interval a job uses at most share x time, plus the burst, plus one batch; a
    debt is never larger than the last batch, and is earned back at the *current* share.

    Unused shares are limited to the burst when a batch begins and after it is charged, but not while it
    runs: a batch longer than the burst would otherwise lose what it earns by running.

    Several threads of a job share one bucket: each is charged its own use, their sum is limited to the
    share, and each may overdraw by its own batch. Their order is unspecified. Threads that a library starts
    by itself are not counted: torch and OpenCV must run on one thread.
    """

    def __init__(self, share_milli: int, clocks: Clocks | None = None, burst_us: int = BURST_US) -> None:
        self._clocks = clocks or Clocks()
        self._burst_us = burst_us
        self._changed = threading.Condition()
        self._share_milli = _valid(share_milli)
        self._released = False
        self._began_at_milli: dict[int, int] = {}
        # In thousandths of a nanosecond, so that the balance stays an exact integer.
        self._balance = 0
        self._earned_at_ns = self._clocks.wall_ns()
        self._used_ns = 0
        self._measured_at_ns = self._earned_at_ns

    def resize(self, share_milli: int) -> Resized:
        """Changes the share immediately, also for waiting threads, but not for running batches.

        Returns when no other thread runs a batch that began at a larger share; if one does for too long,
        the result is not settled.

        Raises:
            ValueError: the share is negative.
        """
        began_ns = self._clocks.wall_ns()
        with self._changed:
            # The time until now earned at the old share.
            self._earn()
            self._share_milli = _valid(share_milli)
            self._changed.notify_all()
            self._wait_for_boundary(share_milli, began_ns + round(ANSWER_WITHIN_S * 1e9))
            holds_milli = max(share_milli, self._under_way_milli())
        settled = holds_milli == share_milli
        took_us = (self._clocks.wall_ns() - began_ns) // 1000
        return Resized(holds_milli, took_us, "" if settled else _BUSY, settled)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Context manager around one batch. Does not nest.

        At share 0 waits for a resize or release. A batch that raises is charged, and its debt is left to
        the next one.
        """
        self.wait_for_turn()
        before_ns = self._clocks.spent_ns()
        try:
            with self.under_way():
                yield
        except BaseException:
            self.charge_use(self._clocks.spent_ns() - before_ns)
            raise
        self.charge_use(self._clocks.spent_ns() - before_ns)
        # After ``under_way``: a resize need not wait until the debt is earned back.
        with self._changed:
            self._wait_out_debt(for_ever=False)

    def wait_for_turn(self) -> None:
        """Waits until there is no debt and the share is not 0, or until the job is released.

        For callers that measure a batch later and then call ``charge_use``; others use ``scope``.
        """
        with self._changed:
            while self._share_milli == 0 and not self._released:
                self._clocks.wait(self._changed, None)
                self._earn()
            self._wait_out_debt()
            self._limit()

    def charge_use(self, used_ns: int) -> None:
        """Charges the use of a batch; no use changes nothing, so a running batch keeps what it has earned."""
        if not used_ns:
            return
        with self._changed:
            self._used_ns += used_ns
            self._earn()
            self._balance -= used_ns * FULL_GPU_MILLI
            self._limit()

    def measured(self) -> Measured:
        """Returns the use; a batch counts when it ends."""
        with self._changed:
            now_ns = self._clocks.wall_ns()
            measured = Measured(self._used_ns // 1000, (now_ns - self._measured_at_ns) // 1000)
            self._used_ns = 0
            self._measured_at_ns = now_ns
            return measured

    def release(self) -> None:
        """Ends every wait; later batches are counted but not delayed."""
        with self._changed:
            self._released = True
            self._changed.notify_all()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Context manager around a batch's work, after ``wait_for_turn``; a resize waits for its end."""
        thread = threading.get_ident()
        with self._changed:
            self._began_at_milli[thread] = self._share_milli
        try:
            yield
        finally:
            with self._changed:
                del self._began_at_milli[thread]
                self._changed.notify_all()

    def _wait_for_boundary(self, share_milli: int, until_ns: int) -> None:
        while self._under_way_milli() > share_milli and not self._released:
            left_ns = until_ns - self._clocks.wall_ns()
            if left_ns <= 0:
                return
            self._clocks.wait(self._changed, left_ns / 1e9)

    def _under_way_milli(self) -> int:
        """Returns the largest share at which a running batch of another thread began; 0 without one."""
        own = threading.get_ident()
        # A thread that resizes inside its own batch would wait for itself.
        return max((share for thread, share in self._began_at_milli.items() if thread != own), default=0)

    def _wait_out_debt(self, for_ever: bool = True) -> None:
        self._earn()
        if self._balance >= -_GRACE:
            return
        while self._balance < 0 and not self._released and (for_ever or self._share_milli > 0):
            missing_s = -self._balance / self._share_milli / 1e9 if self._share_milli else None
            self._clocks.wait(self._changed, missing_s)
            self._earn()

    def _earn(self) -> None:
        now_ns = self._clocks.wall_ns()
        self._balance += self._share_milli * (now_ns - self._earned_at_ns)
        self._earned_at_ns = now_ns

    def _limit(self) -> None:
        self._balance = min(self._balance, self._share_milli * self._burst_us * 1000)


def _valid(share_milli: int) -> int:
    if share_milli < 0:
        raise ValueError(f"a share cannot be negative: {share_milli}")
    return share_milli
