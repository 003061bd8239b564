"""Tests of share commands that come late, from several threads, or to a handle that releases slowly."""

import threading

from hypothesis import given
from hypothesis import strategies as st
from waiting import HANG_GUARD_S, wait_until, wait_until_blocked

from ekya.gpu.backends.backend import Resized
from ekya.gpu.backends.token_bucket import TokenBucket
from ekya.runtime.shares.job_share import VersionedShare


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


class Immediate:
    """Handle that grants every share immediately."""

    share_milli = 0

    def resize(self, share_milli):
        self.share_milli = share_milli
        return Resized(share_milli, 1)


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


def test_resize_to_a_rounded_share_has_settled():
    """Groups of SMs are slightly larger than the shares that they are granted for."""
    handle = Slow()
    handle.resize = lambda share_milli: Resized(484, 3)
    assert VersionedShare(handle).resize(1, 480) == Resized(484, 3)


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
    handle = Immediate()
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
    handle = Immediate()
    share, newest = VersionedShare(handle), {}
    for part, serial, share_milli in commands:
        resized = share.resize(serial, share_milli, part)
        counts = part not in newest or serial >= newest[part][0]
        assert (resized is not None) == counts
        if counts:
            newest[part] = (serial, share_milli)
        assert handle.share_milli == sum(milli for _, milli in newest.values())
