"""A driver's counters over a window, on devices that lack some of them."""

import ctypes
import threading
from types import SimpleNamespace

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import HANG_GUARD_S

from ekya.gpu.nvml import Gpu, GpuInventory, list_gpus
from ekya.gpu.window_meter import GpuMeter, NvmlReader, Reading, TimedReading, open_meter, sum_up
from ekya.system.host import HostMemory

GIB = 1 << 30


class FakeNvml:
    """Fake of NVML's calls for one GPU; it does not support those in ``lacking``."""

    NVML_GPM_METRICS_GET_VERSION = pynvml.NVML_GPM_METRICS_GET_VERSION
    NVML_GPM_METRIC_SM_UTIL = pynvml.NVML_GPM_METRIC_SM_UTIL
    NVML_SUCCESS = pynvml.NVML_SUCCESS

    def __init__(self, uuid="GPU-1", lacking=(), gpm=True):
        self.uuid, self.lacking, self.gpm = uuid, set(lacking), gpm
        self.failing = set()
        self.total, self.used = 80 << 30, 2 << 30
        self.milliwatts, self.millijoules = 100_000, 5_000_000
        self.gpu_percent, self.busy_sm_s, self.now_s = 40, 0.0, 0.0
        self.metric_status = pynvml.NVML_SUCCESS
        self.open, self.samples = 0, {}
        self._allocated = 1000
        self._calls = {
            "c_nvmlGpmMetricsGet_t": pynvml.c_nvmlGpmMetricsGet_t,
            "nvmlInit": self.init,
            "nvmlShutdown": self.shutdown,
            "nvmlDeviceGetHandleByUUID": self.device_get_handle,
            "nvmlDeviceGetMemoryInfo": self.device_get_memory_info,
            "nvmlDeviceGetPowerUsage": self.device_get_power_usage,
            "nvmlDeviceGetTotalEnergyConsumption": self.device_get_total_energy_consumption,
            "nvmlDeviceGetUtilizationRates": self.device_get_utilization_rates,
            "nvmlGpmQueryDeviceSupport": self.gpm_query_device_support,
            "nvmlGpmSampleAlloc": self.gpm_sample_alloc,
            "nvmlGpmSampleFree": self.gpm_sample_free,
            "nvmlGpmSampleGet": self.gpm_sample_get,
            "nvmlGpmMetricsGet": self.gpm_metrics_get,
        }

    def __getattr__(self, name):
        return self._calls[name]

    def init(self):
        self._need("nvmlInit")
        self.open += 1

    def shutdown(self):
        self.open -= 1

    def device_get_handle(self, uuid):
        if uuid != self.uuid:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return "device"

    def device_get_memory_info(self, device):
        self._need("nvmlDeviceGetMemoryInfo", device)
        return SimpleNamespace(total=self.total, used=self.used, free=self.total - self.used)

    def device_get_power_usage(self, device):
        self._need("nvmlDeviceGetPowerUsage", device)
        return self.milliwatts

    def device_get_total_energy_consumption(self, device):
        self._need("nvmlDeviceGetTotalEnergyConsumption", device)
        return self.millijoules

    def device_get_utilization_rates(self, device):
        self._need("nvmlDeviceGetUtilizationRates", device)
        return SimpleNamespace(gpu=self.gpu_percent, memory=1)

    def gpm_query_device_support(self, device):
        self._need("nvmlGpmQueryDeviceSupport", device)
        return SimpleNamespace(isSupportedDevice=int(self.gpm))

    def gpm_sample_alloc(self):
        self._allocated += 16
        sample = ctypes.cast(ctypes.c_void_p(self._allocated), pynvml.c_nvmlGpmSample_t)
        self.samples[self._allocated] = None
        return sample

    def gpm_sample_free(self, sample):
        del self.samples[_address(sample)]

    def gpm_sample_get(self, device, sample):
        self._need("nvmlGpmSampleGet", device)
        self.samples[_address(sample)] = (self.now_s, self.busy_sm_s)

    def gpm_metrics_get(self, asked):
        self._need("nvmlGpmMetricsGet")
        assert (asked.version, asked.numMetrics) == (self.NVML_GPM_METRICS_GET_VERSION, 1)
        assert asked.metrics[0].metricId == self.NVML_GPM_METRIC_SM_UTIL
        (began_s, before), (ended_s, after) = (
            self.samples[_address(s)] for s in (asked.sample1, asked.sample2)
        )
        asked.metrics[0].nvmlReturn = self.metric_status
        passed_s = ended_s - began_s
        asked.metrics[0].value = 100 * (after - before) / passed_s if passed_s else float("nan")

    def work(self, seconds, activity, watts):
        """Advances time, with this activity and power."""
        self.now_s += seconds
        self.busy_sm_s += seconds * activity
        self.milliwatts = round(1000 * watts)
        self.millijoules += round(1000 * watts * seconds)
        self.gpu_percent = 100 if activity else 0

    def _need(self, call, device="device"):
        assert device == "device"
        if call in self.lacking:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if call in self.failing:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


def _address(sample):
    return ctypes.cast(sample, ctypes.c_void_p).value


def metered(nvml, *others):
    """Returns a meter that is read by hand, on the fake's clock."""
    readers = [NvmlReader(one.uuid, one) for one in (nvml, *others)]
    return GpuMeter(readers, clock_ns=lambda: round(nvml.now_s * 1e9))


def test_meter_window_has_all_counters_of_the_device():
    nvml = FakeNvml()
    meter = metered(nvml)
    meter.read_gpus()
    nvml.used = 6 * GIB
    nvml.work(3.0, 0.5, 200)
    meter.read_gpus()
    nvml.used = 4 * GIB
    nvml.work(1.0, 0.1, 400)
    (use,) = meter.drain_uses()
    assert (use.gpu, use.uuid, use.covered_us, use.readings) == (0, "GPU-1", 4_000_000, 3)
    assert (use.memory_total_bytes, use.memory_peak_bytes) == (80 * GIB, 6 * GIB)
    assert use.memory_mean_bytes == (3 * 4 * GIB + 1 * 5 * GIB) // 4
    assert use.sm_activity == pytest.approx((3 * 0.5 + 1 * 0.1) / 4)
    assert (use.sm_from, use.energy_from) == ("sm-utilization", "counter")
    assert use.energy_j == pytest.approx(3 * 200 + 400)
    assert use.power_w == pytest.approx(250)


def test_meter_windows_are_contiguous():
    nvml = FakeNvml()
    meter = metered(nvml)
    meter.read_gpus()
    taken = []
    for activity in (0.2, 0.9, 0.4):
        for _ in range(2):
            nvml.work(1.5, activity, 100 + 100 * activity)
            meter.read_gpus()
        taken += meter.drain_uses()
    assert [use.covered_us for use in taken] == [3_000_000] * 3
    assert [use.sm_activity for use in taken] == pytest.approx([0.2, 0.9, 0.4])
    assert sum(use.energy_j for use in taken) == pytest.approx((nvml.millijoules - 5_000_000) / 1000)


def test_meter_without_gpm_uses_and_names_utilisation():
    nvml = FakeNvml(gpm=False)
    meter = metered(nvml)
    meter.read_gpus()
    nvml.work(1.0, 0.01, 100)
    (use,) = meter.drain_uses()
    assert (use.sm_from, use.sm_activity) == ("kernel-utilization", 1.0)


@pytest.mark.parametrize("lacking", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet"])
def test_reader_refused_gpm_is_cleaned_up(lacking):
    nvml = FakeNvml(lacking=[lacking])
    reader = NvmlReader("GPU-1", nvml)
    assert reader.sm_from == "kernel-utilization"
    assert nvml.samples == {}
    reader.close()
    assert nvml.open == 0


def test_meter_without_energy_counter_integrates_power():
    nvml = FakeNvml(lacking=["nvmlDeviceGetTotalEnergyConsumption"])
    meter = metered(nvml)
    meter.read_gpus()
    nvml.work(2.0, 0.5, 300)
    (use,) = meter.drain_uses()
    assert (use.energy_from, use.energy_j) == ("power", pytest.approx(2 * (100 + 300) / 2))
    assert use.power_w == pytest.approx(200)


def test_meter_reset_energy_counter_is_ignored():
    nvml = FakeNvml()
    meter = metered(nvml)
    meter.read_gpus()
    nvml.work(1.0, 0.5, 100)
    nvml.millijoules = 7
    (use,) = meter.drain_uses()
    assert (use.energy_from, use.energy_j) == ("power", pytest.approx(100))


def test_meter_missing_counter_is_none():
    nvml = FakeNvml(
        lacking=[
            "nvmlDeviceGetPowerUsage",
            "nvmlDeviceGetTotalEnergyConsumption",
            "nvmlDeviceGetUtilizationRates",
        ],
        gpm=False,
    )
    meter = metered(nvml)
    meter.read_gpus()
    nvml.work(1.0, 0.5, 100)
    (use,) = meter.drain_uses()
    assert (use.power_w, use.energy_j, use.sm_activity) == (None, None, None)
    assert (use.energy_from, use.sm_from) == ("", "")
    assert use.memory_peak_bytes == 2 * GIB


@pytest.mark.parametrize("status", [pynvml.NVML_ERROR_UNKNOWN])
def test_reader_missing_metric_is_none(status):
    nvml = FakeNvml()
    meter = metered(nvml)
    meter.read_gpus()
    nvml.metric_status = status
    nvml.work(1.0, 0.5, 100)
    assert meter.drain_uses()[0].sm_activity is None


def test_meter_silent_gpu_leaves_a_gap_and_others_continue(caplog):
    first, second = FakeNvml("GPU-1"), FakeNvml("GPU-2")
    meter = metered(first, second)
    meter.read_gpus()
    second.failing.add("nvmlDeviceGetMemoryInfo")
    for _ in range(3):
        first.work(1.0, 0.5, 200)
        meter.read_gpus()
    assert [use.covered_us for use in meter.drain_uses()] == [3_000_000, 0]
    assert len([line for line in caplog.messages if "GPU-2" in line]) == 1
    assert meter.free_bytes(0) == 78 * GIB
    assert meter.free_bytes(1) is None


def test_meter_gpu_without_readings_is_left_out():
    nvml = FakeNvml()
    nvml.failing.add("nvmlDeviceGetMemoryInfo")
    assert metered(nvml).drain_uses() == ()


@pytest.mark.parametrize("lacking", [["nvmlDeviceGetMemoryInfo"], []])
def test_reader_shared_memory_gpu_uses_system_memory(lacking):
    nvml = FakeNvml(lacking=lacking)
    nvml.total = nvml.used = 0  # NVML refuses the query, or reports 0.
    free = [6 * GIB, 4 * GIB, 5 * GIB]
    meter = GpuMeter(
        [NvmlReader("GPU-1", nvml, lambda: HostMemory(8 * GIB, free.pop(0) if len(free) > 1 else free[0]))],
        clock_ns=lambda: round(nvml.now_s * 1e9),
    )
    meter.read_gpus()
    nvml.work(1.0, 0.5, 100)
    meter.read_gpus()
    (use,) = meter.drain_uses()
    assert (use.memory_total_bytes, use.memory_peak_bytes) == (8 * GIB, 4 * GIB)
    assert use.sm_activity == 0.5
    assert meter.free_bytes(0) == 5 * GIB


def test_meter_thread_samples_while_entered_and_closes():
    nvml = FakeNvml()
    read, enough = [], threading.Event()

    def clock_ns():
        read.append(1)
        if len(read) >= 3:
            enough.set()
        return len(read) * 1000

    with GpuMeter([NvmlReader("GPU-1", nvml)], every_s=0.001, clock_ns=clock_ns) as meter:
        assert enough.wait(HANG_GUARD_S)
    assert (nvml.open, nvml.samples) == (0, {})
    assert not meter._thread.is_alive()


def test_reader_missing_gpu_shuts_the_driver_down():
    nvml = FakeNvml("GPU-1")
    with pytest.raises(pynvml.NVMLError):
        NvmlReader("GPU-2", nvml)
    assert nvml.open == 0


def test_meter_machine_without_gpu_has_none():
    assert open_meter(GpuInventory((), None, "no driver"), 1) is None


@pytest.mark.skipif(bool(list_gpus().gpus), reason="a driver answers here")
def test_meter_lost_driver_warns_and_has_none(caplog):
    there = GpuInventory((Gpu(0, "a GPU", 8 << 30, 7 << 30, "GPU-1"),), "600.1", "1 NVIDIA GPU")
    assert open_meter(there, 1) is None
    assert "cannot be measured" in caplog.text


readings = st.lists(st.tuples(st.integers(1, 5), st.floats(0, 700), st.floats(0, 1)), min_size=1, max_size=6)


@given(readings)
def test_meter_means_are_bounded_and_energy_is_power_times_time(steps):
    timed, t_ns = [], 0
    for passed_s, power_w, activity in steps:
        t_ns += passed_s * 10**9
        timed.append(TimedReading(t_ns, Reading(100, 50, activity, power_w, None)))
    use = sum_up(0, NvmlReader("GPU-1", FakeNvml()), timed)
    powers = [power for _, power, _ in steps]
    assert min(powers) - 1e-6 <= use.power_w <= max(powers) + 1e-6
    assert (use.sm_activity is None) == (len(steps) == 1)
    assert 0.0 <= (use.sm_activity or 0.0) <= 1.0 + 1e-9
    assert use.energy_j == pytest.approx(use.power_w * use.covered_us / 1e6, abs=1e-6)
