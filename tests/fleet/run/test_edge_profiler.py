"""Deep-Edge's Profiler on this machine, with real stress and inference; a machine's state while it lends."""

import itertools
import shutil
import threading
from contextlib import closing

import psutil
import pytest
from waiting import HANG_GUARD_S, use_processor, wait_until

from ekya.core.errors import UserError
from ekya.fleet.policy.deep_edge.estimates import EdgeWork
from ekya.fleet.policy.places import NodeState
from ekya.fleet.run.deep_edge.profiler import INFERENCE, ProfileRun, StressPoint, profiled, stressed
from ekya.fleet.run.deep_edge.states import MachineState, Watch, host_use, watched
from ekya.gpu.backends.cpu import CpuShares

needs_stress = pytest.mark.skipif(
    shutil.which("stress-ng") is None, reason="Debian's package stress-ng is not installed"
)


def test_host_use_of_busy_core_is_counted() -> None:
    host_use()
    use_processor(0.3)
    cpu, memory = host_use()
    assert 0.5 / psutil.cpu_count() < cpu <= 1
    assert 0 < memory < 1


def test_a_state_is_the_95th_percentile() -> None:
    watch = Watch([NodeState(part / 100, 0.0, 0.5) for part in range(101)])
    assert watch.state() == NodeState(pytest.approx(0.95), 0.0, 0.5)
    with pytest.raises(ValueError, match="no state was read"):
        Watch().state()


def test_readings_come_while_it_lasts() -> None:
    reads = iter([(0.0, 0.0)])
    with watched(0.01, lambda: next(reads, (0.3, 0.75))) as watch:
        wait_until(lambda: len(watch.states) >= 2)
    assert set(watch.states) == {NodeState(0.3, 0.0, 0.75)}, "the first call only begins the interval"
    assert all(thread.name != "states" for thread in threading.enumerate())


def test_what_is_over_at_once_has_a_state_too() -> None:
    with watched(10.0) as watch:
        pass
    assert 0.0 <= watch.state().cpu <= 1.0


@pytest.mark.parametrize("part", [-0.1, 1.0, 20])
def test_a_stress_is_a_part(part) -> None:
    with pytest.raises(UserError, match="give a part of 1"):
        StressPoint(cpu=part)


def test_without_stress_ng_it_says_which_package_is_missing(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="apt-get install stress-ng"), stressed(StressPoint(cpu=0.5)):
        pass
    with stressed(StressPoint()):
        pass


@pytest.mark.live
@pytest.mark.long
@needs_stress
def test_stress_is_seen_in_the_state_and_ends_with_its_block() -> None:
    with stressed(StressPoint(mem=0.2)), watched(0.1) as loaded:
        wait_until(lambda: len(loaded.states) >= 5)
    wait_until(lambda: loaded.state().mem > host_use()[1] + 0.08)
    with stressed(StressPoint(cpu=0.9)), watched(0.1) as loaded:
        wait_until(lambda: len(loaded.states) >= 15)
    assert loaded.state().cpu > 0.8


@pytest.mark.live
@pytest.mark.long
@needs_stress
def test_a_profile_measures_a_real_model_beside_real_inference() -> None:
    run = ProfileRun(
        EdgeWork("here", "mobilenet_v3_small", 16, 1),
        seconds=1.0,
        batches=(8,),
        shares_milli=(1000, 300),
        points=(StressPoint(), StressPoint(mem=0.1)),
    )
    asked = run.tried()
    measured = list(profiled(run, CpuShares(1), done=asked[1:2]))
    assert [tried for tried, _ in measured] == [asked[0], *asked[2:]]
    points = [point for _, point in measured]
    free, _, held = points
    assert all(point.compute_s > 0 and point.exec_s > 0 and point.app == INFERENCE for point in points)
    assert (free.share_milli, held.share_milli) == (1000, 300)
    assert held.before.mem > free.before.mem + 0.02
    assert free.after.mem > 0


def test_the_state_is_that_without_trainings_of_others() -> None:
    numbers, lends, read = itertools.count(), threading.Event(), threading.Semaphore(0)

    def use():
        read.release()
        # 0.5 until it lends, and a full processor from then on.
        next(numbers)
        return (1.0 if lends.is_set() else 0.5), 0.25

    with closing(MachineState("nano", lends.is_set, use, every_s=0.005)) as state:
        for _ in range(5):
            assert read.acquire(timeout=HANG_GUARD_S)
        assert state() == ("nano", NodeState(0.5, 0.0, 0.25))
        lends.set()
        for _ in range(5):
            assert read.acquire(timeout=HANG_GUARD_S)
        assert state() == ("nano", NodeState(0.5, 0.0, 0.25))


def test_before_the_first_reading_nothing_is_known() -> None:
    with closing(MachineState("nano", lambda: False, lambda: (0.1, 0.1), every_s=HANG_GUARD_S)) as state:
        assert state() is None
