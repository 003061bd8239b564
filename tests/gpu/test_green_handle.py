import threading
from dataclasses import replace

import pytest
from fake_gpu import MS, FakeDriver, FakeGpu, thread
from hypothesis import given
from hypothesis import strategies as st
from waiting import HANG_GUARD_S, wait_until_blocked

from ekya.core.errors import UserError
from ekya.gpu.backends.backend import ShareJob
from ekya.gpu.green import handle as green_handle
from ekya.gpu.green.claims import SmClaims
from ekya.gpu.green.handle import GreenHandle
from ekya.gpu.green.levels import GatedLevels, LevelPool
from ekya.system.numeric_result import Checked


class Process:
    """Jobs of one process on one GPU, with their levels, streams and claims."""

    def __init__(self, file, bad=(), **driver):
        self.file, self.bad = file, bad
        self.driver, self.gpu = FakeDriver(**driver), FakeGpu()
        self.pool = LevelPool(self.driver)
        self.levels = GatedLevels(self.pool, self.gpu, self._gate)
        self.jobs = []

    def job(self, share_milli, role="retraining"):
        claims = SmClaims(self.file, self.pool.layout.groups)
        job = ShareJob("a job", role, share_milli)
        handle = GreenHandle(self.levels, self.gpu, claims, job, self.gpu.clocks)
        self.jobs.append(handle)
        return handle

    def groups(self, handle):
        """Returns the numbers of a handle's groups; SMs that form no whole group go with the last group."""
        return set() if handle.level is None else self.driver.groups_on(handle.level.stream) - {"rest"}

    def close(self):
        for job in self.jobs:
            job.release()

    def _gate(self):
        sms = sum(one.sms for one in self.driver.contexts[self.driver.streams[self.gpu.current()]])
        return (Checked("product", "float16", 0.0, sms not in self.bad),)


@pytest.fixture
def process(tmp_path):
    made = Process(tmp_path / "gpu")
    yield made
    made.close()


def test_handle_batch_runs_on_sms_of_its_share(process):
    handle = process.job(500)
    with handle.scope():
        assert process.driver.groups_on(process.gpu.current()) == set(range(8))
    assert process.gpu.current() == handle.level.stream


@pytest.mark.parametrize("planned", [100, 230, 500, 669, 960])
def test_handle_share_equals_what_the_planner_grants(process, planned):
    groups = process.pool.layout.grouping
    granted = groups.floor_share(planned)
    resized = process.job(0).resize(granted)
    assert (resized.share_milli, resized.note) == (granted, "")


def test_handle_last_group_includes_the_remainder(process):
    process.job(500)
    assert process.job(0).resize(243).share_milli == 273


def test_handle_resize_returns_what_was_granted(tmp_path):
    process = Process(tmp_path / "gpu", granted=lambda sms: sms - 2)
    resized = process.job(0).resize(250)
    assert (resized.share_milli, resized.note) == (228, "")
    process.close()


def test_handle_resize_waits_for_the_old_stream(process):
    handle = process.job(250)
    with handle.scope():
        process.gpu.launch(30)
    old = handle.level.stream
    assert process.gpu.is_busy(old)
    resized = handle.resize(500)
    assert process.gpu.synchronised == [old]
    assert not process.gpu.is_busy(old)
    assert resized.took_us == 30_000
    assert handle.level.stream != old


def test_handle_same_share_changes_nothing(process):
    handle = process.job(250)
    level = handle.level
    handle.resize(255)
    assert handle.level is level
    assert process.gpu.synchronised == []


def test_handle_resize_and_batches_exclude_each_other(process):
    handle = process.job(250)
    inside, leave = threading.Event(), threading.Event()
    seen = []

    def work():
        with handle.scope():
            inside.set()
            leave.wait(HANG_GUARD_S)
            seen.append(len(process.groups(handle)))
        with handle.scope():
            seen.append(len(process.groups(handle)))

    with thread(work):
        assert inside.wait(HANG_GUARD_S)
        with thread(lambda: handle.resize(750)) as resizing:
            wait_until_blocked(resizing)
            assert process.groups(handle) == {0, 1, 2, 3}
            leave.set()
    assert seen[0] == 4
    assert process.groups(handle) == set(range(12))


def test_handle_resize_of_stuck_batch_applies_after_it(process, monkeypatch):
    monkeypatch.setattr(green_handle, "ANSWER_WITHIN_S", 0.01)
    handle = process.job(500)
    inside, leave = threading.Event(), threading.Event()

    def work():
        with handle.scope():
            inside.set()
            leave.wait(HANG_GUARD_S)

    with thread(work):
        assert inside.wait(HANG_GUARD_S)
        resized = handle.resize(250)
        assert resized.share_milli == 485
        assert "has not ended" in resized.note
        assert not resized.settled
        assert process.job(700).level.groups == 8, "its SMs are still its own"
        leave.set()
    with handle.scope():
        assert process.groups(handle) == {0, 1, 2, 3}


def test_handle_resize_inside_own_batch_raises(process):
    handle = process.job(250)
    with handle.scope(), pytest.raises(RuntimeError, match="inside a batch"):
        handle.resize(500)


@pytest.mark.parametrize("role", ["retraining", "inference"])
def test_handle_negative_share_raises(process, role):
    with pytest.raises(ValueError, match="negative"):
        process.job(250, role).resize(-1)


def test_handle_share_zero_waits_and_frees_all_sms(process):
    handle = process.job(250)
    assert handle.resize(0).share_milli == 0
    assert process.job(1000).level.groups == 16
    process.jobs[1].release()
    ran = threading.Event()

    def work():
        with handle.scope():
            ran.set()

    with thread(work) as waiting:
        wait_until_blocked(waiting)
        assert not ran.is_set()
        handle.resize(500)
        assert ran.wait(HANG_GUARD_S)


def run_for(process, handle, seconds, batch_ms):
    """Runs batches back to back; returns the used thousandths of the GPU's time."""
    gpu, used_ns = process.gpu, 0
    began_ns = gpu.now_ns
    while gpu.now_ns - began_ns < seconds * 1e9:
        with handle.scope():
            gpu.now_ns += MS // 10
            gpu.launch(batch_ms)
            used_ns += batch_ms * MS * handle.level.sms // 132
    return 1000 * used_ns / (gpu.now_ns - began_ns)


def test_handle_inference_guest_uses_free_sms_within_share(process):
    guest = process.job(0, "inference")
    assert guest.resize(100).share_milli == 100
    with guest.scope():
        assert process.groups(guest) == set(range(16))
    assert run_for(process, guest, 5, 8) == pytest.approx(100, rel=0.06)
    assert guest.measured().share_milli == pytest.approx(100, rel=0.06)


def test_handle_guests_leave_claimed_sms_and_return(process):
    guest, other = process.job(100, "inference"), process.job(50, "inference")
    owner = process.job(500)
    assert process.groups(owner) == set(range(8, 16))
    for one in (guest, other):
        process.gpu.now_ns += 1000 * MS
        with one.scope():
            assert process.groups(one) == set(range(8))
    owner.resize(0)
    with guest.scope():
        assert process.groups(guest) == set(range(16))


def test_handle_guests_always_have_the_first_group(process):
    guest = process.job(100, "inference")
    resized = process.job(0).resize(1000)
    assert "15 of 16 groups" in resized.note
    with guest.scope():
        assert process.groups(guest) == {0}


def test_handle_share_below_a_group_is_a_guest(process):
    handle = process.job(500)
    assert handle.resize(59) == replace(handle.resize(59), share_milli=59, note="")
    assert process.job(485).level.groups == 8, "it has let go of its own"
    process.gpu.now_ns += 1000 * MS
    assert run_for(process, handle, 5, 4) == pytest.approx(59, rel=0.06)
    assert handle.resize(250).share_milli == 243
    process.gpu.now_ns += 1000 * MS
    with handle.scope():
        assert len(process.groups(handle)) == 4
    assert run_for(process, handle, 1, 4) > 200, "it is not held back any more"


def test_handle_guest_without_share_waits(process):
    guest = process.job(0, "inference")
    ran = threading.Event()

    def work():
        with guest.scope():
            ran.set()

    with thread(work) as waiting:
        wait_until_blocked(waiting)
        assert not ran.is_set()
        guest.resize(10)
        assert ran.wait(HANG_GUARD_S)


def test_handle_release_ends_wait_and_frees_sms(process):
    handle = process.job(0)
    other = process.job(1000)

    def work():
        with handle.scope():
            assert process.gpu.current() != FakeGpu.DEFAULT

    with thread(work) as waiting:
        wait_until_blocked(waiting)
        handle.release()
    other.release()
    assert process.job(1000).level.groups == 16


def test_handle_released_sms_are_free_after_its_batch(process):
    handle = process.job(1000)
    inside, leave = threading.Event(), threading.Event()

    def work():
        with handle.scope():
            process.gpu.launch(10)
            inside.set()
            leave.wait(HANG_GUARD_S)

    with thread(work):
        assert inside.wait(HANG_GUARD_S)
        handle.release()
        assert process.job(500).level is None
        leave.set()
    assert handle.level.stream in process.gpu.synchronised
    assert process.job(500).level.groups == 8


def test_handle_ending_job_is_not_resized(process):
    handle = process.job(500)
    handle.release()
    assert handle.resize(1000).note == "the job is ending"
    with handle.scope():
        assert process.gpu.current() == handle.level.stream


def test_handle_release_ends_a_waiting_resize(process, monkeypatch):
    monkeypatch.setattr(green_handle, "ANSWER_WITHIN_S", 1e6)
    handle = process.job(500)
    inside, leave = threading.Event(), threading.Event()
    notes = []

    def work():
        with handle.scope():
            inside.set()
            leave.wait(HANG_GUARD_S)

    with thread(work):
        assert inside.wait(HANG_GUARD_S)
        with thread(lambda: notes.append(handle.resize(250).note)) as resizing:
            wait_until_blocked(resizing)
            handle.release()
        leave.set()
    assert notes and "has not ended" in notes[0]


def test_handle_growing_job_takes_freed_sms_between_batches(process):
    grower, shrinker = process.job(250), process.job(750)
    resized = grower.resize(500)
    assert resized.share_milli == 243
    assert resized.note == "4 of 8 groups of SMs are free; the others follow"
    shrinker.resize(250)
    process.gpu.now_ns += 100 * MS
    with grower.scope():
        assert len(process.groups(grower)) == 8
        assert not process.groups(grower) & process.groups(shrinker)


def test_handle_job_without_sms_begins_when_some_are_freed(process):
    first = process.job(1000)
    second = process.job(500)
    assert second.level is None

    def work():
        with second.scope():
            assert len(process.groups(second)) == 8

    with thread(work) as waiting:
        wait_until_blocked(waiting)
        first.resize(250)
        process.gpu.now_ns += 100 * MS


def test_handle_level_failing_the_gate_is_skipped(tmp_path):
    process = Process(tmp_path / "gpu", bad={64})
    handle = process.job(250)
    resized = handle.resize(500)
    assert resized.share_milli == 425
    assert resized.note == "on 64 SMs a product in float16 has values that are not finite"
    calls = len(process.driver.calls)
    process.gpu.now_ns += 100 * MS
    with handle.scope():
        assert len(process.groups(handle)) == 7
    assert len(process.driver.calls) == calls, "it is not tried again with every batch"
    assert process.job(546).level.groups == 9, "what it does not use is free"
    process.close()


def test_handle_no_level_passing_raises_user_error(tmp_path):
    process = Process(tmp_path / "gpu", bad={8})
    with pytest.raises(UserError, match=r"no green context .* use --shares duty-cycle"):
        process.job(500)
    process.close()


@pytest.mark.parametrize("name", ["make_context", "context_sms", "make_stream", "is_on"])
def test_handle_refused_level_keeps_the_current_one(process, name):
    handle = process.job(250)
    process.driver.fails.add(name)
    resized = handle.resize(1000)
    assert (resized.share_milli, name in resized.note) == (243, True)
    assert process.groups(handle) == {0, 1, 2, 3}
    process.driver.fails.clear()
    assert process.job(750).level.groups == 12


def test_handle_attach_leaves_the_primary_context(process):
    process.job(0)
    assert process.driver.groups_on(process.gpu.current()) == {0}


def test_handle_new_thread_waits_for_its_earlier_work(process):
    handle = process.job(500)

    def work():
        process.gpu.launch(40)
        assert process.gpu.is_busy(FakeGpu.DEFAULT)
        with handle.scope():
            assert not process.gpu.is_busy(FakeGpu.DEFAULT)
        process.gpu.synchronised.clear()
        with handle.scope():
            pass
        assert process.gpu.synchronised == [], "and from then on it waits for nothing"

    with thread(work):
        pass


def test_handle_thread_on_wrong_stream_raises(process, monkeypatch):
    handle = process.job(500)
    monkeypatch.setattr(process.gpu, "current", lambda: FakeGpu.DEFAULT)
    with pytest.raises(RuntimeError, match="not that of its level"), handle.scope():
        pytest.fail("the batch began")
    monkeypatch.undo()
    assert handle.resize(250).share_milli == 243


def test_handle_use_is_time_times_part_of_the_gpu(process):
    handle = process.job(500)
    with handle.scope():
        process.gpu.launch(10)
    assert handle.measured().used_us == 0, "the GPU has not done it"
    process.gpu.now_ns += 20 * MS
    measured = handle.measured()
    assert (measured.used_us, measured.wall_us) == (4850, 20_000)
    handle.resize(1000)
    with handle.scope():
        process.gpu.launch(10)
    process.gpu.now_ns += 20 * MS
    assert handle.measured().used_us == 10_000


def test_handle_streams_of_released_jobs_are_reused(process):
    first = process.job(500)
    stream = first.level.stream
    first.release()
    process.jobs.clear()
    del first
    assert process.job(500).level.stream == stream


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 18)), min_size=1, max_size=12))
def test_handle_jobs_never_share_a_multiprocessor(tmp_path_factory, steps):
    process = Process(tmp_path_factory.mktemp("claims") / "gpu")
    guest = process.job(100, "inference")
    jobs = [process.job(0) for _ in range(4)]
    for job, groups in steps:
        jobs[job].resize(process.pool.layout.grouping.share_milli(groups))
        assert len(process.groups(jobs[job])) <= groups
        process.gpu.now_ns += 100 * MS
        for one in jobs:
            if one.level is not None:
                with one.scope():
                    pass
        owned = [group for one in jobs for group in process.groups(one)]
        assert len(owned) == len(set(owned))
        process.gpu.now_ns += 1000 * MS
        with guest.scope():
            assert not process.groups(guest) & set(owned)
            assert 0 in process.groups(guest)
    process.close()
