import pickle
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_gpu import FakeDriver, FakeGpu
from waiting import HANG_GUARD_S

from ekya.core.errors import UserError
from ekya.core.gpus import GpuGroups
from ekya.gpu.backends.backend import ShareJob
from ekya.gpu.backends.registry import SHARE_BACKENDS, Machine, choose_backend
from ekya.gpu.green.backend import MpsGreenShares
from ekya.gpu.green.claims import SmClaims
from ekya.gpu.green.green_context_pool import GreenProcess, GreenShares
from ekya.gpu.green.levels import GatedLevels, LevelPool
from ekya.gpu.green.sm_driver import SmLayout, SmReport
from ekya.gpu.mps.backend import MpsShares, NoCudaError
from ekya.gpu.mps.service import MpsEnvironment, MpsFound, MpsGpu
from ekya.gpu.nvml import Gpu, GpuInventory

NO_GPU = GpuInventory((), None, "no NVIDIA driver answers")
TWO_GPUS = GpuInventory(
    tuple(Gpu(place, "a GPU", 8 << 30, 7 << 30, f"GPU-{place}") for place in range(2)),
    "600.1",
    "2 NVIDIA GPUs",
)


def h200s():
    return SmReport((SmLayout(8, 16, 4),) * 2, "the driver can split 132 SMs in steps of 8")


def working_mps(_inventory):
    return MpsFound(True, "nvidia-cuda-mps-control can serve each GPU", Path("/usr/bin/control"))


def silent_mps(inventory):
    return MpsFound(False, "nvidia-cuda-mps-control is not here" if inventory.gpus else inventory.why)


def no_split():
    return SmReport((), "these cuda.bindings have no cuDevSmResourceSplitByCount")


@pytest.fixture
def made(tmp_path):
    """Fake drivers that were made, each for one process, and the function that makes one."""
    made = []

    def make():
        driver, gpu = FakeDriver(), FakeGpu()
        pool = LevelPool(driver)
        made.append(driver)
        levels = GatedLevels(pool, gpu, lambda: ())
        return GreenProcess(levels, gpu, lambda: SmClaims(tmp_path / "claims", pool.layout.groups))

    return made, make


def test_green_jobs_of_one_process_get_separate_spans(made):
    drivers, make = made
    shares = GreenShares(make)
    handles = [shares.attach_job(ShareJob(name, "retraining", 500)) for name in ("a", "b")]
    (driver,) = drivers
    one, other = (driver.groups_on(handle.level.stream) for handle in handles)
    assert len(one) == len(other - {"rest"}) == 8
    assert not one & other
    assert driver.calls.count("split") == 1
    for handle in handles:
        handle.release()


def make_process():
    driver, gpu = FakeDriver(), FakeGpu()
    pool = LevelPool(driver)
    folder = Path(tempfile.mkdtemp())
    return GreenProcess(
        GatedLevels(pool, gpu, lambda: ()), gpu, lambda: SmClaims(folder / "claims", pool.layout.groups)
    )


def test_green_process_state_is_never_pickled():
    backend = MpsGreenShares(MpsShares(TWO_GPUS, working_mps), h200s, GreenShares(make_process))
    backend.green.attach_job(ShareJob("a", "retraining", 500))
    with pytest.raises((TypeError, pickle.PicklingError)):
        pickle.dumps(make_process())
    there = pickle.loads(pickle.dumps(backend))
    assert there == backend
    assert there.green.make is make_process


def _mps_green(machine):
    backend = SHARE_BACKENDS["mps+green"](machine)
    assert isinstance(backend, MpsGreenShares)
    gpus = tuple(MpsGpu(gpu.uuid, Path("/tmp/m") / gpu.uuid) for gpu in TWO_GPUS.gpus)
    return replace(backend, mps=replace(backend.mps, environment=MpsEnvironment(Path("/control"), gpus)))


def test_green_mps_client_may_use_all_multiprocessors():
    backend = _mps_green(Machine(2, TWO_GPUS, working_mps, h200s))
    for role, share in (("retraining", 300), ("inference", 100), ("preparation", 250)):
        assert backend.actor_env(ShareJob("a", role, share, 1)) == {
            "CUDA_MPS_PIPE_DIRECTORY": "/tmp/m/GPU-1",
            "CUDA_VISIBLE_DEVICES": "GPU-1",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        }
    capability = backend.probe_machine()
    assert (capability.enforcement, capability.groups) == ("hard", GpuGroups(8, 132))


def test_green_mps_client_checks_daemon_and_sees_one_gpu(made, monkeypatch):
    drivers, make = made
    backend = replace(_mps_green(Machine(2, TWO_GPUS, working_mps, h200s)), green=GreenShares(make))
    joined = []
    monkeypatch.setattr(MpsShares, "require_client", lambda _self, job: joined.append(job.gpu))
    handle = backend.attach_job(ShareJob("a", "retraining", 500, gpu=1))
    assert handle.resize(250).share_milli == 243
    assert joined == [1]
    assert len(drivers) == 1
    handle.release()


def test_green_process_outside_mps_makes_no_contexts(made):
    def no_cuda():
        raise NoCudaError("cuInit gives CUDA error 805")

    backend = _mps_green(Machine(2, TWO_GPUS, working_mps, h200s))
    there = SimpleNamespace(wait_for_daemon=lambda _within_s: None)
    mps = replace(backend.mps, connect=no_cuda, environment=there)
    drivers, make = made
    backend = replace(backend, mps=mps, green=GreenShares(make))
    with pytest.raises(UserError, match="cannot work at a share: cuInit gives CUDA error 805"):
        backend.attach_job(ShareJob("a", "retraining", 500))
    assert drivers == []


def test_registry_auto_tries_all_and_gives_reasons():
    def chosen(ask, split, inventory=TWO_GPUS):
        return choose_backend(machine=Machine(2, inventory, ask, split))

    assert list(SHARE_BACKENDS) == ["mps+green", "mps", "duty-cycle", "cpu"]
    assert chosen(working_mps, h200s).name == "mps+green"
    without_green = chosen(working_mps, no_split)
    assert without_green.name == "mps"
    assert f"not mps+green: {no_split().why}" in without_green.why
    assert chosen(silent_mps, h200s).name == "duty-cycle"
    assert chosen(silent_mps, h200s, inventory=NO_GPU).name == "cpu"


def test_registry_named_backend_is_never_replaced():
    machine = Machine(2, TWO_GPUS, working_mps, no_split)
    with pytest.raises(UserError, match=r"--shares mps\+green: these cuda.bindings have no"):
        choose_backend("mps+green", machine)
    assert choose_backend("duty-cycle", machine).name == "duty-cycle"


def test_gpu_modules_import_without_cuda_and_driver():
    code = """
import importlib, pkgutil, sys
class NoCuda:
    def find_spec(self, name, path=None, target=None):
        if name == "cuda" or name.startswith("cuda."):
            raise ImportError(name)
sys.meta_path.insert(0, NoCuda())
import ekya.gpu
names = [found.name for found in pkgutil.walk_packages(ekya.gpu.__path__, "ekya.gpu.")]
for name in names:
    importlib.import_module(name)
assert "torch" not in sys.modules, "a backend that is only probed must not wait for torch"
assert len(names) > 15
from ekya.gpu.green.sm_driver import read_layouts
print(read_layouts().why)
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=HANG_GUARD_S
    )
    assert answer.returncode == 0, answer.stderr
    assert "cuda.bindings is not installed" in answer.stdout
