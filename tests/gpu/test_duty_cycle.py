import pytest
from fake_gpu import MS, FakeGpu

from ekya.gpu.backends.backend import ShareJob
from ekya.gpu.backends.duty_cycle import DutyCycleHandle, DutyCycleShares
from ekya.gpu.backends.token_bucket import BURST_US
from ekya.gpu.nvml import Gpu, GpuInventory

GPUS = GpuInventory(
    (Gpu(0, "a GPU", 8 << 30, 7 << 30, "GPU-1"), Gpu(1, "a GPU", 8 << 30, 7 << 30, "GPU-2")),
    "600.1",
    "2 NVIDIA GPUs",
)
JOB = ShareJob("retraining/cam-1", "retraining", 300, 1)


def run_for(handle, gpu, seconds, batch_ms, host_ms=0.1):
    began_ns, launched_ms = gpu.now_ns, 0
    while gpu.now_ns - began_ns < seconds * 1e9:
        with handle.scope():
            gpu.now_ns += round(host_ms * MS)
            gpu.launch(batch_ms)
        launched_ms += batch_ms
    return 1000 * launched_ms * MS / (gpu.now_ns - began_ns)


@pytest.mark.parametrize(("share_milli", "batch_ms"), [(700, 12), (250, 30), (50, 5)])
def test_duty_cycle_gpu_time_matches_share_within_five_percent(share_milli, batch_ms):
    gpu = FakeGpu()
    handle = DutyCycleHandle(gpu.record_mark, share_milli, gpu.clocks)
    assert run_for(handle, gpu, 10, batch_ms) == pytest.approx(share_milli, rel=0.05)
    assert handle.measured().share_milli == pytest.approx(share_milli, rel=0.05)


def test_duty_cycle_host_prepares_while_gpu_works():
    gpu = FakeGpu()
    handle = DutyCycleHandle(gpu.record_mark, 1000, gpu.clocks)
    assert run_for(handle, gpu, 5, 10, host_ms=9) == pytest.approx(1000, rel=0.01)


def test_duty_cycle_host_never_waits_for_faster_gpu():
    gpu = FakeGpu()
    run_for(DutyCycleHandle(gpu.record_mark, 1000, gpu.clocks), gpu, 2, 1, host_ms=5)
    assert gpu.waits == 0


def test_duty_cycle_job_is_at_most_burst_and_two_batches_ahead():
    gpu = FakeGpu()
    handle = DutyCycleHandle(gpu.record_mark, 100, gpu.clocks)
    gpu.now_ns += 60_000 * MS
    launched_ms, began_ns = 0, gpu.now_ns
    for _ in range(60):
        with handle.scope():
            gpu.launch(20)
        launched_ms += 20
        earned_ms = 0.1 * (gpu.now_ns - began_ns) / MS
        assert launched_ms <= earned_ms + 0.1 * BURST_US / 1000 + 40 + 1


def test_duty_cycle_resize_applies_immediately():
    gpu = FakeGpu()
    handle = DutyCycleHandle(gpu.record_mark, 200, gpu.clocks)
    run_for(handle, gpu, 3, 10)
    assert handle.resize(800).share_milli == 800
    assert run_for(handle, gpu, 5, 10) == pytest.approx(800, rel=0.05)


def test_duty_cycle_released_job_does_not_wait():
    gpu = FakeGpu()
    handle = DutyCycleHandle(gpu.record_mark, 0, gpu.clocks)
    handle.release()
    with handle.scope():
        gpu.launch(50)


def test_duty_cycle_failed_batch_is_counted():
    gpu = FakeGpu()
    handle = DutyCycleHandle(gpu.record_mark, 500, gpu.clocks)
    with pytest.raises(ZeroDivisionError), handle.scope():
        gpu.launch(30)
        raise ZeroDivisionError
    gpu.now_ns += 100 * MS
    assert handle.measured().used_us == 30_000


def test_duty_cycle_process_sees_only_its_gpu():
    backend = DutyCycleShares(GPUS, without_cuda=lambda: False)
    assert backend.actor_env(JOB) == {"CUDA_VISIBLE_DEVICES": "GPU-2"}
    assert backend.probe_machine().capacity_milli == 2000


def test_duty_cycle_torch_without_cuda_is_reported():
    capability = DutyCycleShares(GPUS, without_cuda=lambda: True).probe_machine()
    assert not capability.usable
    assert "built without CUDA" in capability.why


def test_duty_cycle_backend_uses_the_gpu_clock():
    gpu = FakeGpu()
    handle = DutyCycleShares(GPUS, start_cuda=gpu.start_cuda, clocks=gpu.clocks).attach_job(JOB)
    assert run_for(handle, gpu, 5, 10) == pytest.approx(300, rel=0.05)


def test_duty_cycle_under_a_cap_counts_time_at_the_cap():
    gpu = FakeGpu()
    handle = DutyCycleHandle(gpu.record_mark, 400, gpu.clocks, cap_milli=500)
    assert run_for(handle, gpu, 10, 10) == pytest.approx(800, rel=0.05), "of the time, on half of the GPU"
    assert handle.measured().share_milli == pytest.approx(400, rel=0.05)
    resized = handle.resize(900)
    assert (resized.share_milli, resized.note) == (500, "the job cannot have more than its cap, which stays")
