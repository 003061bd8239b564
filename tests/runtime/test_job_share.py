"""Tests of a job's share: its use, its end, and commands that arrive before it."""

import threading
from contextlib import nullcontext

import pytest
from waiting import HANG_GUARD_S, wait_until_blocked

from ekya.core.speed import SpeedCurve
from ekya.gpu.backends.backend import Measured, Resized
from ekya.runtime.shares.job_share import JobShare, JobStoppedError, NewestJob

HALF_IS_EIGHT_TENTHS = SpeedCurve(((0, 0.0), (500, 0.8), (1000, 1.0)))


class Handle:
    """Handle that reports a given use."""

    def __init__(self):
        self.used_us = 0

    def measured(self):
        used_us, self.used_us = self.used_us, 0
        return Measured(used_us, 0)

    def scope(self):
        return nullcontext()

    def resize(self, share_milli):
        return Resized(share_milli, 3)

    def release(self):
        pass


def test_use_is_worth_what_the_share_makes_of_it():
    handle = Handle()
    share = JobShare(handle, HALF_IS_EIGHT_TENTHS, 1000)
    with share.batch():
        handle.used_us = 1_000_000
    share.resize(1, 500)
    handle.used_us = 500_000
    assert share.worth_s() == 1.0 + 0.8
    assert (share.unreported_us(), share.unreported_us()) == (1_500_000, 0)


def test_batch_caught_by_a_pause_is_worth_its_share_before():
    handle = Handle()
    share = JobShare(handle, HALF_IS_EIGHT_TENTHS, 500)
    share.resize(2, 0)
    assert share.resize(1, 1000) is None
    handle.used_us = 500_000
    assert share.worth_s() == 0.8


def test_use_after_the_last_batch_is_reported():
    handle = Handle()
    share = JobShare(handle, HALF_IS_EIGHT_TENTHS, 500)
    with share.batch():
        pass
    handle.used_us = 70
    assert share.unreported_us() == 70


def test_stop_ends_the_job_at_its_next_batch():
    share = JobShare(Handle(), HALF_IS_EIGHT_TENTHS, 500)
    stopped = []
    stopping = threading.Thread(target=lambda: stopped.append(share.stop_job()))
    with share.batch():
        stopping.start()
        wait_until_blocked(stopping)
    with pytest.raises(JobStoppedError), share.batch():
        pytest.fail("a stopped job does not begin a batch")
    assert stopping.is_alive()
    share.finish_job()
    stopping.join(HANG_GUARD_S)
    assert [resized.share_milli for resized in stopped] == [0]


def test_wait_for_a_job_returns_when_it_has_begun():
    jobs, found = NewestJob(), []
    waiting = threading.Thread(target=lambda: found.append(jobs.wait_begun(2)))
    waiting.start()
    jobs.replace_job(2, "job")
    wait_until_blocked(waiting)
    assert found == []
    jobs.mark_begun(2)
    waiting.join(HANG_GUARD_S)
    assert found == ["job"]


def test_wait_for_a_job_that_is_over_returns_none():
    jobs = NewestJob()
    jobs.replace_job(2, "job")
    jobs.mark_begun(2)
    jobs.mark_begun(3)
    assert [jobs.wait_begun(number) for number in (1, 2, 3)] == [None, "job", None]
    assert jobs.get_job(2) == "job"
