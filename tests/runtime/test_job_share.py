"""Tests of a job's share: late and numbered commands, its use and its end, and the use of several streams."""

import threading
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import HANG_GUARD_S, wait_until, wait_until_blocked

from ekya.core.speed import SpeedCurve
from ekya.gpu.backends.backend import Measured, Resized
from ekya.gpu.backends.token_bucket import TokenBucket
from ekya.runtime.shares.job_share import JobShare, JobStoppedError, NewestJob, SharedUse, VersionedShare

HALF_IS_EIGHT_TENTHS = SpeedCurve(((0, 0.0), (500, 0.8), (1000, 1.0)))


class Handle:
    """Handle that grants every share, and reports a given use once."""

    share_milli = 0

    def __init__(self):
        self.used_us = self.wall_us = 0

    def measured(self):
        measured = Measured(self.used_us, self.wall_us)
        self.used_us = self.wall_us = 0
        return measured

    def scope(self):
        return nullcontext()

    def resize(self, share_milli):
        self.share_milli = share_milli
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


# Numbered commands of a share


class Slow:
    """Handle that releases a share at the third attempt."""

    def __init__(self):
        self.asked = []

    def resize(self, share_milli):
        self.asked.append(share_milli)
        holds_milli = share_milli if len(self.asked) >= 3 else 900
        return Resized(holds_milli, 7, "", settled=holds_milli == share_milli)

    def release(self):
        self.asked.append("released")


def test_resize_returns_when_it_has_settled():
    handle = Slow()
    assert VersionedShare(handle).resize(1, 200) == Resized(200, 21)
    assert handle.asked == [200, 200, 200]


def test_resize_with_an_older_serial_does_nothing():
    handle = Slow()
    share = VersionedShare(handle)
    assert share.resize(5, 900).share_milli == 900
    assert share.resize(4, 100) is None
    assert handle.asked == [900]


def test_holds_milli_is_the_sum_of_all_parts():
    share = VersionedShare(TokenBucket(0))
    assert share.holds_milli == 0
    share.resize(1, 200, "a")
    share.resize(2, 300, "b")
    assert share.holds_milli == 500
    share.end_part("a")
    assert share.holds_milli == 300


def test_newer_resize_ends_an_older_one_in_progress():
    handle = Slow()
    share = VersionedShare(handle)
    handle.resize = lambda share_milli: Resized(500, 1, settled=share_milli > 500)
    answers = []
    older = threading.Thread(target=lambda: answers.append(share.resize(1, 100)))
    older.start()
    wait_until(lambda: share.resize(2, 800) is not None)
    older.join(HANG_GUARD_S)
    assert answers == [None]


def test_release_ends_resizes_in_progress():
    handle = Slow()
    tries = []
    handle.resize = lambda share_milli: tries.append(share_milli) or Resized(500, 1, settled=False)
    share = VersionedShare(handle)
    answers = []
    resizing = threading.Thread(target=lambda: answers.append(share.resize(1, 100)))
    resizing.start()
    wait_until(lambda: tries)
    share.release()
    resizing.join(HANG_GUARD_S)
    assert answers == [None]
    assert share.resize(2, 100) is None
    assert handle.asked == ["released"]


def test_resize_of_a_bucket_returns_after_the_current_batch():
    bucket = TokenBucket(1000)
    share = VersionedShare(bucket)
    inside, may_end, answers = threading.Event(), threading.Event(), []

    def work():
        with bucket.scope():
            inside.set()
            assert may_end.wait(HANG_GUARD_S)

    working = threading.Thread(target=work)
    resizing = threading.Thread(target=lambda: answers.append(share.resize(1, 300)))
    working.start()
    assert inside.wait(HANG_GUARD_S)
    resizing.start()
    wait_until_blocked(resizing)
    assert answers == []
    may_end.set()
    resizing.join(HANG_GUARD_S)
    working.join(HANG_GUARD_S)
    (resized,) = answers
    assert (resized.share_milli, resized.note) == (300, "")
    assert resized.took_us > 0


def test_serials_count_within_a_part():
    handle = Handle()
    share = VersionedShare(handle)
    assert share.resize(7, 300, "a").share_milli == 300
    assert share.resize(2, 500, "b").share_milli == 500
    assert share.resize(6, 900, "a") is None
    assert handle.share_milli == 800
    share.end_part("a")
    assert handle.share_milli == 500
    assert share.resize(9, 300, "a") is None, "it has ended"
    assert handle.share_milli == 500


def test_resize_of_another_part_overtakes_none():
    """The order of a part that shrinks while another one grows is still answered."""
    handle = Slow()
    share = VersionedShare(handle)
    tries = []

    def resize(share_milli):
        tries.append(share_milli)
        return Resized(share_milli, 1, settled=share_milli != 300)

    handle.resize = resize
    answers = []
    less = threading.Thread(target=lambda: answers.append(share.resize(1, 100, "a")))
    share.resize(1, 200, "b")
    less.start()
    wait_until(lambda: 300 in tries)
    assert share.resize(2, 600, "b").share_milli == 600
    less.join(HANG_GUARD_S)
    assert answers[0].share_milli == 100
    assert tries[-1] == 700


def test_parts_of_a_reduced_whole_are_in_proportion():
    handle = Slow()
    share = VersionedShare(handle)
    handle.resize = lambda share_milli: Resized(share_milli // 2, 1, "others have the rest")
    share.resize(1, 200, "a")
    assert share.resize(1, 600, "b") == Resized(300, 1, "others have the rest")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 500)), max_size=20))
def test_handle_never_holds_more_than_the_newest_parts(commands):
    handle = Handle()
    share, newest = VersionedShare(handle), {}
    for part, serial, share_milli in commands:
        resized = share.resize(serial, share_milli, part)
        counts = part not in newest or serial >= newest[part][0]
        assert (resized is not None) == counts
        if counts:
            newest[part] = (serial, share_milli)
        assert handle.share_milli == sum(milli for _, milli in newest.values())


# Use of several owners


@pytest.fixture
def handle():
    return Handle()


@pytest.fixture
def use(handle):
    made = SharedUse(handle)
    made.add_owner("a")
    made.add_owner("b")
    return made


def pass_time(handle, wall_us, used_us):
    handle.wall_us += wall_us
    handle.used_us += used_us


def test_use_of_a_single_owner_is_charged_to_it(handle):
    use = SharedUse(handle)
    pass_time(handle, 500, 400)
    use.add_owner("a")
    use.count_pictures("a", 6)
    pass_time(handle, 1000, 300)
    assert use.measure_owner("a") == Measured(700, 1000), "what was used before it came is nobody else's"
    pass_time(handle, 1000, 0)
    assert use.measure_owner("a") == Measured(0, 1000)


def test_use_is_divided_by_pictures(handle, use):
    use.count_pictures("a", 9)
    use.count_pictures("b", 3)
    pass_time(handle, 1000, 400)
    assert use.measure_owner("a") == Measured(300, 1000)
    use.count_pictures("b", 5)
    pass_time(handle, 1000, 200)
    assert use.measure_owner("b") == Measured(300, 2000)
    assert use.measure_owner("a") == Measured(0, 1000)


def test_use_is_divided_by_parts_of_pictures(handle, use):
    """Boxes that are followed into a frame cost less than a picture."""
    use.count_pictures("a", 0.25)
    use.count_pictures("b", 1)
    pass_time(handle, 1000, 500)
    assert [use.measure_owner(owner).used_us for owner in "ab"] == [100, 400]


def test_use_measured_late_is_charged_to_the_next_pictures(handle, use):
    """Use without pictures since the last report is charged to the next stream that counts some."""
    use.count_pictures("a", 4)
    assert use.measure_owner("a").used_us == 0
    pass_time(handle, 1000, 80)
    assert use.measure_owner("a").used_us == 0
    use.count_pictures("b", 4)
    assert use.measure_owner("b").used_us == 80


def test_owner_is_charged_only_between_enter_and_leave(handle, use):
    use.count_pictures("a", 5)
    use.remove_owner("a")
    use.count_pictures("a", 5)
    use.count_pictures("b", 5)
    pass_time(handle, 1000, 100)
    use.add_owner("c")
    use.count_pictures("c", 5)
    pass_time(handle, 500, 60)
    assert use.measure_owner("c") == Measured(60, 500)
    assert use.measure_owner("b") == Measured(100, 1500)


def test_work_on_another_device_is_not_charged_and_ends_with_the_job():
    handle = Handle()
    share = JobShare(handle, HALF_IS_EIGHT_TENTHS, 1000, "cuda")
    with share.scopes.host():
        handle.used_us = 70
    assert handle.used_us == 70, "nobody has asked for its use"
    with share.scopes.scope_on("cuda:0"):
        pass
    assert handle.used_us == 0
    stopping = threading.Thread(target=share.stop_job, daemon=True)
    stopping.start()
    wait_until(lambda: share.is_stopped)
    with pytest.raises(JobStoppedError), share.scopes.host():
        pytest.fail("a stopped job does not begin work beside its share")
    share.finish_job()
    stopping.join(HANG_GUARD_S)
