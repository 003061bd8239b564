import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import HANG_GUARD_S, wait_until_blocked

from ekya.gpu.backends.backend import Resized, ShareJob
from ekya.gpu.backends.cpu import CpuShares
from ekya.gpu.backends.token_bucket import ANSWER_WITHIN_S, BURST_US, Clocks, TokenBucket

MS = 1_000_000


class VirtualTime:
    """A job's own core: working passes wall and thread time, waiting passes only wall time."""

    def __init__(self):
        self.wall_ns = 0
        self.thread_ns = 0
        self.waits_s = []
        self.at_wait = []
        self.clocks = Clocks(lambda: self.wall_ns, lambda: self.thread_ns, self._wait)

    def work(self, ms):
        self.wall_ns += round(ms * MS)
        self.thread_ns += round(ms * MS)

    def _wait(self, _condition, seconds):
        self.waits_s.append(seconds)
        if self.at_wait:
            self.at_wait.pop(0)()
        else:
            self.wall_ns += round(seconds * 1e9) + 1


def run_for(bucket, clock, seconds, batch_ms):
    """Runs batches back to back; returns the share that they used."""
    began_wall, began_thread = clock.wall_ns, clock.thread_ns
    while clock.wall_ns - began_wall < seconds * 1e9:
        with bucket.scope():
            clock.work(batch_ms)
    return 1000 * (clock.thread_ns - began_thread) / (clock.wall_ns - began_wall)


def test_bucket_two_jobs_get_their_shares_within_five_percent():
    for share_milli, batch_ms in ((700, 12), (250, 30)):
        clock = VirtualTime()
        handle = CpuShares(1, clock.clocks).attach_job(ShareJob("train/cam-1", "retraining", share_milli))
        assert run_for(handle, clock, 5, batch_ms) == pytest.approx(share_milli, rel=0.05)
        measured = handle.measured()
        assert measured.share_milli == pytest.approx(share_milli, rel=0.05)
        assert (measured.used_us, measured.wall_us) == (clock.thread_ns // 1000, clock.wall_ns // 1000)
        assert handle.measured().used_us == 0


@pytest.mark.parametrize("batch_ms", [40, BURST_US / 1000, 1500])
def test_bucket_full_share_never_waits(batch_ms):
    clock = VirtualTime()
    bucket = TokenBucket(1000, clock.clocks)
    assert run_for(bucket, clock, 5, batch_ms) == 1000
    assert clock.waits_s == []


def test_bucket_batches_longer_than_burst_get_their_share():
    for share_milli, batch_ms in ((900, 600), (500, 1000), (250, 400)):
        clock = VirtualTime()
        bucket = TokenBucket(share_milli, clock.clocks)
        assert run_for(bucket, clock, 60, batch_ms) == pytest.approx(share_milli, rel=0.05)


def test_bucket_question_during_long_batch_forfeits_nothing():
    clock = VirtualTime()
    bucket = TokenBucket(500, clock.clocks)
    with bucket.scope():
        clock.work(500)
        bucket.charge_use(0)
        bucket.resize(500)
        clock.work(500)
    # It used 1 s and earned half of it, but for the burst, which it had not saved yet.
    assert clock.waits_s == [pytest.approx(1.0)]


def test_bucket_resize_applies_from_next_batch():
    clock = VirtualTime()
    bucket = TokenBucket(200, clock.clocks)
    run_for(bucket, clock, 2, 10)
    assert bucket.resize(800).share_milli == 800
    assert run_for(bucket, clock, 2, 10) == pytest.approx(800, rel=0.05)
    bucket.resize(100)
    assert run_for(bucket, clock, 3, 10) == pytest.approx(100, rel=0.05)


def test_bucket_resize_shortens_current_wait():
    clock = VirtualTime()
    bucket = TokenBucket(10, clock.clocks)
    clock.at_wait.append(lambda: bucket.resize(1000))
    with bucket.scope():
        clock.work(50)
    assert clock.waits_s[0] == pytest.approx(4.95)
    assert clock.wall_ns < 150 * MS


def test_bucket_share_zero_waits_until_resized():
    clock = VirtualTime()
    bucket = TokenBucket(0, clock.clocks)
    clock.at_wait.append(lambda: bucket.resize(500))
    with bucket.scope():
        clock.work(10)
    assert clock.waits_s[0] is None


def test_bucket_batch_ending_at_share_zero_defers_debt():
    clock = VirtualTime()
    bucket = TokenBucket(500, clock.clocks)
    with bucket.scope():
        clock.work(100)
        bucket.resize(0)
    assert clock.waits_s == []
    clock.at_wait.append(lambda: bucket.resize(500))
    with bucket.scope():
        pass
    assert clock.waits_s == [None, pytest.approx(0.1, rel=0.01)]  # half of it was earned while it ran


def test_bucket_share_removed_ends_wait_of_finished_batch():
    clock = VirtualTime()
    bucket = TokenBucket(500, clock.clocks)
    clock.at_wait.append(lambda: bucket.resize(0))
    with bucket.scope():
        clock.work(100)
    assert len(clock.waits_s) == 1


def test_bucket_release_ends_current_and_later_waits():
    clock = VirtualTime()
    bucket = TokenBucket(0, clock.clocks)
    clock.at_wait.append(bucket.release)
    for _ in range(3):
        with bucket.scope():
            clock.work(100)
    assert len(clock.waits_s) == 1
    assert bucket.measured().used_us == 300_000


def test_bucket_idle_job_saves_at_most_the_burst():
    clock = VirtualTime()
    bucket = TokenBucket(500, clock.clocks)
    clock.wall_ns += 60_000 * MS
    began = clock.wall_ns
    run_for(bucket, clock, 1, 10)
    extra_us = clock.thread_ns / 1000 - 0.5 * (clock.wall_ns - began) / 1000
    assert 0 < extra_us <= 0.5 * BURST_US + 10_000


def test_bucket_failed_batch_is_charged_to_the_next():
    clock = VirtualTime()
    bucket = TokenBucket(100, clock.clocks)
    with pytest.raises(ZeroDivisionError), bucket.scope():
        clock.work(50)
        raise ZeroDivisionError
    assert clock.waits_s == []
    with bucket.scope():
        clock.work(1)
    assert clock.waits_s[0] == pytest.approx(0.45)


def test_bucket_negative_share_raises():
    with pytest.raises(ValueError, match="negative"):
        TokenBucket(-1)
    with pytest.raises(ValueError, match="negative"):
        TokenBucket(10).resize(-1)


@given(
    st.lists(
        st.tuples(st.integers(20, 1000), st.floats(0.1, 800), st.floats(0, 300)), min_size=1, max_size=30
    )
)
def test_bucket_use_exceeds_grant_by_at_most_burst_and_batch(steps):
    clock = VirtualTime()
    bucket = TokenBucket(1000, clock.clocks)
    granted_ns = 0.0
    for share_milli, batch_ms, idle_ms in steps:
        bucket.resize(share_milli)
        began = clock.wall_ns
        clock.wall_ns += round(idle_ms * MS)
        with bucket.scope():
            clock.work(batch_ms)
        granted_ns += share_milli * (clock.wall_ns - began) / 1000
    longest_ns = max(batch_ms for _, batch_ms, _ in steps) * MS
    assert clock.thread_ns <= granted_ns + BURST_US * 1000 + longest_ns + MS


def test_bucket_threads_of_one_job_share_its_limit():
    """Two threads take turns on one core, each with its own thread time."""
    clock, own = VirtualTime(), {}
    clocks = Clocks(clock.clocks.wall_ns, lambda: own.get(threading.get_ident(), 0), clock.clocks.wait)
    bucket = TokenBucket(300, clocks)
    turns = [threading.Semaphore(1), threading.Semaphore(0)]

    def work(place):
        for _ in range(100):
            assert turns[place].acquire(timeout=HANG_GUARD_S)
            with bucket.scope():
                clock.work(4)
                own[threading.get_ident()] = own.get(threading.get_ident(), 0) + 4 * MS
            turns[1 - place].release()

    threads = [threading.Thread(target=work, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_GUARD_S)
    measured = bucket.measured()
    assert measured.used_us == 2 * 100 * 4000
    assert measured.share_milli == pytest.approx(300, rel=0.05)


def test_bucket_resize_wakes_waiting_thread():
    bucket = TokenBucket(0)
    ran = threading.Event()

    def work():
        with bucket.scope():
            ran.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    wait_until_blocked(thread)
    assert not ran.is_set()
    bucket.resize(1000)
    assert ran.wait(HANG_GUARD_S)
    thread.join()


def begin_batch(bucket):
    """Starts a batch of another thread, which lasts as long as the returned scope is kept."""
    scope = bucket.scope()
    thread = threading.Thread(target=scope.__enter__)
    thread.start()
    thread.join(HANG_GUARD_S)
    return scope


def test_bucket_unfinished_batch_reports_share_in_use():
    """The waiting thread passes virtual time; the batch is another thread's, and never ends."""
    clock = VirtualTime()
    bucket = TokenBucket(700, clock.clocks)
    endless = begin_batch(bucket)
    resized = bucket.resize(200)
    assert (resized.share_milli, resized.settled) == (700, False)
    assert "not ended" in resized.note
    assert resized.took_us == pytest.approx(ANSWER_WITHIN_S * 1e6, rel=0.01)
    assert bucket.resize(800).share_milli == 800
    del endless


def test_bucket_batch_begun_at_same_share_needs_no_wait():
    clock = VirtualTime()
    bucket = TokenBucket(200, clock.clocks)
    endless = begin_batch(bucket)
    assert bucket.resize(300) == Resized(300, 0)
    assert bucket.resize(200) == Resized(200, 0)
    del endless
