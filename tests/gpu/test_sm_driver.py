import ctypes
import sys

import pytest
from fake_bindings import ANSWERS, FakeBindings

from ekya.gpu.green.levels import LevelPool
from ekya.gpu.green.sm_driver import (
    CudaCalls,
    CudaDriver,
    NoSmDriverError,
    SmDriverError,
    SmGroup,
    SmLayout,
    read_layouts,
)


def test_driver_level_issues_calls_in_order():
    bindings = FakeBindings()
    pool = LevelPool(CudaDriver(CudaCalls(bindings)))
    assert pool.layout == SmLayout(8, 16, 4)
    assert pool.level(12, 4).sms == 36
    assert bindings.calls == [
        "cuInit",
        "cuDeviceGet",
        "cuDeviceGetDevResource",
        "cuDevSmResourceSplitByCount",
        "cuDevicePrimaryCtxRetain",
        "cuDevResourceGenerateDesc",
        "cuGreenCtxCreate",
        "cuGreenCtxGetDevResource",
        "cuGreenCtxStreamCreate",
        "cuStreamGetGreenCtx",
    ]
    pool.level(0, 12)
    assert bindings.retained == 1


@pytest.mark.parametrize(
    "name", ["cuDevSmResourceSplitByCount", "cuGreenCtxCreate", "cuGreenCtxStreamCreate"]
)
def test_driver_failed_call_names_call_and_error(name):
    with pytest.raises(SmDriverError, match=f"{name}: CUDA_ERROR_OUT_OF_MEMORY"):
        LevelPool(CudaDriver(CudaCalls(FakeBindings([name])))).level(0, 1)


def test_driver_old_library_names_missing_calls(monkeypatch):
    monkeypatch.delattr(FakeBindings, "cuDevSmResourceSplitByCount")
    assert read_layouts(FakeBindings()).why == "these cuda.bindings have no cuDevSmResourceSplitByCount"


def test_driver_layouts_are_read_without_context():
    bindings = FakeBindings(gpus=2)
    report = read_layouts(bindings)
    assert report.layouts == (SmLayout(8, 16, 4),) * 2
    assert report.why == "the driver can split 132 SMs in steps of 8, 132 SMs in steps of 8"
    assert "cuGreenCtxCreate" not in bindings.calls
    assert bindings.retained == 0


def test_driver_missing_reports_reason_without_error(monkeypatch):
    assert "CUDA does not start here (cuInit: CUDA_ERROR" in read_layouts(FakeBindings(["cuInit"])).why
    assert read_layouts(FakeBindings(gpus=0)).why == "CUDA shows no GPU to this process"

    def no_library(self, flags):
        raise RuntimeError("no libcuda.so\nmore of it")

    monkeypatch.setattr(FakeBindings, "cuInit", no_library)
    assert read_layouts(FakeBindings()).why == "CUDA does not start here (cuInit: no libcuda.so)"


def test_driver_missing_bindings_are_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(NoSmDriverError, match="is not installed"):
        CudaCalls()
    assert read_layouts().layouts == ()


def test_driver_real_bindings_accept_our_arguments():
    real = pytest.importorskip("cuda.bindings.driver")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("there is a driver, which would be given handles that mean nothing")
    driver = CudaDriver(SomeCalls(real))
    resource, context = SmGroup(8, real.CUdevResource()), real.CUgreenCtx(7)
    # Arguments are converted to C before the driver is found missing: a wrong argument is a TypeError.
    for call in (
        lambda: driver.uuid,
        driver.whole,
        lambda: driver.split_groups(resource),
        lambda: driver.make_context([resource]),
        lambda: driver.context_sms(context),
        lambda: driver.make_stream(context),
        lambda: driver.is_on(12, context),
        lambda: driver.destroy_stream(12),
        lambda: driver.destroy_context(context),
    ):
        with pytest.raises(SmDriverError, match="system search"):
            call()


class SomeCalls(CudaCalls):
    """The real library without a driver; calls before the call under test are skipped."""

    def __init__(self, real):
        self.names = real

    def __call__(self, name, *arguments):
        if name == "cuDeviceGet":
            return self.names.CUdevice(0)
        if name == "cuDevicePrimaryCtxRetain":
            return None
        return super().__call__(name, *arguments)


def test_driver_real_bindings_have_every_fake_call():
    real = pytest.importorskip("cuda.bindings.driver")
    for name in ANSWERS:
        assert callable(getattr(real, name))
    assert real.CUresult.CUDA_SUCCESS.name == "CUDA_SUCCESS"
    assert real.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    assert real.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    assert real.CUstream_flags.CU_STREAM_NON_BLOCKING
    resource = real.CUdevResource()
    assert (resource.sm.smCount, resource.type.name) == (0, "CU_DEV_RESOURCE_TYPE_INVALID")
    assert real.CUuuid().bytes == bytes(16)
